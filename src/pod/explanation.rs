//! Why a pod is in the mesh or not, question by question, and what follows for its traffic.

use super::decision::{Action, Policy, Step, trace};
use super::overrides::{self, BYPASS_INBOUND_CAPTURE, DNS_CAPTURE, REROUTE_VIRTUAL_INTERFACES};
use super::redirection::{self as sidecar, Redirection};
use super::types::{Pod, StringMap};
use crate::error::Result;
use crate::rules::inpod::Settings;
use crate::rules::sidecar::{Dns, Interception, Only};
use serde::{Deserialize, Serialize};
use std::fmt::Display;

/// What `explain` says about a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// What is done with it.
    pub action: Action,
    /// Why, in one clause.
    pub reason: String,
    /// The questions of the decision.
    pub steps: Vec<Step>,
    /// What its rules are made of; none when no rules apply.
    pub settings: Vec<Setting>,
    /// What is wrong with its annotations, one sentence each.
    pub warnings: Vec<String>,
}

/// A setting of a pod's rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// What it is about.
    pub name: String,
    /// What it is.
    pub value: String,
    /// Who says so: an annotation, an option, or that it is the default.
    pub source: String,
}

/// Explains. `usual` are the settings of a pod of this node that asks for nothing else; `native`: its rules are in tables
/// of nf_tables of our own.
pub fn explain(policy: &Policy, pod: &Pod, namespace_labels: &StringMap, usual: Settings, native: bool) -> Explanation {
    let (decision, steps) = trace(policy, pod, namespace_labels);
    let (settings, warnings) = match decision.action {
        Action::None => (Vec::new(), Vec::new()),
        Action::Ambient => ambient(pod, usual),
        // What is wrong there fails the ADD, and says so.
        Action::Sidecar => {
            redirected(pod, native).unwrap_or_else(|e| (Vec::new(), vec![format!("the pod cannot be started: {e}")]))
        }
    };
    let (namespace, name) = (pod.name.namespace.clone(), pod.name.name.clone());
    Explanation { namespace, name, action: decision.action, reason: decision.reason, steps, settings, warnings }
}

fn ambient(pod: &Pod, usual: Settings) -> (Vec<Setting>, Vec<String>) {
    let asked = overrides::parse(&pod.annotations);
    let rules = asked.over(usual);
    let source = |asked: bool, key: &str, other: &str| match asked {
        true => format!("annotation {key}"),
        false => other.to_owned(),
    };
    let interfaces = list(&rules.reroute_interfaces);
    let dns = source(asked.dns_capture.is_some(), DNS_CAPTURE, "--ambient-dns-capture");
    let ingress = source(asked.ingress_mode, BYPASS_INBOUND_CAPTURE, "default");
    let rerouted = source(!rules.reroute_interfaces.is_empty(), REROUTE_VIRTUAL_INTERFACES, "default");
    let mut settings = vec![
        setting("inbound plaintext is captured", yes(!rules.ingress_mode), ingress),
        setting("DNS is captured", yes(rules.dns_capture), dns),
        setting("interfaces whose traffic is outbound", interfaces, rerouted),
        setting("IPv6", yes(rules.ipv6), "--ambient-ipv6"),
        setting("source of the kubelet's probes", rules.probe_v4, "HOST_PROBE_SNAT_IP"),
    ];
    if rules.ipv6 {
        settings.push(setting("the same in IPv6", rules.probe_v6, "HOST_PROBE_SNAT_IPV6"));
    }
    (settings, asked.warnings)
}

/// What decides about IPv6 unless the rules are in native nf_tables.
const BY_ADDRESSES: &str = "the pod's addresses, and variable ISTIO_DUAL_STACK of istio-proxy";

fn redirected(pod: &Pod, native: bool) -> Result<(Vec<Setting>, Vec<String>)> {
    let wanted = sidecar::of(pod)?;
    let ipv6 = wanted.ipv6(&pod.ips, native);
    let Redirection { settings: rules, warnings, .. } = wanted;
    let annotated = |name: &str, value: String, key: &str| {
        let there = pod.annotations.contains_key(key);
        setting(name, value, if there { format!("annotation {key}") } else { "default".to_owned() })
    };
    let interception = match rules.interception {
        Interception::Redirect => "REDIRECT",
        Interception::Tproxy => "TPROXY",
    };
    let variable = |name: &str, on: bool, key: &str| setting(name, yes(on), format!("variable {key} of istio-proxy"));
    let user = format!("{} (group {})", list(&rules.proxy_uids), list(&rules.proxy_gids));
    let settings = vec![
        annotated("inbound traffic reaches Envoy by", interception.to_owned(), sidecar::INTERCEPTION_MODE),
        annotated("inbound ports", only(&rules.inbound_ports), sidecar::INCLUDE_INBOUND_PORTS),
        annotated("inbound ports left out", list(&rules.inbound_ports_excluded), sidecar::EXCLUDE_INBOUND_PORTS),
        annotated("outbound ranges", only(&rules.outbound_ranges), sidecar::INCLUDE_OUTBOUND_IP_RANGES),
        annotated(
            "outbound ranges left out",
            list(&rules.outbound_ranges_excluded),
            sidecar::EXCLUDE_OUTBOUND_IP_RANGES,
        ),
        annotated("outbound ports besides", list(&rules.outbound_ports), sidecar::INCLUDE_OUTBOUND_PORTS),
        annotated("outbound ports left out", list(&rules.outbound_ports_excluded), sidecar::EXCLUDE_OUTBOUND_PORTS),
        annotated("interfaces left out", list(&rules.interfaces_excluded), sidecar::EXCLUDE_INTERFACES),
        annotated(
            "interfaces whose traffic is outbound",
            list(&rules.reroute_interfaces),
            if pod.annotations.contains_key(REROUTE_VIRTUAL_INTERFACES) {
                REROUTE_VIRTUAL_INTERFACES
            } else {
                sidecar::KUBEVIRT_INTERFACES
            },
        ),
        setting("Envoy's user", user, "securityContext of istio-proxy"),
        variable("DNS is captured", rules.dns != Dns::Off, "ISTIO_META_DNS_CAPTURE"),
        variable("invalid packets are dropped", rules.drop_invalid, "INVALID_DROP"),
        setting("IPv6", yes(ipv6), if native { "the pod's addresses" } else { BY_ADDRESSES }),
    ];
    Ok((settings, warnings))
}

