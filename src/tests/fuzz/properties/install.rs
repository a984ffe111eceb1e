//! CNI configurations of other people, into which our entry goes and from which it comes out again.

use super::text;
use base64::prelude::{BASE64_STANDARD, Engine};
use ferrule::install::PLUGIN;
use ferrule::install::cache::names_us;
use ferrule::install::conf::{Conf, List};
use ferrule::install::entry::Entry;
use serde_json::json;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

fn entry() -> Entry {
    Entry {
        log_level: "info".to_owned(),
        agent_run_dir: "/var/run/istio-cni".to_owned(),
        ambient_enabled: true,
        enablement_selectors: json!([{"podSelector": {"matchLabels": {"a": "b"}}}]),
        exclude_namespaces: vec!["kube-system".to_owned()],
        exclude_runtime_classes: Vec::new(),
        pod_namespace: "istio-system".to_owned(),
        native_nftables: false,
        detection_retry: false,
        status_gate: false,
    }
}

/// Our entry in and out: the bytes from before, and everybody else's plugins as they were.
pub fn conflist(input: &[u8]) {
    cached_result(input);
    for name in ["10-x.conflist", "10-x.conf"] {
        let Ok(conf) = Conf::parse(name, input) else { continue };
        if serde_json::from_slice::<serde_json::Value>(input).is_err() {
            // Keys that are no Unicode: a runtime in Go takes them, the comparisons below cannot.
            continue;
        }
        let base = conf.base();
        if conf.has_others() {
            in_and_out(&base);
        }
        match &conf {
            Conf::List(list) => {
                assert_eq!(conf.has_ours(), base.as_bytes() != input, "taken out what was there, and nothing else");
                assert_eq!(others(&base), others(text(input).unwrap()));
                let _ = list.is_installed(&entry());
            }
            Conf::Single(single) => {
                same_plugin(&base, text(input).unwrap());
                assert!(!single.is_standalone(&entry()) || conf.has_ours());
            }
        }
    }
}

fn in_and_out(base: &str) {
    let list = List::parse(base).unwrap();
    assert_eq!(list.without_entry(), base);
    let with = list.with_entry_appended(&entry());
    let installed = List::parse(&with).unwrap();
    assert!(installed.is_installed(&entry()), "{with}");
    assert_eq!(installed.without_entry(), base);
    assert_eq!(others(&with), others(base));
}

/// An object's members, as they are written but for white space.
type Members = BTreeMap<String, String>;

fn members(object: &str) -> Members {
    let members: BTreeMap<String, Box<RawValue>> = serde_json::from_str(object).unwrap();
    members.into_iter().map(|(key, value)| (key, compact(value.get()))).collect()
}

fn compact(json: &str) -> String {
    let (mut inside, mut escaped) = (false, false);
    let kept = json.chars().filter(|c| {
        let keep = inside || !c.is_ascii_whitespace();
        inside ^= *c == '"' && !escaped;
        escaped = inside && *c == '\\' && !escaped;
        keep
    });
    kept.collect()
}

/// A list's plugins but ours, and its other members.
fn others(list: &str) -> (Vec<Members>, Members) {
    let mut rest = members(list);
    let plugins: Vec<Box<RawValue>> = serde_json::from_str(&rest.remove("plugins").unwrap()).unwrap();
    let plugins = plugins.iter().map(|plugin| members(plugin.get()));
    let ours = |plugin: &Members| serde_json::from_str::<String>(&plugin["type"]).unwrap() == PLUGIN;
    (plugins.filter(|plugin| !ours(plugin)).collect(), rest)
}

/// A single configuration became a list of itself, but for what belongs to the list.
fn same_plugin(list: &str, single: &str) {
    let mut list = members(list);
    let plugins: Vec<Box<RawValue>> = serde_json::from_str(&list.remove("plugins").unwrap()).unwrap();
    let [plugin] = plugins.as_slice() else { panic!("{plugins:?}") };
    let mut wanted = members(single);
    let name = wanted.remove("name").filter(|name| name != "\"\"");
    let name = name.unwrap_or_else(|| "\"k8s-pod-network\"".to_owned());
    let mut head = Members::from([("name".to_owned(), name)]);
    head.extend(wanted.remove_entry("cniVersion"));
    assert_eq!((members(plugin.get()), list), (wanted, head));
}

/// A runtime's cached result: the chain in it is looked through whatever it is.
fn cached_result(input: &[u8]) {
    let _ = names_us(input);
    let cached = json!({"kind": "cniCacheV1", "config": BASE64_STANDARD.encode(input)}).to_string();
    let named = input.windows(PLUGIN.len()).any(|window| window == PLUGIN.as_bytes());
    assert_eq!(names_us(cached.as_bytes()).unwrap(), named);
}
