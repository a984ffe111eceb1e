//! What a pod with a sidecar asks for by its annotations and by the container `istio-proxy`, as settings of the rules.
//!
//! A bad annotation is an error: the pod must not start with traffic outside the mesh that its owner wanted inside, or
//! the reverse. An annotation that is present but empty differs from an absent one.

use super::overrides::{MOST_INTERFACES, REROUTE_VIRTUAL_INTERFACES, is_interface_name, parse_bool};
use super::strings::Quoted;
use super::types::{Pod, Proxy, StringMap};
use crate::error::Result;
use crate::invalid;
use crate::rules::sidecar::{Dns, Interception, Only, Settings};
use ipnet::IpNet;
use std::fmt::Display;
use std::net::IpAddr;
use std::str::FromStr;

/// How inbound traffic reaches Envoy: `REDIRECT` or `TPROXY`.
pub const INTERCEPTION_MODE: &str = "sidecar.istio.io/interceptionMode";
/// Destinations that are captured: CIDRs, or `*`.
pub const INCLUDE_OUTBOUND_IP_RANGES: &str = "traffic.sidecar.istio.io/includeOutboundIPRanges";
/// Destinations that are not.
pub const EXCLUDE_OUTBOUND_IP_RANGES: &str = "traffic.sidecar.istio.io/excludeOutboundIPRanges";
/// Inbound ports that are captured, or `*`.
pub const INCLUDE_INBOUND_PORTS: &str = "traffic.sidecar.istio.io/includeInboundPorts";
/// Inbound ports that are not.
pub const EXCLUDE_INBOUND_PORTS: &str = "traffic.sidecar.istio.io/excludeInboundPorts";
/// Destination ports that are captured whatever the destination.
pub const INCLUDE_OUTBOUND_PORTS: &str = "traffic.sidecar.istio.io/includeOutboundPorts";
/// Destination ports that are not captured.
pub const EXCLUDE_OUTBOUND_PORTS: &str = "traffic.sidecar.istio.io/excludeOutboundPorts";
/// Interfaces that are left alone.
pub const EXCLUDE_INTERFACES: &str = "traffic.sidecar.istio.io/excludeInterfaces";
/// Older name of [`REROUTE_VIRTUAL_INTERFACES`].
pub const KUBEVIRT_INTERFACES: &str = "traffic.sidecar.istio.io/kubevirtInterfaces";

/// The sidecar's own inbound ports (merged metrics, health, Envoy's metrics), which no peer reaches through Envoy.
const PROXY_INBOUND_PORTS: [u16; 3] = [15020, 15021, 15090];
/// Excluded from outbound capture unless the pod says otherwise: the agent's health port of peers.
const EXCLUDED_OUTBOUND_PORTS: [u16; 1] = [15020];

/// What is programmed for a pod with a sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirection {
    /// Of the rules.
    pub settings: Settings,
    /// IPv6 rules are made as soon as any of the pod's addresses is IPv6, not only for a first one. Native nf_tables
    /// does so without it.
    pub dual_stack: bool,
    /// What was wrong with `istio-proxy`'s variables, one sentence each.
    pub warnings: Vec<String>,
}

impl Redirection {
    /// Whether IPv6 rules are made for a pod with these addresses. `native`: in tables of nf_tables of our own. There
    /// Istio's tables are of the family inet, so that they redirect IPv6 whatever address comes first.
    pub fn ipv6(&self, ips: &[IpAddr], native: bool) -> bool {
        let mut global = ips.iter().filter(|ip| is_global(ip));
        if self.dual_stack || native { global.any(IpAddr::is_ipv6) } else { global.next().is_some_and(IpAddr::is_ipv6) }
    }
}

