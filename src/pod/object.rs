//! Kubernetes objects as JSON or YAML text, decoded into [`Pod`] and [`Namespace`].
//!
//! JSON is decoded straight into small structs: what has no meaning here is skipped without being built. YAML goes
//! through the same decoder, as JSON, the way Kubernetes' own tools read it.

use super::failed_init::{ContainerStatus, FailedInit};
use super::field;
use super::types::{CONFIG_HASH, Namespace, Phase, Pod, PodName, Proxy, StringMap};
use super::yaml;
use crate::error::{Context, Result};
use crate::invalid;
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

/// What a file or a list holds, in order. Kinds other than Pod and Namespace are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Objects {
    /// Pods.
    pub pods: Vec<Pod>,
    /// Namespaces.
    pub namespaces: Vec<Namespace>,
}

impl Objects {
    /// The only pod, with the labels of its namespace.
    pub fn only_pod(&self) -> Result<(&Pod, StringMap)> {
        let [pod] = self.pods.as_slice() else {
            let names = self.pods.iter().map(|pod| pod.name.to_string()).collect::<Vec<_>>().join(", ");
            return Err(match self.pods.len() {
                0 if self.namespaces.is_empty() => invalid!("one Pod is needed, and there is none (kind: Pod)"),
                0 => invalid!("one Pod is needed, and there are only Namespaces"),
                n => invalid!("one Pod is needed, and there are {n}: {names}"),
            });
        };
        let namespace = self.namespaces.iter().find(|namespace| namespace.name == pod.name.namespace);
        Ok((pod, namespace.map(|namespace| namespace.labels.clone()).unwrap_or_default()))
    }
}

/// Decodes one JSON object, a `List`, or one or several YAML documents. A pod without namespace is in `default`, a
/// pod without uid gets one derived from namespace and name, equal at every reading. Fails with `Invalid`.
pub fn decode(text: &str) -> Result<Objects> {
    let mut objects = Objects::default();
    if text.trim_start().starts_with('{') {
        for document in serde_json::Deserializer::from_str(text).into_iter::<&RawValue>() {
            objects.add(document.map_err(|e| invalid!("not a JSON object: {e}"))?)?;
        }
    } else {
        for document in yaml::documents(text).context("not YAML")? {
            let json = serde_json::value::to_raw_value(&document).map_err(|e| invalid!("not a YAML object: {e}"))?;
            objects.add(&json)?;
        }
    }
    Ok(objects)
}

/// Decodes one Pod object.
pub fn decode_pod(json: &str) -> Result<Pod> {
    let raw: RawPod =
        serde_json::from_str(json).map_err(|e| invalid!("{}: {}", title("Pod", json), field::describe(&e, json)))?;
    raw.into_pod()
}

/// Decodes one Namespace object.
pub fn decode_namespace(json: &str) -> Result<Namespace> {
    let raw: RawNamespace = serde_json::from_str(json)
        .map_err(|e| invalid!("{}: {}", title("Namespace", json), field::describe(&e, json)))?;
    if raw.metadata.name.is_empty() {
        return Err(invalid!("a Namespace has no metadata.name"));
    }
    Ok(Namespace { name: raw.metadata.name, labels: raw.metadata.labels })
}

/// An object as the API server gives it: with a version, which is opaque except that equal versions are the same state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned<T> {
    /// `metadata.resourceVersion`.
    pub version: String,
    /// The object.
    pub object: T,
}

impl<'de> Deserialize<'de> for Versioned<Pod> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let mut raw = RawPod::deserialize(d)?;
        let version = raw.metadata.take_version()?;
        let mut object = raw.into_pod().map_err(D::Error::custom)?;
        if let Some(failed) = &mut object.failed_init {
            failed.version.clone_from(&version);
        }
        Ok(Versioned { version, object })
    }
}

impl<'de> Deserialize<'de> for Versioned<Namespace> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let mut raw = RawNamespace::deserialize(d)?;
        let version = raw.metadata.take_version()?;
        Ok(Versioned { version, object: Namespace { name: raw.metadata.name, labels: raw.metadata.labels } })
    }
}

/// Which object it is, and in which version, whatever else it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.namespace`; empty where there is none.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.resourceVersion`.
    pub version: String,
}

