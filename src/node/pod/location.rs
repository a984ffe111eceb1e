//! Where a pod's sandbox is: enough to find it again without holding it.

use crate::node::records::NodeSettings;
use crate::sys::netns::NetnsIdentity;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// What is known of a sandbox from the runtime, from a record, or from a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::node) struct Location {
    /// Sandbox id; empty when unknown.
    pub container_id: String,
    /// Interface of the first attachment, whose DEL ends the sandbox; empty when unknown.
    pub interface: String,
    /// Path of the namespace on the host; empty when unknown.
    pub path: String,
    /// Which namespace it is, once that was written down.
    pub netns: Option<NetnsIdentity>,
    /// The uid that the runtime uses, where it differs.
    pub alias: Option<String>,
    /// Addresses that were written down for the sandbox, or that the plugin gave for it.
    pub ips: Vec<IpAddr>,
    /// Addresses that the plugin gave for this very sandbox, by interface.
    pub told: BTreeMap<String, Vec<IpAddr>>,
    /// The node-wide settings of its rules.
    pub settings: NodeSettings,
}

impl Location {
    /// The sandbox of a pod that was found by its processes: only its settings are known.
    pub fn unknown(settings: NodeSettings) -> Self {
        Location {
            container_id: String::new(),
            interface: String::new(),
            path: String::new(),
            netns: None,
            alias: None,
            ips: Vec::new(),
            told: BTreeMap::new(),
            settings,
        }
    }

    /// The addresses that the plugin gave, of all attachments.
    pub fn told(&self) -> Vec<IpAddr> {
        let mut told: Vec<IpAddr> = self.told.values().flatten().copied().collect();
        told.sort_unstable();
        told.dedup();
        told
    }

    /// Whether this is the same sandbox: by its id, by its path where one of the two has no id.
    pub fn is_of(&self, other: &Location) -> bool {
        if self.container_id.is_empty() || other.container_id.is_empty() {
            return !self.path.is_empty() && self.path == other.path;
        }
        self.container_id == other.container_id
    }

    /// The runtime has added something to the sandbox, or the same again: the first attachment stays what it is, and
    /// addresses are those of all.
    pub fn attach(&mut self, more: Location) {
        let Location { container_id, interface, path, netns, alias, ips, told, settings } = more;
        for (own, other) in
            [(&mut self.container_id, container_id), (&mut self.interface, interface), (&mut self.path, path)]
        {
            if own.is_empty() {
                *own = other;
            }
        }
        self.netns = self.netns.or(netns);
        self.alias = alias.or(self.alias.take());
        self.ips.extend(ips);
        self.ips.sort_unstable();
        self.ips.dedup();
        self.told.extend(told);
        self.settings = settings;
    }

    /// The runtime has taken an attachment away that is not the first: its addresses go with it.
    pub fn detach(&mut self, interface: &str) {
        if let Some(gone) = self.told.remove(interface) {
            let told = self.told();
            self.ips.retain(|ip| told.contains(ip) || !gone.contains(ip));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn location(container_id: &str, interface: &str, path: &str, told: &[u8]) -> Location {
        let settings = NodeSettings {
            dns_capture: false,
            ipv6: false,
            probe_v4: Ipv4Addr::UNSPECIFIED,
            probe_v6: std::net::Ipv6Addr::UNSPECIFIED,
        };
        let ips: Vec<IpAddr> = told.iter().map(|last| Ipv4Addr::new(10, 0, 0, *last).into()).collect();
        Location {
            container_id: container_id.to_owned(),
            interface: interface.to_owned(),
            path: path.to_owned(),
            ips: ips.clone(),
            told: BTreeMap::from([(interface.to_owned(), ips)]),
            ..Location::unknown(settings)
        }
    }

    fn last(ips: &[IpAddr]) -> Vec<u8> {
        let last = |ip: &IpAddr| if let IpAddr::V4(v4) = ip { v4.octets()[3] } else { 0 };
        ips.iter().map(last).collect()
    }

    #[test]
    fn a_sandbox_is_known_by_its_id_or_by_its_path() {
        let check = |one: (&str, &str), other: (&str, &str), same: bool| {
            let (one, other) = (location(one.0, "a", one.1, &[]), location(other.0, "b", other.1, &[]));
            assert_eq!((one.is_of(&other), other.is_of(&one)), (same, same), "{one:?} {other:?}");
        };
        check(("c1", "/n1"), ("c1", "/n2"), true);
        check(("c1", "/n1"), ("c2", "/n1"), false);
        check(("", "/n1"), ("c2", "/n1"), true);
        check(("", "/n1"), ("c2", "/n2"), false);
        check(("", ""), ("", ""), false);
    }

    #[test]
    fn addresses_are_those_of_all_attachments_and_go_with_them() {
        let mut sandbox = location("c1", "eth0", "/n1", &[1, 2]);
        sandbox.attach(location("c1", "net1", "/proc/1/ns/net", &[3]));
        assert_eq!((sandbox.interface.as_str(), sandbox.path.as_str()), ("eth0", "/n1"), "the first stays the first");
        assert_eq!((last(&sandbox.told()), last(&sandbox.ips)), (vec![1, 2, 3], vec![1, 2, 3]));
        // The same one again, with another address that both have.
        sandbox.attach(location("c1", "net1", "/n1", &[2]));
        assert_eq!(last(&sandbox.told()), [1, 2]);
        sandbox.detach("net1");
        assert_eq!((last(&sandbox.told()), last(&sandbox.ips)), (vec![1, 2], vec![1, 2, 3]));
        sandbox.detach("net7");
        sandbox.detach("eth0");
        assert_eq!((last(&sandbox.told()), last(&sandbox.ips)), (vec![], vec![3]));
        let mut unknown = location("", "", "", &[]);
        unknown.attach(location("c1", "eth0", "/n1", &[1]));
        assert_eq!((unknown.container_id.as_str(), unknown.interface.as_str()), ("c1", "eth0"));
    }
}