/// Reads the pod. Fails with `Invalid` on a bad annotation, naming it, its value and what is allowed.
pub fn of(pod: &Pod) -> Result<Redirection> {
    let annotations = Annotations(&pod.annotations);
    let no_proxy = Proxy::default();
    let proxy = pod.proxy.as_deref().unwrap_or(&no_proxy);
    let id = |run_as: Option<u32>| run_as.filter(|id| *id != 0).unwrap_or(1337);
    let mut warnings = Vec::new();
    let mut variable = |name: &str| {
        let Some(value) = proxy.env.get(name).filter(|value| !value.is_empty()) else { return false };
        parse_bool(value).unwrap_or_else(|| {
            warnings.push(format!(
                "variable {name} of istio-proxy: {} is not true or false; taken as false",
                Quoted(value)
            ));
            false
        })
    };
    let dns = if variable("ISTIO_META_DNS_CAPTURE") { Dns::All } else { Dns::Off };
    let (drop_invalid, dual_stack) = (variable("INVALID_DROP"), variable("ISTIO_DUAL_STACK"));

    let mut inbound_ports_excluded = annotations.ports(EXCLUDE_INBOUND_PORTS)?.unwrap_or_default();
    inbound_ports_excluded.extend(PROXY_INBOUND_PORTS);
    let reroute_interfaces = match annotations.interfaces(REROUTE_VIRTUAL_INTERFACES)? {
        Some(interfaces) => interfaces,
        None => annotations.interfaces(KUBEVIRT_INTERFACES)?.unwrap_or_default(),
    };
    let settings = Settings {
        proxy_uids: vec![id(proxy.run_as_user)],
        proxy_gids: vec![id(proxy.run_as_group)],
        interception: annotations.interception()?,
        inbound_ports: annotations.only(INCLUDE_INBOUND_PORTS, Annotations::ports)?,
        inbound_ports_excluded,
        outbound_ranges: annotations.only(INCLUDE_OUTBOUND_IP_RANGES, Annotations::ranges)?,
        outbound_ranges_excluded: annotations.ranges(EXCLUDE_OUTBOUND_IP_RANGES)?.unwrap_or_default(),
        outbound_ports: annotations.ports(INCLUDE_OUTBOUND_PORTS)?.unwrap_or_default(),
        outbound_ports_excluded: annotations
            .ports(EXCLUDE_OUTBOUND_PORTS)?
            .unwrap_or_else(|| EXCLUDED_OUTBOUND_PORTS.to_vec()),
        interfaces_excluded: annotations.interfaces(EXCLUDE_INTERFACES)?.unwrap_or_default(),
        reroute_interfaces,
        dns,
        drop_invalid,
        ..Settings::default()
    };
    Ok(Redirection { settings, dual_stack, warnings })
}

struct Annotations<'a>(&'a StringMap);

impl Annotations<'_> {
    fn interception(&self) -> Result<Interception> {
        match self.0.get(INTERCEPTION_MODE).map_or("REDIRECT", String::as_str) {
            "REDIRECT" => Ok(Interception::Redirect),
            "TPROXY" => Ok(Interception::Tproxy),
            other => Err(refused(INTERCEPTION_MODE, other, "REDIRECT or TPROXY")),
        }
    }

    /// `*` and absence are all; anything else is a list.
    fn only<T>(&self, key: &str, list: impl FnOnce(&Self, &str) -> Result<Option<Vec<T>>>) -> Result<Only<T>> {
        if self.0.get(key).is_none_or(|value| value.trim() == "*") {
            return Ok(Only::All);
        }
        Ok(Only::These(list(self, key)?.unwrap_or_default()))
    }

    fn ports(&self, key: &str) -> Result<Option<Vec<u16>>> {
        self.list(key, "ports (0 to 65535), separated by commas", |item| u16::from_str(item).ok())
    }

    fn ranges(&self, key: &str) -> Result<Option<Vec<IpNet>>> {
        self.list(key, "address ranges such as 10.0.0.0/8 or fd00::/8, separated by commas", |item| {
            IpNet::from_str(item).ok().map(|net| net.trunc())
        })
    }

    fn interfaces(&self, key: &str) -> Result<Option<Vec<String>>> {
        let allowed = format!("at most {MOST_INTERFACES} names of network interfaces, separated by commas");
        let names = self.list(key, &allowed, |item| is_interface_name(item).then(|| item.to_owned()))?;
        let too_many = names.as_ref().is_some_and(|names| names.len() > MOST_INTERFACES);
        if too_many { Err(refused(key, self.0.get(key).map_or("", String::as_str), allowed)) } else { Ok(names) }
    }

    fn list<T>(&self, key: &str, allowed: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Option<Vec<T>>> {
        let Some(value) = self.0.get(key) else { return Ok(None) };
        let items = value.split(',').map(str::trim).filter(|item| !item.is_empty());
        items.map(|item| parse(item).ok_or_else(|| refused(key, value, allowed))).collect::<Result<_>>().map(Some)
    }
}

