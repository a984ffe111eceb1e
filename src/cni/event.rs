//! The wire types between the plugin and the agent on `pluginevent.sock`: Istio's own body and our extra fields.

use crate::pod::decision::Action;
use base64::Engine as _;
use ipnet::IpNet;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::net::IpAddr;

/// Body of `POST /cmdadd`. The first four fields are what Istio's Go plugin sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
pub struct AddEvent {
    /// Path of the namespace file on the host.
    pub netns: String,
    /// Pod name.
    pub pod_name: String,
    /// Pod namespace; empty from podman.
    pub pod_namespace: String,
    /// Addresses as Go's `[]IPConfig`; decoded leniently by [`AddEvent::addresses`].
    #[serde(rename = "IPs")]
    pub ips: Value,
    /// Ours: pod uid from CNI_ARGS.
    #[serde(rename = "PodUID", skip_serializing_if = "String::is_empty")]
    pub pod_uid: String,
    /// Ours: sandbox id.
    #[serde(rename = "ContainerID", skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    /// Ours: interface inside (`CNI_IFNAME`). A sandbox may have several, each with an ADD and a DEL of its own.
    #[serde(rename = "IfName", skip_serializing_if = "String::is_empty")]
    pub interface: String,
    /// Ours: the agent decides and answers with an [`AddAnswer`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub decide: bool,
}

impl AddEvent {
    /// The pod's addresses; empty, null and unparsable ones are left out, IPv4-mapped ones unmapped.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let entries = self.ips.as_array().map(Vec::as_slice).unwrap_or_default();
        entries
            .iter()
            .filter_map(|entry| entry.get("Address")?.get("IP")?.as_str()?.parse::<IpAddr>().ok())
            .map(|address| address.to_canonical())
            .filter(|address| !address.is_unspecified())
            .collect()
    }
}

/// The addresses of a CNI result of any version in the form of [`AddEvent::ips`], as Go's plugin encodes them: null
/// without a result. What cannot be read is left out: the agent can do without.
pub fn ips_of_result(result: Option<&Value>) -> Value {
    let Some(result) = result else { return Value::Null };
    let modern = result.get("ips").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let modern = modern.iter().filter_map(|ip| go_ip(ip.get("address")?, ip.get("gateway"), ip.get("interface")));
    let legacy = ["ip4", "ip6"].iter().filter_map(|family| result.get(family));
    let legacy = legacy.filter_map(|ip| go_ip(ip.get("ip")?, ip.get("gateway"), None));
    Value::Array(modern.chain(legacy).collect())
}

/// Go's `types100.IPConfig` as `encoding/json` writes it: the mask in base64, an absent gateway as an empty string.
fn go_ip(address: &Value, gateway: Option<&Value>, interface: Option<&Value>) -> Option<Value> {
    let address = address.as_str()?;
    let net = address.parse::<IpNet>().or_else(|_| address.parse::<IpAddr>().map(IpNet::from)).ok()?;
    let mask = match net.netmask() {
        IpAddr::V4(mask) => base64::engine::general_purpose::STANDARD.encode(mask.octets()),
        IpAddr::V6(mask) => base64::engine::general_purpose::STANDARD.encode(mask.octets()),
    };
    Some(json!({
        "Interface": interface.filter(|i| i.is_u64()),
        "Address": {"IP": net.addr(), "Mask": mask},
        "Gateway": gateway.and_then(Value::as_str).unwrap_or_default(),
    }))
}

/// Answer to an [`AddEvent`] with `decide`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddAnswer {
    /// What was decided and done.
    pub action: Action,
    /// Why.
    pub reason: String,
}

/// A failure: what the agent answers with a status other than 200, and what the plugin prints as a CNI error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// CNI error code, see [`code`].
    pub code: u32,
    /// What a person must know, first: the kubelet shows only the first line.
    pub message: String,
    /// The rest.
    #[serde(default)]
    pub details: String,
}

impl Failure {
    /// A failure without details.
    pub fn new(code: u32, message: impl std::fmt::Display) -> Self {
        Failure { code, message: message.to_string(), details: String::new() }
    }
}

/// Error codes: CNI specification 1.1, section "Error", and ours from 100.
pub mod code {
    use crate::error::{Error, Kind};

    /// The configuration's `cniVersion` does not know this verb, or is not known itself.
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    /// A `CNI_` variable is missing or wrong.
    pub const INVALID_ENVIRONMENT: u32 = 4;
    /// Reading or writing failed.
    pub const IO: u32 = 5;
    /// The network configuration is not JSON.
    pub const DECODE: u32 = 6;
    /// The network configuration has a value that is not allowed.
    pub const INVALID_CONFIG: u32 = 7;
    /// Nothing is decided yet: the runtime comes again.
    pub const TRY_AGAIN_LATER: u32 = 11;
    /// STATUS: no pod can be served.
    pub const NOT_AVAILABLE: u32 = 50;
    /// The agent refused, or found the pod not as it should be.
    pub const AGENT_REFUSED: u32 = 100;
    /// The pod's rules could not be put in place.
    pub const RULES_FAILED: u32 = 101;

