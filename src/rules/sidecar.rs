//! The rules of a pod with a sidecar, inside its network namespace: what the application sends goes to Envoy's
//! outbound port, what arrives for it to Envoy's inbound port, and Envoy's own traffic (told by its uid and gid) passes.
//!
//! In [`Interception::Tproxy`] inbound traffic reaches Envoy with source and destination kept: it is marked in mangle
//! and routed to `lo` ([`routing`]), and Envoy's connections to the application carry the client's address, so that
//! their answers are led back by the connection's mark.

mod traces;

use super::program::{Effect, Program, Purpose};
use super::ruleset::{
    BuiltIn, Chain, ConnState, Hook, Mark, Match, Owned, Place, Protocol, Rule, RuleSet, Table, TableName, Target,
    conn_state, connmark, destination, from_port, group, in_interface, mark, out_interface, protocol, source, to_port,
    to_ports, user,
};
use super::view::TableView;
use crate::rules::family::Family;
use crate::rules::routing::{LocalRoute, MarkRule};
use Protocol::{Tcp, Udp};
use ipnet::{IpNet, Ipv4Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use traces::Traces;

/// How inbound traffic reaches Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Interception {
    /// It is redirected by destination NAT; Envoy sees itself as the destination and asks for the original one.
    Redirect,
    /// Transparently, source and destination kept.
    Tproxy,
}

/// All of something, or the listed ones only.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Only<T> {
    /// `*`.
    All,
    /// These; an empty list is none.
    These(Vec<T>),
}

/// Which processes' outbound traffic is captured, by the group they run as.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum OwnerGroups {
    /// All but these.
    AllBut(Vec<u32>),
    /// Only these.
    Only(Vec<u32>),
}

/// DNS redirection to the sidecar's resolver.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Dns {
    /// None.
    Off,
    /// Every query, whoever it is for.
    All,
    /// Queries to these resolvers (those of `/etc/resolv.conf`).
    Resolvers(Vec<IpAddr>),
}

/// What the rules depend on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Envoy's port for what the application sends.
    pub outbound_port: u16,
    /// Envoy's port for what arrives.
    pub inbound_port: u16,
    /// Envoy's port for HBONE; never redirected.
    pub tunnel_port: u16,
    /// The users Envoy runs as.
    pub proxy_uids: Vec<u32>,
    /// The groups Envoy runs as.
    pub proxy_gids: Vec<u32>,
    /// How inbound traffic reaches Envoy.
    pub interception: Interception,
    /// Mark of packets for Envoy, in [`Interception::Tproxy`].
    pub tproxy_mark: u32,
    /// Routing table of packets with that mark.
    pub tproxy_table: u32,
    /// Inbound ports that are captured.
    pub inbound_ports: Only<u16>,
    /// Inbound ports that are not, where all are.
    pub inbound_ports_excluded: Vec<u16>,
    /// Destinations whose traffic is captured.
    pub outbound_ranges: Only<IpNet>,
    /// Destinations whose traffic is not; asked first.
    pub outbound_ranges_excluded: Vec<IpNet>,
    /// Destination ports captured whatever the destination (after the excluded ranges).
    pub outbound_ports: Vec<u16>,
    /// Destination ports never captured.
    pub outbound_ports_excluded: Vec<u16>,
    /// Interfaces whose traffic is left alone, in both directions.
    pub interfaces_excluded: Vec<String>,
    /// Virtual interfaces whose traffic counts as outbound (KubeVirt, docker in docker).
    pub reroute_interfaces: Vec<String>,
    /// The groups whose outbound traffic is captured.
    pub owner_groups: OwnerGroups,
    /// DNS redirection.
    pub dns: Dns,
    /// Drop packets that conntrack calls invalid, instead of letting them reset the connection.
    pub drop_invalid: bool,
    /// What counts as the application's talk with itself in IPv4.
    pub loopback_v4: Ipv4Net,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            outbound_port: 15001,
            inbound_port: 15006,
            tunnel_port: 15008,
            proxy_uids: vec![1337],
            proxy_gids: vec![1337],
            interception: Interception::Redirect,
            tproxy_mark: 1337,
            tproxy_table: 133,
            inbound_ports: Only::These(Vec::new()),
            inbound_ports_excluded: Vec::new(),
            outbound_ranges: Only::These(Vec::new()),
            outbound_ranges_excluded: Vec::new(),
            outbound_ports: Vec::new(),
            outbound_ports_excluded: Vec::new(),
            interfaces_excluded: Vec::new(),
            reroute_interfaces: Vec::new(),
            owner_groups: OwnerGroups::AllBut(Vec::new()),
            dns: Dns::Off,
            drop_invalid: false,
            loopback_v4: Ipv4Net::from(Ipv4Addr::LOCALHOST),
        }
    }
}

