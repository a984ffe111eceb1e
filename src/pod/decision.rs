//! The one decision: is this pod in the mesh, and how. Serves the plugin, the agent, repair and `explain`.

use super::overrides::parse_bool;
use super::selector::EnablementSelectors;
use super::types::{Phase, Pod, StringMap};
use serde::{Deserialize, Serialize};
use std::fmt::Arguments;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Annotation that the sidecar injector leaves.
pub const SIDECAR_STATUS: &str = "sidecar.istio.io/status";
/// Label, or annotation, by which a pod refuses the sidecar.
const SIDECAR_INJECT: &str = "sidecar.istio.io/inject";

/// What is done with a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Enrol it in the ambient mesh.
    Ambient,
    /// Redirect it to its sidecar.
    Sidecar,
    /// Leave it alone.
    None,
}

impl Action {
    /// The word that the agent's answers and log lines have.
    pub fn word(self) -> &'static str {
        match self {
            Action::Ambient => "ambient",
            Action::Sidecar => "sidecar",
            Action::None => "none",
        }
    }
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
    /// `--exclude-runtime-classes`.
    pub exclude_runtime_classes: Vec<String>,
    /// `SYSTEM_NAMESPACE`, where ztunnel runs.
    pub system_namespace: String,
}

impl Policy {
    /// Differs between policies that may decide differently about one pod, whether or not it is ztunnel's; the same in
    /// every process of one build.
    pub fn fingerprint(&self) -> String {
        let mut hasher = DefaultHasher::new();
        (self.ambient_enabled, &self.selectors, &self.exclude_namespaces, &self.exclude_runtime_classes)
            .hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }
}

/// A question on the way to a decision or to a state, and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// To be answered by yes or no.
    pub question: String,
    /// Yes.
    pub answer: bool,
    /// What the answer rests on.
    pub facts: String,
}

/// Decides.
pub fn decide(policy: &Policy, pod: &Pod, namespace_labels: &StringMap) -> Decision {
    walk(policy, pod, namespace_labels, &mut Trace(None))
}

/// Decides, and tells every question that was asked on the way.
pub fn trace(policy: &Policy, pod: &Pod, namespace_labels: &StringMap) -> (Decision, Vec<Step>) {
    let mut steps = Vec::new();
    let decision = walk(policy, pod, namespace_labels, &mut Trace(Some(&mut steps)));
    (decision, steps)
}

/// Where questions are written down, if anybody wants them.
struct Trace<'a>(Option<&'a mut Vec<Step>>);

impl Trace<'_> {
    /// Gives the answer back.
    fn ask(&mut self, question: &str, answer: bool, facts: Arguments<'_>) -> bool {
        if let Some(steps) = &mut self.0 {
            steps.push(Step { question: question.to_owned(), answer, facts: facts.to_string() });
        }
        answer
    }
}

fn walk(policy: &Policy, pod: &Pod, namespace_labels: &StringMap, trace: &mut Trace<'_>) -> Decision {
    let namespace = &pod.name.namespace;
    let host = format_args!("spec.hostNetwork is {}", pod.host_network);
    if trace.ask("Is it on the host's network?", pod.host_network, host) {
        return none("the pod is on the host network");
    }
    let excluded = &policy.exclude_namespaces;
    let facts = format_args!("namespace {namespace}; --exclude-namespaces is {excluded:?}");
    if trace.ask("Is its namespace excluded?", excluded.contains(namespace), facts) {
        return none(format!("namespace {namespace} is excluded (--exclude-namespaces)"));
    }
    let excluded = &policy.exclude_runtime_classes;
    if !excluded.is_empty() {
        let class = &pod.runtime_class;
        let facts = format_args!("spec.runtimeClassName is {class:?}; --exclude-runtime-classes is {excluded:?}");
        if trace.ask("Is its runtime class excluded?", excluded.contains(class), facts) {
            return none(format!("runtime class {class} is excluded (--exclude-runtime-classes)"));
        }
    }
    let finished = pod.phase == Phase::Finished;
    let facts = format_args!("status.phase is {}Succeeded or Failed", if finished { "" } else { "not " });
    if trace.ask("Has it finished?", finished, facts) {
        return none("the pod has finished (phase Succeeded or Failed)");
    }
    let sidecar = pod.annotations.contains_key(SIDECAR_STATUS);
    let facts = format_args!("annotation {SIDECAR_STATUS} is {}", if sidecar { "there" } else { "absent" });
    if trace.ask("Was a sidecar injected?", sidecar, facts) {
        return match no_redirection(pod, trace) {
            Some(reason) => none(reason),
            None => Decision { action: Action::Sidecar, reason: "the pod has a sidecar".to_owned() },
        };
    }
    let facts = format_args!("--ambient-enabled is {}", policy.ambient_enabled);
    if !trace.ask("Is ambient mode on?", policy.ambient_enabled, facts) {
        return none("ambient mode is off (--ambient-enabled) and the pod has no sidecar");
    }
    let app = pod.labels.get("app").map_or("absent", String::as_str);
    let system = &policy.system_namespace;
    let facts = format_args!("namespace {namespace}, label app is {app}; ztunnel is app=ztunnel in {system}");
    if trace.ask("Is it ztunnel itself?", namespace == system && app == "ztunnel", facts) {
        return none("the pod is ztunnel itself");
    }
    let facts = format_args!("{} in --ambient-enablement-selector", policy.selectors.len());
    if !trace.ask("Is there an enablement selector?", !policy.selectors.is_empty(), facts) {
        return none("there is no enablement selector (--ambient-enablement-selector is empty)");
    }
    let matches = policy.selectors.matches(&pod.labels, namespace_labels);
    let verdicts = policy.selectors.verdicts(&pod.labels, namespace_labels);
    if trace.ask("Does an enablement selector match?", matches, format_args!("{verdicts}")) {
        return Decision { action: Action::Ambient, reason: "an enablement selector matches".to_owned() };
    }
    none("no enablement selector matches the labels of pod and namespace")
}

