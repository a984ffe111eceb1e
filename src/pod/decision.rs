//! The one decision: is this pod in the mesh, and how. Serves the plugin, the agent, repair and `explain`.

use super::overrides::parse_bool;
use super::selector::EnablementSelectors;
use super::types::{Phase, Pod, StringMap};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Annotation that the sidecar injector leaves.
pub const SIDECAR_STATUS: &str = "sidecar.istio.io/status";
/// Label, or annotation, by which a pod refuses the sidecar.
const SIDECAR_INJECT: &str = "sidecar.istio.io/inject";

/// What is done with a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Enrol it in the ambient mesh.
    Ambient,
    /// Redirect it to its sidecar.
    Sidecar,
    /// Leave it alone.
    None,
}

/// A decision and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What is done.
    pub action: Action,
    /// Why, as one clause for logs, answers and `explain`.
    pub reason: String,
}

/// What the decision depends on besides the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// `--ambient-enabled`.
    pub ambient_enabled: bool,
    /// `--ambient-enablement-selector`.
    pub selectors: EnablementSelectors,
    /// `--exclude-namespaces`.
    pub exclude_namespaces: Vec<String>,
    /// `SYSTEM_NAMESPACE`, where ztunnel runs.
    pub system_namespace: String,
}

impl Policy {
    /// Differs between policies that may decide differently about one pod, whether or not it is ztunnel's; the same in
    /// every process of one build.
    pub fn fingerprint(&self) -> String {
        let mut hasher = DefaultHasher::new();
        (self.ambient_enabled, &self.selectors, &self.exclude_namespaces).hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }
}

/// Decides.
pub fn decide(policy: &Policy, pod: &Pod, namespace_labels: &StringMap) -> Decision {
    let namespace = &pod.name.namespace;
    if pod.host_network {
        none("the pod is on the host network")
    } else if policy.exclude_namespaces.contains(namespace) {
        none(format!("namespace {namespace} is excluded (--exclude-namespaces)"))
    } else if pod.phase == Phase::Finished {
        none("the pod has finished (phase Succeeded or Failed)")
    } else if pod.annotations.contains_key(SIDECAR_STATUS) {
        match no_redirection(pod) {
            Some(reason) => none(reason),
            None => Decision { action: Action::Sidecar, reason: "the pod has a sidecar".to_owned() },
        }
    } else if !policy.ambient_enabled {
        none("ambient mode is off (--ambient-enabled) and the pod has no sidecar")
    } else if is_ztunnel(policy, pod) {
        none("the pod is ztunnel itself")
    } else if policy.selectors.is_empty() {
        none("there is no enablement selector (--ambient-enablement-selector is empty)")
    } else if policy.selectors.matches(&pod.labels, namespace_labels) {
        Decision { action: Action::Ambient, reason: "an enablement selector matches".to_owned() }
    } else {
        none("no enablement selector matches the labels of pod and namespace")
    }
}

fn none(reason: impl Into<String>) -> Decision {
    Decision { action: Action::None, reason: reason.into() }
}

fn is_ztunnel(policy: &Policy, pod: &Pod) -> bool {
    pod.name.namespace == policy.system_namespace && pod.labels.get("app").is_some_and(|app| app == "ztunnel")
}

/// Why an injected pod is not redirected from here, if so.
fn no_redirection(pod: &Pod) -> Option<String> {
    let Some(proxy) = &pod.proxy else {
        return Some(format!("the pod is annotated {SIDECAR_STATUS} but has no container istio-proxy"));
    };
    if pod.has_istio_init {
        return Some("the pod's container istio-init programs its redirection".to_owned());
    }
    if proxy.env.get("DISABLE_ENVOY").and_then(|value| parse_bool(value)) == Some(true) {
        return Some("istio-proxy runs without Envoy (DISABLE_ENVOY)".to_owned());
    }
    if let [command, role, ..] = proxy.args.as_slice()
        && command == "proxy"
        && role != "sidecar"
    {
        return Some(format!("istio-proxy is a {role}, not a sidecar"));
    }
    let (what, inject) = match pod.labels.get(SIDECAR_INJECT) {
        Some(label) => ("label", Some(label)),
        None => ("annotation", pod.annotations.get(SIDECAR_INJECT)),
    };
    (inject.and_then(|value| parse_bool(value)) == Some(false))
        .then(|| format!("the pod's {what} {SIDECAR_INJECT} is false"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::object::decode_pod;
    use crate::pod::yaml;

    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Case {
        pod: serde_json::Value,
        #[serde(default)]
        namespace_labels: StringMap,
        #[serde(default)]
        ambient_off: bool,
        #[serde(default)]
        no_selectors: bool,
        action: String,
        reason: String,
    }

    #[test]
    fn cases() {
        let chart = EnablementSelectors::parse(include_str!("../../test-fixtures/pod/chart-selectors.yaml")).unwrap();
        let cases = yaml::document(include_str!("../../test-fixtures/pod/decisions.yaml")).unwrap();
        let cases: Vec<Case> = serde_json::from_value(cases).unwrap();
        assert!(cases.len() > 20);
        for case in cases {
            let policy = Policy {
                ambient_enabled: !case.ambient_off,
                selectors: if case.no_selectors { EnablementSelectors::default() } else { chart.clone() },
                exclude_namespaces: vec!["kube-system".to_owned()],
                system_namespace: "istio-system".to_owned(),
            };
            let pod = decode_pod(&case.pod.to_string()).unwrap();
            let decision = decide(&policy, &pod, &case.namespace_labels);
            let got = (format!("{:?}", decision.action), decision.reason);
            assert_eq!(got, (case.action, case.reason), "{}", case.pod);
        }
    }
}