const INBOUND: &str = "ISTIO_INBOUND";
const OUTPUT: &str = "ISTIO_OUTPUT";
const OUTPUT_DNS: &str = "ISTIO_OUTPUT_DNS";
const REDIRECT: &str = "ISTIO_REDIRECT";
const IN_REDIRECT: &str = "ISTIO_IN_REDIRECT";
const DIVERT: &str = "ISTIO_DIVERT";
const TPROXY: &str = "ISTIO_TPROXY";
const DROP: &str = "ISTIO_DROP";

/// The chains that may be in a pod's packet filter because of its sidecar, whatever the settings. The rules that lead
/// to most of them carry conditions: see [`traces`].
pub const OWNED: &[Owned] = &[
    Owned { table: TableName::Mangle, from: None, chain: DROP },
    Owned { table: TableName::Mangle, from: None, chain: DIVERT },
    Owned { table: TableName::Mangle, from: None, chain: TPROXY },
    Owned { table: TableName::Mangle, from: None, chain: INBOUND },
    Owned { table: TableName::Nat, from: None, chain: INBOUND },
    Owned { table: TableName::Nat, from: None, chain: REDIRECT },
    Owned { table: TableName::Nat, from: None, chain: IN_REDIRECT },
    Owned { table: TableName::Nat, from: Some(BuiltIn::Output), chain: OUTPUT },
    Owned { table: TableName::Nat, from: None, chain: OUTPUT_DNS },
    Owned { table: TableName::Raw, from: Some(BuiltIn::Output), chain: OUTPUT_DNS },
    Owned { table: TableName::Raw, from: Some(BuiltIn::Prerouting), chain: INBOUND },
];

/// Whether a table nat leads what a pod sends to a sidecar.
pub fn leads_to_sidecar(nat: &TableView) -> bool {
    nat.rules(OUTPUT).iter().any(|rule| rule.jumps_to(REDIRECT) || rule.jumps_to(IN_REDIRECT))
}

/// Mark of packets that Envoy sends to its own pod by the pod's address.
const OUTBOUND_MARK: u32 = 1338;
/// Source address of Envoy's connections to the application (IPv4).
const PASSTHROUGH_V4: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);
/// Its IPv6 twin, which must be added to `lo`: `::1/128` is all that is there.
pub const PASSTHROUGH_V6: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6);
/// DNS.
const DNS_PORT: u16 = 53;
/// The sidecar's resolver.
const DNS_PROXY_PORT: u16 = 15053;
/// Conntrack zone of queries from the sidecar to resolvers: the same address pair may occur in both zones.
const UPSTREAM_ZONE: u16 = 1;
/// Conntrack zone of queries from the application to the sidecar.
const CLIENT_ZONE: u16 = 2;