impl Identity {
    /// Reads it from an object's JSON; `None` where the object does not say.
    pub fn of(json: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Object {
            metadata: Names,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Names {
            uid: String,
            #[serde(default)]
            namespace: String,
            name: String,
            resource_version: String,
        }
        let Names { uid, namespace, name, resource_version } = serde_json::from_str::<Object>(json).ok()?.metadata;
        let whole = [&uid, &name, &resource_version].iter().all(|part| !part.is_empty());
        whole.then_some(Identity { uid, namespace, name, version: resource_version })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

impl Metadata {
    /// Fails for an object that no API server would send.
    fn take_version<E: Error>(&mut self) -> std::result::Result<String, E> {
        if self.name.is_empty() || self.uid.is_empty() || self.resource_version.is_empty() {
            return Err(E::custom("an object lacks metadata.name, uid or resourceVersion"));
        }
        Ok(std::mem::take(&mut self.resource_version))
    }
}

impl Objects {
    fn add(&mut self, json: &RawValue) -> Result<()> {
        if json.get() == "null" {
            return Ok(());
        }
        let json = json.get();
        let not_one = |e| invalid!("not a Kubernetes object: {}", field::describe(&e, json));
        let head: Head<'_> = serde_json::from_str(json).map_err(not_one)?;
        match head.kind.as_deref() {
            Some("Pod") => self.pods.push(decode_pod(json)?),
            Some("Namespace") => self.namespaces.push(decode_namespace(json)?),
            Some("List") => {
                for (i, item) in head.items.into_iter().flatten().enumerate() {
                    self.add(item).with_context(|| format!("items[{i}]"))?;
                }
            }
            Some(_) => {}
            None => return Err(invalid!("an object has no kind")),
        }
        Ok(())
    }
}

/// Names an object that did not decode, as far as it can be named.
fn title(kind: &str, json: &str) -> String {
    #[derive(Deserialize)]
    struct Named {
        metadata: Names,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Names {
        name: String,
        namespace: String,
    }
    match serde_json::from_str::<Named>(json) {
        Ok(Named { metadata }) if !metadata.name.is_empty() => {
            let namespace = if metadata.namespace.is_empty() { "default" } else { &metadata.namespace };
            format!("{kind} {namespace}/{}", metadata.name)
        }
        _ => kind.to_owned(),
    }
}

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default, deserialize_with = "or_default")]
    name: String,
    #[serde(default, deserialize_with = "or_default")]
    namespace: String,
    #[serde(default, deserialize_with = "or_default")]
    uid: String,
    #[serde(default, rename = "resourceVersion", deserialize_with = "or_default")]
    resource_version: String,
    #[serde(default, deserialize_with = "or_default")]
    labels: StringMap,
    #[serde(default, deserialize_with = "meaningful")]
    annotations: Annotations,
    #[serde(default, rename = "deletionTimestamp")]
    deletion_timestamp: Option<IgnoredAny>,
}

#[derive(Default)]
struct Annotations {
    kept: StringMap,
    /// Keys of the others.
    other: Vec<String>,
}

#[derive(Deserialize)]
struct RawNamespace {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct RawPod {
    metadata: Metadata,
    #[serde(default, deserialize_with = "or_default")]
    spec: Spec,
    #[serde(default, deserialize_with = "or_default")]
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    #[serde(deserialize_with = "or_default")]
    service_account_name: String,
    #[serde(deserialize_with = "or_default")]
    host_network: bool,
    host_users: Option<bool>,
    #[serde(default, deserialize_with = "or_default")]
    runtime_class_name: String,
    #[serde(deserialize_with = "or_default")]
    restart_policy: String,
    #[serde(deserialize_with = "or_default")]
    containers: Vec<Container>,
    #[serde(deserialize_with = "or_default")]
    init_containers: Vec<Container>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    #[serde(deserialize_with = "or_default")]
    name: String,
    #[serde(deserialize_with = "or_default")]
    args: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    env: Vec<Variable>,
    #[serde(deserialize_with = "or_default")]
    security_context: SecurityContext,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Variable {
    name: String,
    #[serde(deserialize_with = "or_default")]
    value: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct SecurityContext {
    run_as_user: Option<u32>,
    run_as_group: Option<u32>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    #[serde(deserialize_with = "or_default")]
    phase: String,
    #[serde(rename = "podIP", deserialize_with = "or_default")]
    pod_ip: String,
    #[serde(rename = "podIPs", deserialize_with = "or_default")]
    pod_ips: Vec<PodIp>,
    #[serde(rename = "initContainerStatuses", deserialize_with = "or_default")]
    init_containers: Vec<ContainerStatus>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodIp {
    ip: String,
}

impl RawPod {
    fn into_pod(self) -> Result<Pod> {
        let RawPod { metadata, spec, status } = self;
        let namespace = if metadata.namespace.is_empty() { "default".to_owned() } else { metadata.namespace };
        if metadata.name.is_empty() {
            return Err(invalid!("a Pod in namespace {namespace} has no metadata.name"));
        }
        let name = PodName { namespace, name: metadata.name };
        let ips = status.ips().with_context(|| format!("Pod {name}"))?;
        let phase =
            if matches!(status.phase.as_str(), "Succeeded" | "Failed") { Phase::Finished } else { Phase::Active };
        let failures: Vec<_> = status.init_containers.into_iter().flat_map(ContainerStatus::failures).collect();
        let failed_init = (!failures.is_empty()).then(|| {
            Box::new(FailedInit {
                version: String::new(),
                other_annotations: metadata.annotations.other,
                restart_policy: spec.restart_policy,
                phase: status.phase,
                failures,
            })
        });
        let containers = || spec.init_containers.iter().chain(&spec.containers);
        Ok(Pod {
            uid: if metadata.uid.is_empty() { derived_uid(&name) } else { metadata.uid },
            ips,
            labels: metadata.labels,
            annotations: metadata.annotations.kept,
            phase,
            host_network: spec.host_network,
            host_users: spec.host_users.unwrap_or(true),
            runtime_class: spec.runtime_class_name,
            being_deleted: metadata.deletion_timestamp.is_some(),
            proxy: containers().find(|c| c.name == "istio-proxy").map(|c| Box::new(c.proxy())),
            has_istio_init: containers().any(|c| c.name == "istio-init"),
            failed_init,
            service_account: match spec.service_account_name {
                unset if unset.is_empty() => "default".to_owned(),
                set => set,
            },
            name,
        })
    }
}

impl Status {
    fn ips(&self) -> Result<Vec<IpAddr>> {
        let all: Vec<&str> = self.pod_ips.iter().map(|p| p.ip.as_str()).filter(|ip| !ip.is_empty()).collect();
        let texts = match self.pod_ip.as_str() {
            single if all.is_empty() && !single.is_empty() => vec![single],
            _ => all,
        };
        let parse = |ip: &str| address(ip).ok_or_else(|| invalid!("status.podIPs: {ip:?} is not an IP address"));
        texts.into_iter().map(parse).collect()
    }
}

/// An address as Kubernetes reads it: zeros may lead the numbers of an IPv4 address, which stays decimal.
fn address(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    let (front, v4) = text.rsplit_once(':').map_or(("", text), |(front, v4)| (front, v4));
    let number = |part: &str| match part.trim_start_matches('0') {
        "" if part.is_empty() => None,
        "" => Some("0".to_owned()),
        rest => Some(rest.to_owned()),
    };
    let v4 = v4.split('.').map(number).collect::<Option<Vec<_>>>()?.join(".");
    let text = if front.is_empty() { v4 } else { format!("{front}:{v4}") };
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

impl Container {
    fn proxy(&self) -> Proxy {
        let known = self.env.iter().filter(|v| Proxy::ENV.contains(&v.name.as_str()));
        Proxy {
            run_as_user: self.security_context.run_as_user,
            run_as_group: self.security_context.run_as_group,
            args: self.args.iter().take(2).cloned().collect(),
            env: known.map(|v| (v.name.clone(), v.value.clone())).collect(),
        }
    }
}

/// A UUID (version 8, RFC 9562) made of the FNV-1a hash of `namespace/name`.
fn derived_uid(name: &PodName) -> String {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = name.to_string().bytes().fold(OFFSET, |h, byte| (h ^ u128::from(byte)).wrapping_mul(PRIME));
    let versioned = hash & !(0xf << 76) & !(0x3 << 62) | (0x8 << 76) | (0x2 << 62);
    let hex = format!("{versioned:032x}");
    let (a, rest) = hex.split_at(8);
    let (b, rest) = rest.split_at(4);
    let (c, rest) = rest.split_at(4);
    let (d, e) = rest.split_at(4);
    format!("{a}-{b}-{c}-{d}-{e}")
}

/// `null` counts as absent, as everywhere in Kubernetes.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(d: D) -> std::result::Result<T, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

/// The domains whose annotations have a meaning here, some 20 in all.
const DOMAINS: [&str; 4] = ["istio.io", "ambient.istio.io", "sidecar.istio.io", "traffic.sidecar.istio.io"];

/// The most of them that a pod may have: they are looked at at every step of it.
const MOST_ANNOTATIONS: usize = 64;

/// The longest value of an annotation that is kept: some 900 address ranges, or 2,500 ports. It is read again at every
/// step of its pod.
const LONGEST_ANNOTATION: usize = 16 << 10;

/// The mark of a value that was cut. It is part of no value that is allowed, so that a list without its end is refused.
const CUT: char = '…';

fn bounded(mut value: String) -> String {
    if value.len() > LONGEST_ANNOTATION {
        let boundary = |end: &usize| value.is_char_boundary(*end);
        value.truncate((0..=LONGEST_ANNOTATION).rev().find(boundary).unwrap_or(0));
        value.push(CUT);
        value.shrink_to_fit();
    }
    value
}

/// Keeps only the annotations with a meaning here; the values of the others are skipped without being built.
fn meaningful<'de, D: Deserializer<'de>>(d: D) -> std::result::Result<Annotations, D::Error> {
    struct Filtering;
    impl<'de> Visitor<'de> for Filtering {
        type Value = Annotations;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map of strings")
        }
        fn visit_unit<E>(self) -> std::result::Result<Annotations, E> {
            Ok(Annotations::default())
        }
        fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> std::result::Result<Annotations, M::Error> {
            let (mut kept, mut other) = (Vec::new(), Vec::new());
            while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                let domain = key.split_once('/').map_or("", |(domain, _)| domain);
                if DOMAINS.contains(&domain) || key == CONFIG_HASH {
                    if kept.len() == MOST_ANNOTATIONS {
                        let domains = DOMAINS.join(", ");
                        return Err(Error::custom(format_args!(
                            "more than {MOST_ANNOTATIONS} annotations of {domains}"
                        )));
                    }
                    kept.push((key.into_owned(), bounded(map.next_value()?)));
                } else {
                    map.next_value::<IgnoredAny>()?;
                    other.push(key.into_owned());
                }
            }
            Ok(Annotations { kept: kept.into_iter().collect(), other })
        }
    }
    d.deserialize_any(Filtering)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> StringMap {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn pod(namespace: &str, name: &str, uid: &str) -> Pod {
        Pod {
            uid: uid.to_owned(),
            name: PodName { namespace: namespace.to_owned(), name: name.to_owned() },
            service_account: "default".to_owned(),
            labels: StringMap::new(),
            annotations: StringMap::new(),
            ips: Vec::new(),
            phase: Phase::Active,
            host_network: false,
            host_users: true,
            runtime_class: String::new(),
            being_deleted: false,
            proxy: None,
            has_istio_init: false,
            failed_init: None,
        }
    }

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|ip| ip.parse().unwrap()).collect()
    }

    #[test]
    fn addresses_are_read_as_kubernetes_reads_them() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(address(text), expected.map(|ip| ip.parse().unwrap()), "{text}");
        };
        check("10.0.0.1", Some("10.0.0.1"));
        check("010.0.00.001", Some("10.0.0.1"));
        check("fd00::1", Some("fd00::1"));
        check("::ffff:10.0.0.1", Some("10.0.0.1"));
        check("::ffff:010.000.0.1", Some("10.0.0.1"));
        for bad in ["", "10.0.0", "10.0.0.0x1", "10..0.1", "010.0.0.256", "nonsense", "+1.0.0.1", "0000:", "10.0.0.1:"]
        {
            check(bad, None);
        }
    }

