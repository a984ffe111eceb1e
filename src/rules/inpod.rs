//! The rules of an ambient pod, inside its network namespace.
//!
//! ztunnel runs inside the pod's namespace and marks its own packets with [`PROXY_MARK`]. What is not marked goes to
//! ztunnel: what the pod sends to port 15001, what arrives for it in plaintext to port 15006, its DNS to 15053. HBONE
//! (15008) is ztunnel's own. Connections that ztunnel opened to the application carry the client's source address, so
//! their answers are led back to it: [`TPROXY_MARK`] on the connection, restored to its packets, routed to `lo`.

use super::program::{Effect, Program, Purpose};
use super::ruleset::{
    BuiltIn, Chain, Hook, Mark, Owned, Protocol, Rule, RuleSet, Table, TableName, Target, connmark, destination,
    from_port, header, in_interface, mark, out_interface, protocol, source, to_port,
};
use crate::rules::family::Family;
use crate::rules::routing::{LocalRoute, MarkRule};
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What the rules of one pod depend on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Settings {
    /// Redirect the pod's DNS to ztunnel.
    pub dns_capture: bool,
    /// Do not capture inbound plaintext (ingress gateways).
    pub ingress_mode: bool,
    /// Virtual interfaces whose traffic counts as outbound (KubeVirt, docker in docker).
    pub reroute_interfaces: Vec<String>,
    /// Program IPv6 too (where the namespace has it).
    pub ipv6: bool,
    /// Source address of the kubelet's probes as SNATed on the host (`HOST_PROBE_SNAT_IP`).
    pub probe_v4: Ipv4Addr,
    /// IPv6 twin (`HOST_PROBE_SNAT_IPV6`).
    pub probe_v6: Ipv6Addr,
}

/// On every packet ztunnel sends.
pub const PROXY_MARK: Mark = Mark { value: 0x539, mask: 0xfff };
/// On connections ztunnel opened inwards with the client's address.
pub const TPROXY_MARK: Mark = Mark { value: 0x111, mask: 0xfff };

/// ztunnel's port for what the pod sends.
const OUTBOUND_PORT: u16 = 15001;
/// ztunnel's port for plaintext that arrives.
const INBOUND_PORT: u16 = 15006;
/// ztunnel's port for HBONE that arrives.
const HBONE_PORT: u16 = 15008;
/// ztunnel's DNS proxy.
pub const DNS_PROXY_PORT: u16 = 15053;
/// DNS.
const DNS_PORT: u16 = 53;
/// Keeps ztunnel's own DNS queries apart from the redirected ones, which may use the same address pair.
const DNS_ZONE: u16 = 1;

/// The TCP ports to which these rules lead, on which ztunnel therefore must listen inside the pod.
pub fn proxy_ports(settings: &Settings) -> impl Iterator<Item = u16> {
    let dns = settings.dns_capture.then_some(DNS_PROXY_PORT);
    [OUTBOUND_PORT, INBOUND_PORT, HBONE_PORT].into_iter().chain(dns)
}

/// Called from PREROUTING.
const PRERT: &str = "ISTIO_PRERT";
/// Called from OUTPUT.
const OUTPUT: &str = "ISTIO_OUTPUT";

/// Everything that may be in a pod's packet filter because of us, whatever its settings.
pub const OWNED: &[Owned] = &[
    Owned { table: TableName::Mangle, from: Some(BuiltIn::Prerouting), chain: PRERT },
    Owned { table: TableName::Mangle, from: Some(BuiltIn::Output), chain: OUTPUT },
    Owned { table: TableName::Nat, from: Some(BuiltIn::Prerouting), chain: PRERT },
    Owned { table: TableName::Nat, from: Some(BuiltIn::Output), chain: OUTPUT },
    Owned { table: TableName::Raw, from: Some(BuiltIn::Prerouting), chain: PRERT },
    Owned { table: TableName::Raw, from: Some(BuiltIn::Output), chain: OUTPUT },
];

/// The whole: in IPv4, and in IPv6 where that is on. With IPv6 off nothing of it is touched.
impl From<&Settings> for Program {
    fn from(settings: &Settings) -> Self {
        let families = if settings.ipv6 { &[Family::V4, Family::V6][..] } else { &[Family::V4] };
        Program {
            purpose: Purpose::Ambient,
            rules: families.iter().map(|family| rules(settings, *family)).collect(),
            wanted: families.iter().flat_map(|family| Effect::routing(routing(*family))).collect(),
            unwanted: vec![],
        }
    }
}