/// The whole. In a family that is not wanted nothing of ours should be: other settings may have put it there.
pub fn program(settings: &Settings, ipv6: bool) -> Program {
    let mut wanted: Vec<Effect> = routing(settings, Family::V4).map_or(vec![], |both| Effect::routing(both).into());
    let v6 = if ipv6 {
        wanted.extend(routing(settings, Family::V6).into_iter().flat_map(Effect::routing));
        wanted.push(Effect::Loopback(PASSTHROUGH_V6));
        rules(settings, Family::V6)
    } else {
        RuleSet { family: Family::V6, tables: vec![] }
    };
    let usual = Settings::default();
    let marks = [(settings.tproxy_mark, settings.tproxy_table), (usual.tproxy_mark, usual.tproxy_table)];
    let possible = [Family::V4, Family::V6].into_iter().flat_map(|family| {
        marks.into_iter().flat_map(move |(mark, table)| Effect::routing(marked(mark, table, family)))
    });
    let mut unwanted: Vec<Effect> = Vec::new();
    for effect in possible.chain([Effect::Loopback(PASSTHROUGH_V6)]) {
        if !wanted.contains(&effect) && !unwanted.contains(&effect) {
            unwanted.push(effect);
        }
    }
    Program { purpose: Purpose::Sidecar, rules: vec![rules(settings, Family::V4), v6], wanted, unwanted }
}

/// The rule set of one family.
pub fn rules(settings: &Settings, family: Family) -> RuleSet {
    let pod = Pod { settings, family, dns: Resolvers::of(&settings.dns, family) };
    let mut tables: Vec<Table> = [pod.mangle(), pod.nat(), pod.raw()].into_iter().flatten().collect();
    for table in &mut tables {
        // An interface or a user may have been named twice.
        let mut seen = Vec::new();
        table.hooks.retain(|hook| {
            let new = !seen.contains(&(hook.chain, hook.rule.clone()));
            seen.push((hook.chain, hook.rule.clone()));
            new
        });
    }
    RuleSet { family, tables }
}

/// Routes packets marked for Envoy to the local host; nothing to route unless transparent inbound capture is on.
pub fn routing(settings: &Settings, family: Family) -> Option<(MarkRule, LocalRoute)> {
    let captures = !matches!(&settings.inbound_ports, Only::These(ports) if ports.is_empty());
    let transparent = settings.interception == Interception::Tproxy && captures;
    transparent.then(|| marked(settings.tproxy_mark, settings.tproxy_table, family))
}

fn marked(mark: u32, table: u32, family: Family) -> (MarkRule, LocalRoute) {
    let Mark { value, mask } = whole(mark);
    (MarkRule { family, mark: value, mask, priority: None, table }, LocalRoute { family, table })
}

/// Which resolvers of a family are redirected.
enum Resolvers {
    None,
    /// DNS capture is on, but no resolver is of this family.
    OtherFamily,
    All,
    These(Vec<IpAddr>),
}

impl Resolvers {
    fn of(dns: &Dns, family: Family) -> Self {
        match dns {
            Dns::All => Resolvers::All,
            Dns::Resolvers(all) if !all.is_empty() => {
                let of_family: Vec<_> = all.iter().copied().filter(|ip| family_of(*ip) == family).collect();
                if of_family.is_empty() { Resolvers::OtherFamily } else { Resolvers::These(of_family) }
            }
            Dns::Off | Dns::Resolvers(_) => Resolvers::None,
        }
    }

    /// One rule for all resolvers, or one for each, each with its address as `side` puts it.
    fn each(&self, side: fn(IpAddr) -> Match, rule: impl Fn(Option<Match>) -> Rule) -> Vec<Rule> {
        match self {
            Resolvers::None | Resolvers::OtherFamily => Vec::new(),
            Resolvers::All => vec![rule(None)],
            Resolvers::These(addresses) => addresses.iter().map(|ip| rule(Some(side(*ip)))).collect(),
        }
    }
}

/// The pod's settings seen from one family.
struct Pod<'a> {
    settings: &'a Settings,
    family: Family,
    dns: Resolvers,
}