    #[test]
    fn a_pod_as_the_api_serves_it() {
        let got = decode(include_str!("../../test-fixtures/pod/api-pod.json")).unwrap();
        let want = Pod {
            service_account: "web".to_owned(),
            labels: map(&[("app", "web-2"), ("istio.io/dataplane-mode", "ambient")]),
            annotations: map(&[
                ("ambient.istio.io/redirection", "enabled"),
                ("istio.io/reroute-virtual-interfaces", "net1"),
            ]),
            ips: ips(&["10.0.0.7", "10.0.0.8", "fd00::7"]),
            being_deleted: true,
            ..pod("team-a", "web-2", "f6796c87-6a57-40b3-90b4-d346adfc8390")
        };
        assert_eq!(got, Objects { pods: vec![want], namespaces: vec![] });
    }

    #[test]
    fn a_list_with_a_sidecar_and_another_kind() {
        let got = decode(include_str!("../../test-fixtures/pod/list.json")).unwrap();
        let proxy = Proxy {
            run_as_user: Some(1337),
            run_as_group: Some(1338),
            args: vec!["proxy".to_owned(), "sidecar".to_owned()],
            env: map(&[("INVALID_DROP", ""), ("ISTIO_META_DNS_CAPTURE", "true")]),
        };
        let want = Pod {
            annotations: map(&[("sidecar.istio.io/status", "{\"initContainers\":[]}")]),
            ips: ips(&["10.0.0.9"]),
            phase: Phase::Finished,
            proxy: Some(Box::new(proxy)),
            ..pod("legacy", "s", "0b9ee37d-3f2c-4d1c-8c4e-0d6d3c3a1f10")
        };
        let namespace = Namespace { name: "legacy".to_owned(), labels: map(&[("istio-injection", "enabled")]) };
        assert_eq!(got, Objects { pods: vec![want], namespaces: vec![namespace] });
    }

