//! Pods and namespaces as people write them, and what follows from what is in them.

use super::{assert_restore, text};
use ferrule::config::value::enablement_selectors;
use ferrule::pod::object::{self, Objects, decode_pod};
use ferrule::pod::overrides::{self, is_interface_name};
use ferrule::pod::redirection;
use ferrule::pod::selector::EnablementSelectors;
use ferrule::pod::types::{Pod, StringMap};
use ferrule::rules::family::Family;
use ferrule::rules::render::restore;
use ferrule::rules::{inpod, sidecar};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Objects in JSON or YAML: the same at every reading, each with a name, a uid and plain addresses.
pub fn objects(input: &[u8]) {
    let Some(input) = text(input) else { return };
    let Ok(objects) = object::decode(input) else { return };
    assert_eq!(object::decode(input).unwrap(), objects);
    for Pod { uid, name, ips, .. } in &objects.pods {
        assert!(!uid.is_empty() && !name.name.is_empty() && !name.namespace.is_empty(), "{name}");
        assert!(ips.iter().all(|ip| ip.to_canonical() == *ip), "{ips:?}");
    }
    assert!(objects.namespaces.iter().all(|namespace| !namespace.name.is_empty()));
    let listed = format!(r#"{{"kind":"List","items":[{input},{input}]}}"#);
    if input.trim_start().starts_with('{') && serde_json::from_str::<serde_json::Value>(input).is_ok() {
        let Objects { pods, namespaces } = object::decode(&listed).unwrap();
        assert_eq!(pods, [&objects.pods[..], &objects.pods[..]].concat());
        assert_eq!(namespaces, [&objects.namespaces[..], &objects.namespaces[..]].concat());
    }
}

/// Enablement selectors: what the plugin is told as JSON selects the same as the YAML the agent was told.
pub fn selectors(input: &[u8]) {
    let Some(yaml) = text(input) else { return };
    let parsed = EnablementSelectors::parse(yaml);
    match enablement_selectors(yaml) {
        Ok((selectors, json)) => {
            assert_eq!(parsed.as_ref().ok(), Some(&selectors));
            let again = EnablementSelectors::parse(&json.to_string());
            assert_eq!(again.map_err(|e| e.to_string()), Ok(selectors), "{json}");
        }
        Err(expected) => assert!(!expected.contains('\n'), "{expected:?}"),
    }
}

/// Annotations, `key=value` one a line: whatever is in them, what is loaded is nothing but rules.
pub fn rules(input: &[u8]) {
    let Some(input) = text(input) else { return };
    let pairs = input.split('\n').filter_map(|line| line.split_once('='));
    let annotations: StringMap = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let asked = overrides::parse(&annotations);
    assert!(asked.reroute_interfaces.iter().all(|name| is_interface_name(name)));
    let settings = inpod::Settings {
        dns_capture: asked.dns_capture.unwrap_or_default(),
        ingress_mode: asked.ingress_mode,
        reroute_interfaces: asked.reroute_interfaces,
        ipv6: true,
        probe_v4: Ipv4Addr::LOCALHOST,
        probe_v6: Ipv6Addr::LOCALHOST,
    };
    let proxy = r#"{"name":"istio-proxy","env":[{"name":"ISTIO_META_DNS_CAPTURE","value":"true"}]}"#;
    let json = format!(r#"{{"kind":"Pod","metadata":{{"name":"p"}},"spec":{{"containers":[{proxy}]}}}}"#);
    let pod = Pod { annotations, ..decode_pod(&json).unwrap() };
    let redirection = redirection::of(&pod);
    for family in [Family::V4, Family::V6] {
        assert_restore(&restore(&inpod::rules(&settings, family)));
        if let Ok(redirection) = &redirection {
            assert_restore(&restore(&sidecar::rules(&redirection.settings, family)));
        }
    }
}