fn none(reason: impl Into<String>) -> Decision {
    Decision { action: Action::None, reason: reason.into() }
}

/// Why an injected pod is not redirected from here, if so.
fn no_redirection(pod: &Pod, trace: &mut Trace<'_>) -> Option<String> {
    let containers = if pod.proxy.is_some() { "a container of that name" } else { "no container of that name" };
    trace.ask("Has it a container istio-proxy?", pod.proxy.is_some(), format_args!("{containers}"));
    let Some(proxy) = &pod.proxy else {
        return Some(format!("the pod is annotated {SIDECAR_STATUS} but has no container istio-proxy"));
    };
    let containers = if pod.has_istio_init { "a container of that name" } else { "no container of that name" };
    if trace.ask("Does istio-init program its redirection?", pod.has_istio_init, format_args!("{containers}")) {
        return Some("the pod's container istio-init programs its redirection".to_owned());
    }
    let disabled = proxy.env.get("DISABLE_ENVOY").map(String::as_str);
    let facts = format_args!("variable DISABLE_ENVOY of istio-proxy is {}", disabled.unwrap_or("absent"));
    if trace.ask("Does istio-proxy run without Envoy?", disabled.and_then(parse_bool) == Some(true), facts) {
        return Some("istio-proxy runs without Envoy (DISABLE_ENVOY)".to_owned());
    }
    let role = match proxy.args.as_slice() {
        [command, role, ..] if command == "proxy" => role,
        _ => "sidecar",
    };
    let facts = format_args!("the first arguments of istio-proxy are {:?}", proxy.args);
    if trace.ask("Is istio-proxy something else than a sidecar?", role != "sidecar", facts) {
        return Some(format!("istio-proxy is a {role}, not a sidecar"));
    }
    let (what, inject) = match pod.labels.get(SIDECAR_INJECT) {
        Some(label) => ("label", Some(label)),
        None => ("annotation", pod.annotations.get(SIDECAR_INJECT)),
    };
    let inject = inject.map(String::as_str);
    let facts = format_args!("{what} {SIDECAR_INJECT} is {}", inject.unwrap_or("absent"));
    trace
        .ask("Does it refuse its sidecar?", inject.and_then(parse_bool) == Some(false), facts)
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
                exclude_runtime_classes: vec!["gvisor".to_owned()],
                system_namespace: "istio-system".to_owned(),
            };
            let pod = decode_pod(&case.pod.to_string()).unwrap();
            let decision = decide(&policy, &pod, &case.namespace_labels);
            let (traced, steps) = trace(&policy, &pod, &case.namespace_labels);
            assert_eq!(traced, decision, "{}", case.pod);
            assert!(steps.iter().all(|step| step.question.ends_with('?') && !step.facts.is_empty()), "{steps:?}");
            let got = (format!("{:?}", decision.action), decision.reason);
            assert_eq!(got, (case.action, case.reason), "{}", case.pod);
        }
    }
}