impl Pod<'_> {
    fn mangle(&self) -> Option<Table> {
        let settings = self.settings;
        let mut table = Table { name: TableName::Mangle, chains: Vec::new(), hooks: Vec::new() };
        let tproxy = settings.interception == Interception::Tproxy;
        if tproxy {
            table.hooks.extend(self.excluded_interfaces());
        }
        if settings.drop_invalid {
            let invalid = Rule::new([conn_state([ConnState::Invalid])], Target::Jump(DROP));
            table.hooks.push(Hook { chain: BuiltIn::Prerouting, place: Place::Last, rule: invalid });
            table.chains.push(Chain { name: DROP, rules: vec![Rule::new([], Target::Drop)] });
        }
        if tproxy {
            self.transparent(&mut table);
        }
        (!table.hooks.is_empty()).then_some(table)
    }

    /// Transparent capture of inbound traffic.
    fn transparent(&self, table: &mut Table) {
        let settings = self.settings;
        let marked = || mark(whole(settings.tproxy_mark));
        let to_envoy = Target::Tproxy { port: settings.inbound_port, mark: whole(settings.tproxy_mark) };
        let mut inbound = vec![
            // Envoy's own connections to the application, and the application's to itself.
            Rule::new([protocol(Tcp), marked()], Target::Return),
            Rule::new([source(self.passthrough()), in_interface("lo"), protocol(Tcp)], Target::Return),
            Rule::new([in_interface("lo"), protocol(Tcp), !mark(whole(OUTBOUND_MARK))], Target::Return),
        ];
        if self.captures_inbound() {
            let divert = Rule::new([], Target::SetMark(whole(settings.tproxy_mark)));
            table.chains.push(Chain { name: DIVERT, rules: vec![divert, Rule::new([], Target::Accept)] });
            let all = Rule::new([!destination(self.loopback()), protocol(Tcp)], to_envoy);
            table.chains.push(Chain { name: TPROXY, rules: vec![all] });
            table.hooks.push(self.inbound_hook());
            inbound.extend(self.inbound_ports(&[
                (Some(conn_state([ConnState::Related, ConnState::Established])), Target::Jump(DIVERT)),
                (None, Target::Jump(TPROXY)),
            ]));
        }
        table.chains.push(Chain { name: INBOUND, rules: inbound });
        let mut hook = |chain, rule| table.hooks.push(Hook { chain, place: Place::Last, rule });
        hook(BuiltIn::Prerouting, Rule::new([protocol(Tcp), marked()], Target::SaveMark));
        hook(BuiltIn::Output, Rule::new([out_interface("lo"), protocol(Tcp), marked()], Target::Return));
        for owner in self.proxies() {
            let to_self = [!destination(self.loopback()), out_interface("lo"), protocol(Tcp), owner];
            hook(BuiltIn::Output, Rule::new(to_self, Target::SetMark(whole(OUTBOUND_MARK))));
        }
        let answers = [protocol(Tcp), connmark(whole(settings.tproxy_mark))];
        hook(BuiltIn::Output, Rule::new(answers, Target::RestoreMark));
    }

    fn nat(&self) -> Option<Table> {
        let settings = self.settings;
        let mut inbound = vec![Rule::new([protocol(Tcp), to_port(Tcp, settings.tunnel_port)], Target::Return)];
        let mut hooks = self.rerouted_interfaces();
        hooks.extend(self.excluded_interfaces());
        if settings.interception == Interception::Redirect && self.captures_inbound() {
            hooks.push(self.inbound_hook());
            inbound.extend(self.inbound_ports(&[(None, Target::Jump(IN_REDIRECT))]));
        }
        hooks.push(Hook::jump(BuiltIn::Output, OUTPUT));
        let redirect = |port| vec![Rule::new([protocol(Tcp)], Target::Redirect(port))];
        let mut chains = vec![
            Chain { name: INBOUND, rules: inbound },
            Chain { name: REDIRECT, rules: redirect(settings.outbound_port) },
            Chain { name: IN_REDIRECT, rules: redirect(settings.inbound_port) },
            Chain { name: OUTPUT, rules: self.output() },
        ];
        let dns: Vec<Rule> = [Tcp, Udp].into_iter().flat_map(|p| self.dns_redirects(p)).collect();
        if !dns.is_empty() {
            chains.push(Chain { name: OUTPUT_DNS, rules: dns });
        }
        Some(Table { name: TableName::Nat, chains, hooks })
    }

    /// What the pod sends.
    fn output(&self) -> Vec<Rule> {
        let settings = self.settings;
        let mut rules = Vec::new();
        for port in &settings.outbound_ports_excluded {
            for of in [Tcp, Udp] {
                rules.push(Rule::new([protocol(of), to_port(of, *port)], Target::Return));
            }
        }
        rules.push(Rule::new([source(self.passthrough()), out_interface("lo")], Target::Return));
        for uid in &settings.proxy_uids {
            rules.extend(self.proxy_output(user(*uid), !matches!(self.dns, Resolvers::None)));
        }
        for gid in &settings.proxy_gids {
            rules.extend(self.proxy_output(group(*gid), false));
        }
        match &settings.owner_groups {
            OwnerGroups::AllBut(groups) => {
                rules.extend(groups.iter().map(|gid| Rule::new([group(*gid)], Target::Return)));
            }
            OwnerGroups::Only(groups) => {
                let none_of: Vec<Match> = groups.iter().map(|gid| !group(*gid)).collect();
                rules.push(Rule::new(none_of, Target::Return));
            }
        }
        if matches!(self.dns, Resolvers::All | Resolvers::These(_)) {
            rules.push(Rule::new([], Target::Jump(OUTPUT_DNS)));
        }
        rules.push(Rule::new([destination(self.loopback())], Target::Return));
        for range in settings.outbound_ranges_excluded.iter().filter(|range| self.has(range)) {
            rules.push(Rule::new([destination(*range)], Target::Return));
        }
        for port in &settings.outbound_ports {
            rules.push(Rule::new([protocol(Tcp), to_port(Tcp, *port)], Target::Jump(REDIRECT)));
        }
        rules.extend(self.outbound_ranges().into_iter().map(|to| Rule::new(to, Target::Jump(REDIRECT))));
        rules
    }

    /// What Envoy, running as `owner`, sends, and what the others send over `lo`.
    fn proxy_output(&self, owner: Match, spare_dns: bool) -> Vec<Rule> {
        let dns = !matches!(self.dns, Resolvers::None);
        // Envoy to its own pod by the pod's address is inbound traffic. The sidecar's answers to DNS queries are not.
        let ports = if spare_dns {
            !to_ports(Tcp, [DNS_PORT, self.settings.tunnel_port])
        } else {
            !to_port(Tcp, self.settings.tunnel_port)
        };
        let to_self = [!destination(self.loopback()), out_interface("lo"), protocol(Tcp), ports, owner.clone()];
        let mut rules = vec![Rule::new(to_self, Target::Jump(IN_REDIRECT))];
        let captures_loopback =
            matches!(&self.settings.outbound_ranges, Only::These(r) if r.iter().any(|net| net.addr().is_loopback()));
        if !captures_loopback {
            let mut to_itself = vec![out_interface("lo")];
            if dns {
                // A resolver may listen on localhost.
                to_itself.extend([protocol(Tcp), !to_port(Tcp, DNS_PORT)]);
            }
            to_itself.push(!owner.clone());
            rules.push(Rule::new(to_itself, Target::Return));
        }
        rules.push(Rule::new([owner], Target::Return));
        rules
    }

    fn raw(&self) -> Option<Table> {
        if matches!(self.dns, Resolvers::None) {
            return None;
        }
        let mut table =
            Table { name: TableName::Raw, chains: Vec::new(), hooks: vec![Hook::jump(BuiltIn::Output, OUTPUT_DNS)] };
        let mut output = Vec::new();
        for owner in self.proxies() {
            let upstream = [protocol(Udp), to_port(Udp, DNS_PORT), owner.clone()];
            output.push(Rule::new(upstream, Target::Zone(UPSTREAM_ZONE)));
            let answers = [protocol(Udp), from_port(Udp, DNS_PROXY_PORT), owner];
            output.push(Rule::new(answers, Target::Zone(CLIENT_ZONE)));
        }
        output.extend(self.dns.each(destination, |to| {
            Rule::new(prefixed(to, [protocol(Udp), to_port(Udp, DNS_PORT)]), Target::Zone(CLIENT_ZONE))
        }));
        table.chains.push(Chain { name: OUTPUT_DNS, rules: output });
        let inbound = self.dns.each(source, |from| {
            Rule::new(prefixed(from, [protocol(Udp), from_port(Udp, DNS_PORT)]), Target::Zone(UPSTREAM_ZONE))
        });
        if !inbound.is_empty() {
            table.hooks.push(Hook::jump(BuiltIn::Prerouting, INBOUND));
            table.chains.push(Chain { name: INBOUND, rules: inbound });
        }
        Some(table)
    }

    fn dns_redirects(&self, of: Protocol) -> Vec<Rule> {
        self.dns.each(destination, |to| {
            Rule::new(prefixed(to, [protocol(of), to_port(of, DNS_PORT)]), Target::Redirect(DNS_PROXY_PORT))
        })
    }

    fn excluded_interfaces(&self) -> impl Iterator<Item = Hook> {
        self.settings.interfaces_excluded.iter().flat_map(|name| {
            [(BuiltIn::Prerouting, in_interface(name)), (BuiltIn::Output, out_interface(name))]
                .map(|(chain, on)| Hook { chain, place: Place::Last, rule: Rule::new([on], Target::Return) })
        })
    }

    /// Traffic that comes in by a virtual interface is redirected as outbound, or else left alone; before all others.
    fn rerouted_interfaces(&self) -> Vec<Hook> {
        let names = &self.settings.reroute_interfaces;
        let redirects = self.outbound_ranges().into_iter().flat_map(|to| {
            let to_range = move |name: &String| {
                let matches = to.iter().cloned().chain([in_interface(name)]).collect::<Vec<_>>();
                Rule::new(matches, Target::Jump(REDIRECT))
            };
            names.iter().map(to_range)
        });
        let returns = names.iter().map(|name| Rule::new([in_interface(name)], Target::Return));
        let first = |rule| Hook { chain: BuiltIn::Prerouting, place: Place::First, rule };
        redirects.chain(returns).map(first).collect()
    }

    /// The conditions, one rule each, under which outbound traffic of this family is captured.
    fn outbound_ranges(&self) -> Vec<Vec<Match>> {
        match &self.settings.outbound_ranges {
            Only::All => vec![Vec::new()],
            Only::These(ranges) => {
                ranges.iter().filter(|range| self.has(range)).map(|range| vec![destination(*range)]).collect()
            }
        }
    }

    fn captures_inbound(&self) -> bool {
        !matches!(&self.settings.inbound_ports, Only::These(ports) if ports.is_empty())
    }

    fn inbound_hook(&self) -> Hook {
        let rule = Rule::new([protocol(Tcp)], Target::Jump(INBOUND));
        Hook { chain: BuiltIn::Prerouting, place: Place::Last, rule }
    }

    /// The captured inbound ports, each through all `steps`.
    fn inbound_ports(&self, steps: &[(Option<Match>, Target)]) -> Vec<Rule> {
        let to_envoy = |port: Option<u16>| {
            steps.iter().map(move |(condition, target)| {
                let port = port.map(|port| to_port(Tcp, port));
                let matches = [Some(protocol(Tcp)), port, condition.clone()];
                Rule::new(matches.into_iter().flatten().collect::<Vec<_>>(), target.clone())
            })
        };
        match &self.settings.inbound_ports {
            Only::All => {
                let excluded = self.settings.inbound_ports_excluded.iter();
                excluded
                    .map(|port| Rule::new([protocol(Tcp), to_port(Tcp, *port)], Target::Return))
                    .chain(to_envoy(None))
                    .collect()
            }
            Only::These(ports) => ports.iter().flat_map(|port| to_envoy(Some(*port))).collect(),
        }
    }

    /// Matches for what Envoy sends.
    fn proxies(&self) -> Vec<Match> {
        let users = self.settings.proxy_uids.iter().map(|uid| user(*uid));
        users.chain(self.settings.proxy_gids.iter().map(|gid| group(*gid))).collect()
    }

    fn has(&self, range: &IpNet) -> bool {
        family_of(range.addr()) == self.family
    }

    fn loopback(&self) -> IpNet {
        match self.family {
            Family::V4 => self.settings.loopback_v4.into(),
            Family::V6 => IpAddr::from(Ipv6Addr::LOCALHOST).into(),
        }
    }

    fn passthrough(&self) -> IpAddr {
        match self.family {
            Family::V4 => PASSTHROUGH_V4.into(),
            Family::V6 => PASSTHROUGH_V6.into(),
        }
    }
}

