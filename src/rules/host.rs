//! The rule of the host's network namespace: the kubelet's probes of enrolled pods leave with one well-known source
//! address, by which the pods' own rules let them pass.

use super::program::{Program, Purpose};
use super::ruleset::{
    BuiltIn, Chain, Hook, Owned, Place, Protocol, Rule, RuleSet, Table, TableName, Target, Test, protocol,
};
use crate::rules::family::Family;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Called first from POSTROUTING.
const POSTRT: &str = "ISTIO_POSTRT";

/// Everything that may be in the host's packet filter because of us.
pub const OWNED: &[Owned] = &[Owned { table: TableName::Nat, from: Some(BuiltIn::Postrouting), chain: POSTRT }];

/// What the host's rules depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `HOST_PROBE_SNAT_IP`.
    pub probe_v4: Ipv4Addr,
    /// `HOST_PROBE_SNAT_IPV6`.
    pub probe_v6: Ipv6Addr,
    /// The user whose processes count as the kubelet; `None`: any process of the host.
    pub kubelet: Option<u32>,
}

/// Name of the ipset that holds the addresses of the node's enrolled pods.
pub fn probe_set(family: Family) -> &'static str {
    match family {
        Family::V4 => "istio-inpod-probes-v4",
        Family::V6 => "istio-inpod-probes-v6",
    }
}

/// The whole: in IPv4, and in IPv6 where that is on. With IPv6 off nothing of it is touched.
pub fn program(settings: &Settings, ipv6: bool) -> Program {
    let families = if ipv6 { &[Family::V4, Family::V6][..] } else { &[Family::V4] };
    Program {
        purpose: Purpose::Host,
        rules: families.iter().map(|family| rules(settings, *family)).collect(),
        wanted: vec![],
        unwanted: vec![],
    }
}

/// The rule set of one family. The kernel takes it only once the [`probe_set`] exists.
pub fn rules(settings: &Settings, family: Family) -> RuleSet {
    let probe: IpAddr = match family {
        Family::V4 => settings.probe_v4.into(),
        Family::V6 => settings.probe_v6.into(),
    };
    let prober = settings.kubelet.map_or(Test::LocalSocket, Test::User);
    let rule = Rule::new(
        [prober.into(), protocol(Protocol::Tcp), Test::DestinationSet(probe_set(family)).into()],
        Target::SourceNat(probe),
    );
    RuleSet {
        family,
        tables: vec![Table {
            name: TableName::Nat,
            chains: vec![Chain { name: POSTRT, rules: vec![rule] }],
            hooks: vec![Hook { place: Place::First, ..Hook::jump(BuiltIn::Postrouting, POSTRT) }],
        }],
    }
}