/// What to apply to a pod that leaves the mesh, whatever its settings were.
pub fn nothing() -> Program {
    let families = [Family::V4, Family::V6];
    Program {
        purpose: Purpose::Ambient,
        rules: families.map(|family| RuleSet { family, tables: vec![] }).into(),
        wanted: vec![],
        unwanted: families.into_iter().flat_map(|family| Effect::routing(routing(family))).collect(),
    }
}

/// The rule set of one family.
pub fn rules(settings: &Settings, family: Family) -> RuleSet {
    let mut tables = vec![mangle(), nat(settings, family)];
    if settings.dns_capture {
        tables.push(raw());
    }
    RuleSet { family, tables }
}

/// Leads packets of connections marked with [`TPROXY_MARK`] to the local host, whatever their destination.
pub fn routing(family: Family) -> (MarkRule, LocalRoute) {
    const TABLE: u32 = 100;
    let Mark { value, mask } = TPROXY_MARK;
    (MarkRule { family, mark: value, mask, priority: Some(32764), table: TABLE }, LocalRoute { family, table: TABLE })
}

/// A table of ours: both chains are called first thing from where they belong.
fn table(name: TableName, prerouting: Vec<Rule>, output: Vec<Rule>) -> Table {
    Table {
        name,
        chains: vec![Chain { name: PRERT, rules: prerouting }, Chain { name: OUTPUT, rules: output }],
        hooks: vec![Hook::jump(BuiltIn::Prerouting, PRERT), Hook::jump(BuiltIn::Output, OUTPUT)],
    }
}

fn mangle() -> Table {
    table(
        TableName::Mangle,
        vec![Rule::new([mark(PROXY_MARK)], Target::SetConnMark(TPROXY_MARK))],
        vec![Rule::new([connmark(TPROXY_MARK)], Target::RestoreMark)],
    )
}

fn nat(settings: &Settings, family: Family) -> Table {
    use Protocol::{Tcp, Udp};
    let (loopback, probe): (IpNet, IpAddr) = match family {
        Family::V4 => (IpAddr::from(Ipv4Addr::LOCALHOST).into(), settings.probe_v4.into()),
        Family::V6 => (IpAddr::from(Ipv6Addr::LOCALHOST).into(), settings.probe_v6.into()),
    };
    let not_proxy = || !mark(PROXY_MARK);

    let mut inbound = Vec::new();
    for interface in &settings.reroute_interfaces {
        let from_interface = [in_interface(interface), protocol(Tcp)];
        inbound.push(Rule::new(from_interface.clone(), Target::Redirect(OUTBOUND_PORT)));
        inbound.push(Rule::new(from_interface, Target::Return));
    }
    if !settings.ingress_mode {
        // The kubelet's probes are not part of the mesh.
        inbound.push(Rule::new([source(probe), protocol(Tcp), header(Tcp)], Target::Accept));
        inbound.push(Rule::new(
            [!destination(loopback), protocol(Tcp), !to_port(Tcp, HBONE_PORT), not_proxy()],
            Target::Redirect(INBOUND_PORT),
        ));
    }

    let mut outbound = vec![Rule::new([destination(probe), protocol(Tcp), header(Tcp)], Target::Accept)];
    if settings.dns_capture {
        outbound.push(Rule::new(
            [!out_interface("lo"), protocol(Udp), not_proxy(), to_port(Udp, DNS_PORT)],
            Target::Redirect(DNS_PROXY_PORT),
        ));
        outbound.push(Rule::new(
            [!destination(loopback), protocol(Tcp), to_port(Tcp, DNS_PORT), not_proxy()],
            Target::Redirect(DNS_PROXY_PORT),
        ));
    }
    // Answers of the application to ztunnel's inward connections, then the pod's talk with itself.
    outbound.push(Rule::new([protocol(Tcp), mark(TPROXY_MARK)], Target::Accept));
    outbound.push(Rule::new([!destination(loopback), out_interface("lo")], Target::Accept));
    outbound.push(Rule::new([!destination(loopback), protocol(Tcp), not_proxy()], Target::Redirect(OUTBOUND_PORT)));
    table(TableName::Nat, inbound, outbound)
}

fn raw() -> Table {
    use Protocol::Udp;
    table(
        TableName::Raw,
        vec![Rule::new([protocol(Udp), !mark(PROXY_MARK), from_port(Udp, DNS_PORT)], Target::Zone(DNS_ZONE))],
        vec![Rule::new([protocol(Udp), mark(PROXY_MARK), to_port(Udp, DNS_PORT)], Target::Zone(DNS_ZONE))],
    )
}