    #[test]
    fn yaml_documents() {
        let got = decode(include_str!("../../test-fixtures/pod/documents.yaml")).unwrap();
        let mesh = map(&[("istio.io/dataplane-mode", "ambient")]);
        let short = Pod {
            labels: mesh.clone(),
            host_network: true,
            ..pod("default", "short", "ff89c665-8140-8ffb-93d3-34a35e11662b")
        };
        let fixed = Pod {
            annotations: map(&[("kubernetes.io/config.hash", "2d3c7b0f5a5f4c3e9d1b8a7f6e5d4c3b")]),
            ips: ips(&["10.0.0.5"]),
            phase: Phase::Finished,
            ..pod("team-a", "static", "1")
        };
        assert_eq!(fixed.runtime_uid(), "2d3c7b0f5a5f4c3e9d1b8a7f6e5d4c3b");
        assert_eq!(short.runtime_uid(), short.uid);
        let namespace = Namespace { name: "team-a".to_owned(), labels: mesh };
        assert_eq!(got, Objects { pods: vec![short, fixed], namespaces: vec![namespace] });
    }

    #[test]
    fn a_pod_whose_init_container_failed() {
        let failing = |text: &str| {
            let text = format!(
                r#"{{"metadata":{{"name":"a","namespace":"b","uid":"u","resourceVersion":"7","annotations":{{"x/y":"",
                "sidecar.istio.io/status":"{{}}"}}}},"spec":{{"restartPolicy":"Never"}},"status":{{"phase":"Failed",
                "initContainerStatuses":[{{"name":"v","state":{{"terminated":{{"exitCode":{text}}}}}}}]}}}}"#
            );
            serde_json::from_str::<Versioned<Pod>>(&text).unwrap().object
        };
        let pod = failing("126");
        let failed = pod.failed_init.unwrap();
        assert_eq!((failed.version.as_str(), failed.other_annotations.as_slice()), ("7", &["x/y".to_owned()][..]));
        assert_eq!((failed.restart_policy.as_str(), failed.phase.as_str()), ("Never", "Failed"));
        assert_eq!((failed.failures[0].container.as_str(), failed.failures[0].exit_code), ("v", 126));
        assert!(pod.annotations.contains_key("sidecar.istio.io/status") && !pod.annotations.contains_key("x/y"));
        assert_eq!(failing("0").failed_init, None);
    }

    #[test]
    fn derived_uids_are_uuids_that_tell_pods_apart() {
        let uid = |ns: &str, name: &str| derived_uid(&PodName { namespace: ns.to_owned(), name: name.to_owned() });
        assert_eq!(uid("a", "b"), uid("a", "b"));
        assert_ne!(uid("a", "b"), uid("a", "c"));
        assert_ne!(uid("a", "b"), uid("b", "b"));
        let text = uid("a", "b");
        assert_eq!(text.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(text[14..].starts_with('8') && text[19..].starts_with(['8', '9', 'a', 'b']), "{text}");
    }

    #[test]
    fn what_cannot_be_decoded_says_what_and_where() {
        let check = |text: &str, want: &str| {
            let error = decode(text).unwrap_err();
            assert_eq!(error.kind(), crate::error::Kind::Invalid, "{text}");
            assert!(error.to_string().contains(want), "{text}: {error}");
            assert!(!error.to_string().contains('\n'), "{text}: {error}");
        };
        check("{\"kind\":\"Pod\",\"metadata\":{\"namespace\":\"a\"}}", "a Pod in namespace a has no metadata.name");
        check("kind: Namespace\nmetadata: {}", "a Namespace has no metadata.name");
        check("metadata: {name: a}", "an object has no kind");
        check("kind: [", "not YAML");
        check("just a text", "not a Kubernetes object");
        check("{\"kind\":\"Pod\",", "not a JSON object");
        let not_text = "Pod default/a: metadata.labels.b: invalid type: boolean `true`, expected a string";
        check("kind: Pod\nmetadata: {name: a, labels: {b: true}}", not_text);
        check(
            "{\"kind\":\"Node\"} {\"kind\":\"Pod\",\n\"metadata\":{\"name\":\"a\",\"labels\":{\"b\":true}}}",
            not_text,
        );
        check("kind: 1", "not a Kubernetes object: kind: invalid type: integer `1`, expected a string");
        check("kind: Pod\nmetadata: {name: a}\nstatus: {podIP: x}", "Pod default/a: status.podIPs: \"x\" is not an IP");
        check("{\"kind\":\"List\",\"items\":[{\"kind\":\"Node\"},{\"kind\":\"Pod\"}]}", "items[1]: ");
    }

    #[test]
    fn nothing_is_no_objects() {
        for text in ["", "  \n", "---\n---\n", "# nothing\n", "null"] {
            assert_eq!(decode(text).unwrap(), Objects::default(), "{text:?}");
        }
    }

    #[test]
    fn a_truncated_file_never_panics() {
        for text in [
            include_str!("../../test-fixtures/pod/api-pod.json"),
            include_str!("../../test-fixtures/pod/list.json"),
            include_str!("../../test-fixtures/pod/documents.yaml"),
        ] {
            for end in 0..text.len() {
                let decoded = decode(&text[..end]);
                assert!(!text.starts_with('{') || end == 0 || end + 1 >= text.len() || decoded.is_err(), "{end}");
            }
        }
    }

    #[test]
    fn annotations_are_bounded() {
        let with = |annotations: serde_json::Map<String, serde_json::Value>| {
            let pod = serde_json::json!({"kind": "Pod", "metadata": {"name": "a", "annotations": annotations}});
            decode_pod(&pod.to_string())
        };
        let long = "ä".repeat(20_000);
        let pod = with([("istio.io/x".to_owned(), long.into())].into_iter().collect()).unwrap();
        let kept = pod.annotations.get("istio.io/x").unwrap();
        assert!(kept.len() <= LONGEST_ANNOTATION + CUT.len_utf8() && kept.ends_with("ä…"));
        let many = |domain: &str, number: usize| (0..number).map(|n| (format!("{domain}/{n}"), "".into())).collect();
        assert_eq!(with(many("istio.io", 64)).unwrap().annotations.len(), 64);
        let text = with(many("sidecar.istio.io", 65)).unwrap_err().to_string();
        assert!(text.contains("more than 64 annotations of istio.io"), "{text}");
        assert!(with(many("example.com", 20_000)).unwrap().annotations.is_empty());
    }
}