fn setting(name: &str, value: impl Display, source: impl Into<String>) -> Setting {
    Setting { name: name.to_owned(), value: value.to_string(), source: source.into() }
}

fn yes(on: bool) -> &'static str {
    if on { "yes" } else { "no" }
}

fn only<T: Display>(some: &Only<T>) -> String {
    match some {
        Only::All => "all".to_owned(),
        Only::These(items) => list(items),
    }
}

fn list<T: Display>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(T::to_string).collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::object::decode_pod;
    use crate::pod::selector::EnablementSelectors;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn explained(metadata: &str, spec: &str) -> Explanation {
        let pod = format!(r#"{{"kind":"Pod","metadata":{{"name":"web",{metadata}}},"spec":{{{spec}}}}}"#);
        let policy = Policy {
            ambient_enabled: true,
            selectors: EnablementSelectors::parse("[{podSelector: {matchLabels: {mesh: 'yes'}}}]").unwrap(),
            exclude_namespaces: vec!["kube-system".to_owned()],
            exclude_runtime_classes: Vec::new(),
            system_namespace: "istio-system".to_owned(),
        };
        let usual = Settings {
            dns_capture: true,
            ingress_mode: false,
            reroute_interfaces: vec![],
            ipv6: false,
            probe_v4: Ipv4Addr::LOCALHOST,
            probe_v6: Ipv6Addr::LOCALHOST,
        };
        explain(&policy, &decode_pod(&pod).unwrap(), &StringMap::new(), usual, false)
    }

    fn sources(explanation: &Explanation) -> Vec<(&str, &str, &str)> {
        let settings = explanation.settings.iter();
        settings.map(|setting| (setting.name.as_str(), setting.value.as_str(), setting.source.as_str())).collect()
    }

    #[test]
    fn a_pod_that_is_left_alone_has_no_settings() {
        let got = explained(r#""namespace":"kube-system","labels":{"mesh":"yes"}"#, "");
        assert_eq!((got.action, got.settings.len()), (Action::None, 0));
        let answers: Vec<_> = got.steps.iter().map(|step| (step.question.as_str(), step.answer)).collect();
        assert_eq!(answers, [("Is it on the host's network?", false), ("Is its namespace excluded?", true)]);
        assert_eq!(got.steps[1].facts, "namespace kube-system; --exclude-namespaces is [\"kube-system\"]");
    }

    #[test]
    fn ambient_settings_name_who_says_so() {
        let got = explained(
            r#""labels":{"mesh":"yes"},"annotations":{"ambient.istio.io/dns-capture":"false",
                "ambient.istio.io/bypass-inbound-capture":"perhaps","istio.io/reroute-virtual-interfaces":"net1"}"#,
            "",
        );
        assert_eq!(
            sources(&got),
            [
                ("inbound plaintext is captured", "yes", "default"),
                ("DNS is captured", "no", "annotation ambient.istio.io/dns-capture"),
                ("interfaces whose traffic is outbound", "net1", "annotation istio.io/reroute-virtual-interfaces"),
                ("IPv6", "no", "--ambient-ipv6"),
                ("source of the kubelet's probes", "127.0.0.1", "HOST_PROBE_SNAT_IP"),
            ]
        );
        let warning = "annotation ambient.istio.io/bypass-inbound-capture: \"perhaps\" is not true or false; ignored";
        assert_eq!(got.warnings, [warning]);
    }

    #[test]
    fn a_sidecar_has_its_own_questions_and_settings() {
        let metadata =
            r#""annotations":{"sidecar.istio.io/status":"","traffic.sidecar.istio.io/includeInboundPorts":"80,81"}"#;
        let got = explained(metadata, r#""containers":[{"name":"istio-proxy"}]"#);
        assert_eq!(got.action, Action::Sidecar);
        assert_eq!(got.steps.last().unwrap().question, "Does it refuse its sidecar?");
        let ports = ("inbound ports", "80, 81", "annotation traffic.sidecar.istio.io/includeInboundPorts");
        assert!(sources(&got).contains(&ports), "{got:?}");
        assert!(sources(&got).contains(&("outbound ranges", "all", "default")), "{got:?}");

        let metadata = metadata.replace("80,81", "http");
        let got = explained(&metadata, r#""containers":[{"name":"istio-proxy"}]"#);
        assert_eq!((got.action, got.settings.len(), got.warnings.len()), (Action::Sidecar, 0, 1));
        assert!(got.warnings[0].starts_with("the pod cannot be started: annotation traffic"), "{got:?}");
    }
}
