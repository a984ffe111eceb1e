//! What is below scripts/deploy and the Containerfile agree with the executable, with each other, and with what Istio's
//! chart renders.

use ferrule::config::table::TABLE;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;

fn read(path: &str) -> String {
    fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn manifest() -> Vec<Value> {
    ferrule::pod::yaml::documents(&read("scripts/deploy/ferrule.yaml")).unwrap()
}

fn kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

/// What the chart renders for ambient mode.
fn chart() -> Value {
    serde_json::from_str(&read("test-fixtures/deploy/chart/ambient.json")).unwrap()
}

fn strings(list: &Value) -> BTreeSet<&str> {
    list.as_array().unwrap().iter().map(|item| item.as_str().unwrap()).collect()
}

/// Variables of Go's runtime and of Istio's own version bookkeeping, which mean nothing to us.
const NOT_OURS: [&str; 3] = ["CURRENT_AGENT_VERSION", "GOMEMLIMIT", "REPAIR_RUN_AS_DAEMON"];

#[test]
fn the_manifest_is_the_charts_daemonset() {
    let objects = manifest();
    let (set, chart) = (kind(&objects, "DaemonSet"), chart());
    assert_eq!(set["metadata"]["name"], "istio-cni-node");
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    for field in ["command", "args"] {
        assert_eq!(container[field], chart[field], "{field}");
    }
    let mounts: BTreeSet<&str> =
        container["volumeMounts"].as_array().unwrap().iter().map(|m| m["mountPath"].as_str().unwrap()).collect();
    assert_eq!(mounts, strings(&chart["mounts"]));
    // Settings: the same names, and where they are plain text the same values.
    let data = kind(&objects, "ConfigMap")["data"].as_object().unwrap();
    let env = container["env"].as_array().unwrap();
    let ours: BTreeSet<&str> =
        data.keys().map(String::as_str).chain(env.iter().map(|e| e["name"].as_str().unwrap())).collect();
    let theirs: BTreeSet<&str> = chart["env"].as_object().unwrap().keys().map(String::as_str).collect();
    let theirs: BTreeSet<&str> = theirs.into_iter().filter(|name| !NOT_OURS.contains(name)).collect();
    assert_eq!(ours, theirs);
    for (name, value) in data {
        if name != "AMBIENT_ENABLEMENT_SELECTOR" {
            assert_eq!(value, &chart["env"][name], "{name}");
        }
        assert!(TABLE.iter().any(|row| row.spec.name.variable().as_ref() == Some(name)), "{name} is no option");
    }
    let selectors = |value: &Value| ferrule::pod::yaml::document(value.as_str().unwrap()).unwrap();
    let name = "AMBIENT_ENABLEMENT_SELECTOR";
    assert_eq!(selectors(&data[name]), selectors(&chart["env"][name]));
    let security = &container["securityContext"];
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(strings(&security["capabilities"]["drop"]), ["ALL"].into());
    let capabilities = ["DAC_OVERRIDE", "NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_PTRACE"];
    assert_eq!(strings(&security["capabilities"]["add"]), capabilities.into());
    assert_eq!(pod["priorityClassName"], "system-node-critical");
    assert_eq!(container["resources"]["requests"], json!({"cpu": "5m", "memory": "16Mi"}));
    assert_eq!(container["readinessProbe"], json!({"httpGet": {"path": "/readyz", "port": 8000}}));
    assert_eq!(pod["terminationGracePeriodSeconds"], 30);
    let tolerations = json!([
        {"effect": "NoSchedule", "operator": "Exists"},
        {"key": "CriticalAddonsOnly", "operator": "Exists"},
        {"effect": "NoExecute", "operator": "Exists"},
    ]);
    assert_eq!(pod["tolerations"], tolerations);
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}});
    assert_eq!(set["spec"]["updateStrategy"], strategy);
}

#[test]
fn one_image_and_one_version() {
    let image = format!("localhost/ferrule:{}", env!("CARGO_PKG_VERSION"));
    let objects = manifest();
    assert_eq!(kind(&objects, "DaemonSet")["spec"]["template"]["spec"]["containers"][0]["image"], image);
    let values = ferrule::pod::yaml::documents(&read("scripts/deploy/values.yaml")).unwrap();
    assert_eq!(values, [json!({ "image": image })], "another image, and nothing else");
    assert!(read("README.md").contains(&format!("install-cni={image}\n")));
}

#[test]
fn the_dashboard_shows_every_metric_and_no_other() {
    let text = ferrule::metrics::render();
    let known: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    // The proxy agent's are those of a pod, not of a node.
    let known: BTreeSet<&str> = known.into_iter().filter(|name| !name.starts_with("istio_agent_")).collect();
    let dashboard: Value = serde_json::from_str(&read("scripts/deploy/dashboard.json")).unwrap();
    let mut shown = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let metrics =
                words.filter(|word| word.contains('_') && !["histogram_quantile", "response_code"].contains(word));
            let mut metrics = metrics.map(|word| word.strip_suffix("_bucket").unwrap_or(word)).peekable();
            assert!(metrics.peek().is_some(), "no metric in {query}");
            shown.extend(metrics.map(str::to_owned));
        }
    }
    assert_eq!(shown.iter().map(String::as_str).collect::<BTreeSet<_>>(), known);
}