/// A mark of which every bit counts.
fn whole(value: u32) -> Mark {
    Mark { value, mask: u32::MAX }
}

fn prefixed<const N: usize>(first: Option<Match>, rest: [Match; N]) -> Vec<Match> {
    first.into_iter().chain(rest).collect()
}

fn family_of(ip: IpAddr) -> Family {
    if ip.is_ipv4() { Family::V4 } else { Family::V6 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{nftables, render};

    fn check(name: &str, settings: &Settings, family: Family, want: &str) {
        assert_eq!(render::restore(&rules(settings, family)), want, "{name}");
    }

    fn all() -> Settings {
        Settings {
            inbound_ports: Only::All,
            inbound_ports_excluded: vec![15020, 15021, 15090],
            outbound_ranges: Only::All,
            outbound_ports_excluded: vec![15020],
            ..Settings::default()
        }
    }

    #[test]
    fn golden() {
        let everything = Settings {
            interception: Interception::Tproxy,
            inbound_ports: Only::These(vec![80]),
            outbound_ranges: Only::These(vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()]),
            outbound_ranges_excluded: vec!["10.9.0.0/16".parse().unwrap(), "fd09::/16".parse().unwrap()],
            outbound_ports: vec![8080],
            interfaces_excluded: vec!["eth1".to_owned()],
            reroute_interfaces: vec!["net1".to_owned()],
            owner_groups: OwnerGroups::Only(vec![7, 8]),
            dns: Dns::Resolvers(vec!["10.96.0.10".parse().unwrap()]),
            drop_invalid: true,
            ..all()
        };
        check("basic", &all(), Family::V4, include_str!("../../test-fixtures/rules/sidecar-basic.v4"));
        check("everything", &everything, Family::V4, include_str!("../../test-fixtures/rules/sidecar-everything.v4"));
        check("everything", &everything, Family::V6, include_str!("../../test-fixtures/rules/sidecar-everything.v6"));
        let native = nftables::tables(Purpose::Sidecar, &[Family::V4, Family::V6].map(|f| rules(&everything, f)));
        let want = include_str!("../../test-fixtures/rules/sidecar-everything.nft");
        assert_eq!(nftables::text::script(&native), want);
    }

    #[test]
    fn routes_only_where_something_is_captured_transparently() {
        assert_eq!(routing(&all(), Family::V4), None);
        let tproxy = Settings { interception: Interception::Tproxy, ..all() };
        let (rule, route) = routing(&tproxy, Family::V6).unwrap();
        assert_eq!((rule.mark, rule.mask, rule.table, route.table), (1337, u32::MAX, 133, 133));
        assert_eq!(routing(&Settings { inbound_ports: Only::These(vec![]), ..tproxy }, Family::V4), None);
    }

    #[test]
    fn every_chain_is_on_the_list_of_ours() {
        for interception in [Interception::Redirect, Interception::Tproxy] {
            let settings = Settings { interception, dns: Dns::All, drop_invalid: true, ..all() };
            for table in rules(&settings, Family::V4).tables {
                let is_ours = |chain: &Chain| OWNED.iter().any(|o| (o.table, o.chain) == (table.name, chain.name));
                assert!(table.chains.iter().all(is_ours), "{:?}", table.name);
            }
        }
    }
}