fn refused(key: &str, value: &str, allowed: impl Display) -> crate::error::Error {
    invalid!("annotation {key}: {} is not allowed; it takes {allowed}", Quoted(value))
}

/// Neither loopback nor link-local: an address by which others reach the pod.
fn is_global(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !(v4.is_loopback() || v4.is_link_local() || v4.is_unspecified() || v4.is_multicast()),
        IpAddr::V6(v6) => !(v6.is_loopback() || v6.is_unicast_link_local() || v6.is_unspecified() || v6.is_multicast()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::object::decode_pod;

    fn pod(annotations: &[(&str, &str)], env: &[(&str, &str)]) -> Pod {
        let annotations: serde_json::Map<_, _> = annotations.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let env: Vec<_> = env.iter().map(|(k, v)| serde_json::json!({"name": k, "value": v})).collect();
        let pod = serde_json::json!({"kind": "Pod", "metadata": {"name": "a", "annotations": annotations},
            "spec": {"containers": [{"name": "istio-proxy", "env": env, "securityContext": {"runAsUser": 0, "runAsGroup": 7}}]}});
        decode_pod(&pod.to_string()).unwrap()
    }

    #[test]
    fn absent_empty_and_given_differ() {
        let absent = of(&pod(&[], &[])).unwrap().settings;
        assert_eq!(absent.inbound_ports, Only::All);
        assert_eq!(absent.outbound_ranges, Only::All);
        assert_eq!(absent.inbound_ports_excluded, [15020, 15021, 15090]);
        assert_eq!(absent.outbound_ports_excluded, [15020]);
        assert_eq!((absent.proxy_uids, absent.proxy_gids), (vec![1337], vec![7]));

        let empty = [INCLUDE_INBOUND_PORTS, INCLUDE_OUTBOUND_IP_RANGES, EXCLUDE_OUTBOUND_PORTS].map(|key| (key, ""));
        let empty = of(&pod(&empty, &[])).unwrap().settings;
        assert_eq!(empty.inbound_ports, Only::These(vec![]));
        assert_eq!(empty.outbound_ranges, Only::These(vec![]));
        assert_eq!(empty.outbound_ports_excluded, [0u16; 0]);

        let given = [
            (INCLUDE_INBOUND_PORTS, "80, 443,"),
            (EXCLUDE_INBOUND_PORTS, "9"),
            (INCLUDE_OUTBOUND_IP_RANGES, "10.1.2.3/8,fd00::1/8"),
            (INTERCEPTION_MODE, "TPROXY"),
            (KUBEVIRT_INTERFACES, "old0"),
            (REROUTE_VIRTUAL_INTERFACES, "new0"),
        ];
        let given = of(&pod(&given, &[])).unwrap().settings;
        assert_eq!(given.inbound_ports, Only::These(vec![80, 443]));
        assert_eq!(given.inbound_ports_excluded, [9, 15020, 15021, 15090]);
        let ranges = ["10.0.0.0/8", "fd00::/8"].map(|net| net.parse().unwrap());
        assert_eq!(given.outbound_ranges, Only::These(ranges.to_vec()));
        assert_eq!(given.interception, Interception::Tproxy);
        assert_eq!(given.reroute_interfaces, ["new0"]);
    }

    #[test]
    fn a_bad_annotation_is_named_with_its_value_and_what_is_allowed() {
        for (key, value) in [
            (INTERCEPTION_MODE, "redirect"),
            (INCLUDE_OUTBOUND_IP_RANGES, "10.0.0.1"),
            (EXCLUDE_OUTBOUND_IP_RANGES, "*"),
            (INCLUDE_INBOUND_PORTS, "80,http"),
            (EXCLUDE_INBOUND_PORTS, "65536"),
            (INCLUDE_OUTBOUND_PORTS, "-1"),
            (EXCLUDE_OUTBOUND_PORTS, "*"),
            (EXCLUDE_INTERFACES, "eth0/1"),
            (KUBEVIRT_INTERFACES, "sixteen-bytes-xx"),
            (REROUTE_VIRTUAL_INTERFACES, "a b"),
        ] {
            let text = of(&pod(&[(key, value)], &[])).unwrap_err().to_string();
            assert!(text.contains(key) && text.contains(&format!("{value:?}")) && text.contains("takes"), "{text}");
        }
    }

    #[test]
    fn variables_of_the_proxy() {
        let env = [("ISTIO_META_DNS_CAPTURE", "true"), ("INVALID_DROP", "1"), ("ISTIO_DUAL_STACK", "on")];
        let got = of(&pod(&[], &env)).unwrap();
        assert_eq!((got.settings.dns, got.settings.drop_invalid, got.dual_stack), (Dns::All, true, false));
        assert_eq!(
            got.warnings,
            ["variable ISTIO_DUAL_STACK of istio-proxy: \"on\" is not true or false; taken as false"]
        );
    }

    #[test]
    fn families() {
        let check = |ips: &[&str], dual_stack, want| {
            let native = |redirection: &Redirection, ips: &[IpAddr]| {
                let has_v6 = ips.iter().any(|ip| ip.is_ipv6() && is_global(ip));
                assert_eq!(redirection.ipv6(ips, true), has_v6, "{ips:?} natively");
            };
            let ips: Vec<IpAddr> = ips.iter().map(|ip| ip.parse().unwrap()).collect();
            let redirection = Redirection { settings: Settings::default(), dual_stack, warnings: vec![] };
            native(&redirection, &ips);
            assert_eq!(redirection.ipv6(&ips, false), want, "{ips:?} {dual_stack}");
        };
        check(&[], true, false);
        check(&["10.0.0.1", "fd00::1"], false, false);
        check(&["10.0.0.1", "fd00::1"], true, true);
        check(&["fd00::1", "10.0.0.1"], false, true);
        check(&["fe80::1", "10.0.0.1"], false, false);
        check(&["fe80::1", "10.0.0.1"], true, false);
    }

    #[test]
    fn long_lists_are_refused_whole_and_shown_in_part() {
        let check = |key: &str, value: &str, limit: &str| {
            let text = of(&pod(&[(key, value)], &[])).unwrap_err().to_string();
            assert!(text.contains(key) && text.contains(limit) && text.len() < 500, "{text}");
        };
        let names: String = (0..65).map(|n| format!("v{n},")).collect();
        check(EXCLUDE_INTERFACES, &names, "at most 64 names");
        // What is cut when it is read lacks its end, and nobody knows what that said.
        check(EXCLUDE_OUTBOUND_IP_RANGES, &"10.0.0.0/8,".repeat(20_000), "address ranges");
        check(EXCLUDE_INBOUND_PORTS, &"80,".repeat(20_000), "ports");
        let ranges = "10.0.0.0/8,".repeat(800);
        let given = of(&pod(&[(EXCLUDE_OUTBOUND_IP_RANGES, &ranges)], &[])).unwrap().settings;
        assert_eq!(given.outbound_ranges_excluded.len(), 800);
    }
}