    /// The code for rules that could not be put in place: a namespace that is the host's is the caller's mistake.
    pub(crate) fn of_rules(e: &Error) -> u32 {
        if e.kind() == Kind::HostNetns { INVALID_ENVIRONMENT } else { RULES_FAILED }
    }
}

/// Body of `POST /cmddel` and `/cmdcheck`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
pub struct AttachmentEvent {
    /// Pod name.
    pub pod_name: String,
    /// Pod namespace.
    pub pod_namespace: String,
    /// Pod uid.
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    /// Sandbox id.
    #[serde(rename = "ContainerID")]
    pub container_id: String,
    /// Interface inside (`CNI_IFNAME`).
    #[serde(rename = "IfName")]
    pub interface: String,
    /// Path of the namespace file on the host; empty on a late DEL.
    pub netns: String,
}

/// Body of `POST /gc`: the attachments that are still valid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
pub struct GcEvent {
    /// Sandbox ids; null says the same as an empty list.
    #[serde(rename = "ContainerIDs", deserialize_with = "null_is_empty")]
    pub container_ids: Vec<String>,
}

/// What the plugin reads of the answer to `GET /status`.
#[derive(Debug, Clone, Deserialize)]
pub struct Health {
    /// Whether the agent is ready.
    pub ready: bool,
    /// Why it is not.
    pub reasons: Vec<String>,
    /// One for each connected ztunnel.
    pub ztunnels: Vec<IgnoredAny>,
}

fn null_is_empty<'de, D: serde::Deserializer<'de>>(list: D) -> Result<Vec<String>, D::Error> {
    Option::deserialize(list).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_leniently() {
        let check = |ips: &str, expected: &[&str]| {
            let body = format!(r#"{{"Netns":"/x","PodName":"a","PodNamespace":"b","IPs":{ips}}}"#);
            let event: AddEvent = serde_json::from_str(&body).unwrap();
            let expected: Vec<IpAddr> = expected.iter().map(|a| a.parse().unwrap()).collect();
            assert_eq!(event.addresses(), expected, "{ips}");
        };
        check(
            r#"[{"Interface":0,"Address":{"IP":"10.244.1.5","Mask":"////AA=="},"Gateway":"10.244.1.1"}]"#,
            &["10.244.1.5"],
        );
        check(
            r#"[{"Interface":null,"Address":{"IP":"fd00::5","Mask":"//////////8AAAAAAAAAAA=="},"Gateway":""}]"#,
            &["fd00::5"],
        );
        check(
            r#"[{"Address":{"IP":"::ffff:10.0.0.1","Mask":null}},{"Address":{"IP":"10.0.0.2"}}]"#,
            &["10.0.0.1", "10.0.0.2"],
        );
        check(r#"[{"Interface":null,"Address":{"IP":"","Mask":null},"Gateway":""}]"#, &[]);
        check(
            r#"[null,1,"x",[],{},{"Address":null},{"Address":{"IP":null}},{"Address":{"IP":"no"}},{"Address":{"IP":"0.0.0.0"}}]"#,
            &[],
        );
        check("null", &[]);
        check("{}", &[]);
        let bare: AddEvent = serde_json::from_str("{}").unwrap();
        assert_eq!((bare.addresses(), bare.decide), (vec![], false));
    }

    #[test]
    fn a_result_gives_what_istios_plugin_sends() {
        let check = |result: &str, expected: &str| {
            let result: Value = serde_json::from_str(result).unwrap();
            assert_eq!(ips_of_result(Some(&result)), serde_json::from_str::<Value>(expected).unwrap(), "{result}");
        };
        check(
            r#"{"ips":[{"address":"10.244.1.5/24","gateway":"10.244.1.1","interface":0},{"address":"fd23:1::32/64"}]}"#,
            r#"[{"Interface":0,"Address":{"IP":"10.244.1.5","Mask":"////AA=="},"Gateway":"10.244.1.1"},
                {"Interface":null,"Address":{"IP":"fd23:1::32","Mask":"//////////8AAAAAAAAAAA=="},"Gateway":""}]"#,
        );
        check(
            r#"{"ip4":{"ip":"10.0.0.9/32"},"ip6":{"ip":"fd00::9/128","gateway":"fd00::1"}}"#,
            r#"[{"Interface":null,"Address":{"IP":"10.0.0.9","Mask":"/////w=="},"Gateway":""},
                {"Interface":null,"Address":{"IP":"fd00::9","Mask":"/////////////////////w=="},"Gateway":"fd00::1"}]"#,
        );
        check(r#"{"ips":[{"address":7},{"address":"garbage"},null],"ip4":null,"ip6":[]}"#, "[]");
        assert_eq!(ips_of_result(None), Value::Null);
    }

    #[test]
    fn an_event_without_our_fields_is_exactly_istios_body() {
        let event =
            AddEvent { netns: "/n".into(), pod_name: "p".into(), pod_namespace: "s".into(), ..Default::default() };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(text, r#"{"Netns":"/n","PodName":"p","PodNamespace":"s","IPs":null}"#);
    }
}
