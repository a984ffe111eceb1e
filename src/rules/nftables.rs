//! Rule sets as nf_tables hold them: tables of our own in the `inet` family, which IPv4 and IPv6 share.
//!
//! The tables are made from the rule sets of both families, so that they mean what those mean to iptables. A rule that
//! is the same in both stands there once; one of a single family says which. [`text`] prints
//! the tables for `nft -f`.
//!
//! What differs from iptables: a packet that belongs to no socket has no owner, and neither `skuid 1` nor `skuid != 1`
//! holds for it; invalid packets are dropped of TCP only, so that neighbour discovery, which conntrack does not know,
//! gets through.

pub mod text;

use super::program::Purpose;
use super::ruleset::{BuiltIn, ConnState, Mark, Match, Place, Port, Protocol, RuleSet, Target, Test};
use super::{host, ruleset, ruleset::TableName};
use crate::rules::family::Family;
use ipnet::IpNet;
use std::net::IpAddr;

/// A table. It is ours as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// Its sets of addresses, each of one family. Others than those who make the rules fill them.
    pub sets: Vec<Family>,
    /// Its chains.
    pub chains: Vec<Chain>,
}

/// A chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: &'static str,
    /// How the kernel comes by; `None` for one that is only jumped to.
    pub base: Option<Base>,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// How a chain is attached to the path of packets. What it does not decide is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    /// `filter`, `nat`, or `route`, which decides the route anew when the mark has changed.
    pub kind: &'static str,
    /// Where.
    pub hook: BuiltIn,
    /// Order among the chains there.
    pub priority: i32,
}

/// A rule: the kernel takes one statement after the other, until one does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule(pub Vec<Statement>);

impl Rule {
    /// Its conditions, and what happens to a packet for which all of them hold. Between the two, packets are counted.
    pub fn parts(&self) -> (&[Statement], &[Statement]) {
        let conditions = self.0.iter().take_while(|one| one.is_condition()).count();
        self.0.split_at(conditions)
    }
}

impl Statement {
    fn is_condition(&self) -> bool {
        match self {
            Statement::Family(_)
            | Statement::Protocol(..)
            | Statement::Address(..)
            | Statement::InSet(..)
            | Statement::From(..)
            | Statement::To(..)
            | Statement::Port(..)
            | Statement::Mark(..)
            | Statement::User(..)
            | Statement::Group(..)
            | Statement::Socket
            | Statement::State(..) => true,
            Statement::SetMark(..)
            | Statement::CopyMark(_)
            | Statement::Zone(_)
            | Statement::Tproxy(..)
            | Statement::Redirect(_)
            | Statement::SourceNat(_)
            | Statement::Accept
            | Statement::Drop
            | Statement::Return
            | Statement::Jump(_) => false,
        }
    }
}

/// Which address or port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Where it comes from.
    Source,
    /// Where it goes.
    Destination,
}

/// The thing that carries a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// The packet's.
    Packet,
    /// The connection's.
    Connection,
}

/// A condition or a step. Conditions with a flag are negated by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement {
    /// It is a packet of this family.
    Family(Family),
    /// Transport protocol.
    Protocol(bool, Protocol),
    /// An address is in this network. Only packets of its family.
    Address(Side, bool, IpNet),
    /// The destination is in the table's set of this family. Only packets of that.
    InSet(bool, Family),
    /// It came in by this interface.
    From(bool, String),
    /// It leaves by this interface.
    To(bool, String),
    /// A port. Only packets of that protocol.
    Port(Side, bool, Protocol, u16),
    /// These bits of a mark.
    Mark(Of, bool, Mark),
    /// The user of its socket.
    User(bool, u32),
    /// The group of its socket.
    Group(bool, u32),
    /// It has a socket here, whosever.
    Socket,
    /// In one of these states, by conntrack.
    State(bool, Vec<ConnState>),
    /// Replaces the masked bits of a mark.
    SetMark(Of, Mark),
    /// Copies the other mark to this one.
    CopyMark(Of),
    /// Tracks the connection in a zone of its own.
    Zone(u16),
    /// Hands it to the local socket on this port; does not hold when there is none.
    Tproxy(Family, u16),
    /// To this port of the local host.
    Redirect(u16),
    /// Rewrites the source address.
    SourceNat(IpAddr),
    /// Nothing more of this hook's table.
    Accept,
    /// It is gone.
    Drop,
    /// Back to the calling chain.
    Return,
    /// On in another chain.
    Jump(&'static str),
}

/// The host's only table.
pub const HOST_TABLE: &str = "istio-ambient-nat";

/// The tables that may be there because of us, whatever the settings, in the order of [`TableName::ALL`].
pub fn owned(purpose: Purpose) -> [&'static str; 3] {
    match purpose {
        Purpose::Ambient | Purpose::Host => ["istio-ambient-mangle", HOST_TABLE, "istio-ambient-raw"],
        Purpose::Sidecar => ["istio-proxy-mangle", "istio-proxy-nat", "istio-proxy-raw"],
    }
}

/// The tables that mean what these rule sets, at most one a family, mean. A family without rules is not touched.
pub fn tables(purpose: Purpose, rules: &[RuleSet]) -> Vec<Table> {
    let of = |family| rules.iter().find(|set| set.family == family && !set.tables.is_empty());
    let families = [of(Family::V4), of(Family::V6)];
    let names = TableName::ALL.into_iter().zip(owned(purpose));
    let table = |(table, name)| {
        let parts = families.map(|set| {
            let set = set?;
            set.tables.iter().find(|part| part.name == table).map(|part| (set.family, part))
        });
        (parts != [None, None]).then(|| Table { name, sets: sets(&parts), chains: chains(parts) })
    };
    names.filter_map(table).collect()
}

/// One family's part of a table.
type Part<'a> = Option<(Family, &'a ruleset::Table)>;

fn sets(parts: &[Part<'_>; 2]) -> Vec<Family> {
    let asks = |part: &ruleset::Table| {
        let mut matches = part.chains.iter().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.matches);
        matches.any(|one| matches!(one.test, Test::DestinationSet(_)))
    };
    parts.iter().flatten().filter(|(_, part)| asks(part)).map(|(family, _)| *family).collect()
}

fn chains(parts: [Part<'_>; 2]) -> Vec<Chain> {
    let present = || parts.into_iter().flatten().map(|(_, part)| part);
    let shared = present().count() == 2;
    let mut chains = Vec::new();
    for hook in BuiltIn::ALL {
        if let Some(table) = present().find(|part| part.hooks.iter().any(|one| one.chain == hook)) {
            let rules = parts.map(|part| part.map_or(vec![], |(family, part)| hooked(part, hook, family)));
            // Everything else is only jumped to from here, so here a single family must be named.
            let base = Some(base(table.name, hook));
            chains.push(Chain { name: base_name(hook), base, rules: merged(rules, true) });
        }
    }
    for chain in present().flat_map(|part| &part.chains) {
        let name = name(chain.name);
        if name.is_empty() || chains.iter().any(|known| known.name == name) {
            continue;
        }
        let rules = parts.map(|part| {
            let Some((family, part)) = part else { return Vec::new() };
            let same = part.chains.iter().filter(|one| one.name == chain.name).flat_map(|one| &one.rules);
            same.flat_map(|rule| translated(rule, family)).collect()
        });
        chains.push(Chain { name, base: None, rules: merged(rules, shared) });
    }
    chains
}

fn base_name(hook: BuiltIn) -> &'static str {
    match hook {
        BuiltIn::Prerouting => "prerouting",
        BuiltIn::Output => "output",
        BuiltIn::Postrouting => "postrouting",
    }
}

/// The attachment that iptables gives the chains of these tables.
fn base(table: TableName, hook: BuiltIn) -> Base {
    let (kind, priority) = match (table, hook) {
        (TableName::Nat, BuiltIn::Postrouting) => ("nat", 100),
        (TableName::Nat, _) => ("nat", -100),
        (TableName::Mangle, BuiltIn::Output) => ("route", -150),
        (TableName::Mangle, _) => ("filter", -150),
        (TableName::Raw, _) => ("filter", -300),
    };
    Base { kind, hook, priority }
}

/// What a chain is called here; nothing for one whose rules stand where it is called from.
fn name(chain: &str) -> &'static str {
    match chain {
        "ISTIO_PRERT" => "istio-prerouting",
        "ISTIO_OUTPUT" => "istio-output",
        "ISTIO_OUTPUT_DNS" => "istio-output-dns",
        "ISTIO_INBOUND" => "istio-inbound",
        "ISTIO_REDIRECT" => "istio-redirect",
        "ISTIO_IN_REDIRECT" => "istio-in-redirect",
        "ISTIO_DIVERT" => "istio-divert",
        "ISTIO_TPROXY" => "istio-tproxy",
        "ISTIO_DROP" => "istio-drop",
        _ => "",
    }
}

/// The rules that stand in a built-in chain.
fn hooked(part: &ruleset::Table, hook: BuiltIn, family: Family) -> Vec<Vec<Statement>> {
    let of = |place| part.hooks.iter().filter(move |one| (one.chain, one.place) == (hook, place));
    let rules = of(Place::First).chain(of(Place::Last)).flat_map(|one| match one.rule.target {
        Target::Jump(to) if name(to).is_empty() => {
            part.chains.iter().filter(|chain| chain.name == to).flat_map(|chain| &chain.rules).collect()
        }
        _ => vec![&one.rule],
    });
    rules.flat_map(|rule| translated(rule, family)).collect()
}

/// The rules of both families in one list, in which those of each family keep their order. `says` whether a rule must
/// say of which family it is, if it is of one only.
fn merged([v4, v6]: [Vec<Vec<Statement>>; 2], says: bool) -> Vec<Rule> {
    let (mut v4, mut v6) = (v4.as_slice(), v6.as_slice());
    let mut all = Vec::new();
    loop {
        let (family, rule) = match (v4, v6) {
            ([a, rest4 @ ..], [b, rest6 @ ..]) if a == b => {
                (v4, v6) = (rest4, rest6);
                (None, a)
            }
            ([a, rest4 @ ..], _) if v6.is_empty() || !v6.contains(a) || v6.iter().all(|b| v4.contains(b)) => {
                v4 = rest4;
                (Some(Family::V4), a)
            }
            (_, [b, rest6 @ ..]) => {
                v6 = rest6;
                (Some(Family::V6), b)
            }
            _ => return all,
        };
        let names_it =
            |one: &Statement| matches!(one, Statement::Address(..) | Statement::InSet(..) | Statement::Family(_));
        let guard = family.filter(|_| says && !rule.iter().any(names_it)).map(Statement::Family);
        all.push(Rule(guard.into_iter().chain(rule.iter().cloned()).collect()));
    }
}

/// What a rule of iptables becomes: most often one, none if it can never hold.
fn translated(rule: &ruleset::Rule, family: Family) -> Vec<Vec<Statement>> {
    // Any of several ports is a rule for each.
    let several = rule.matches.iter().enumerate().find_map(|(at, one)| match &one.test {
        Test::Ports(protocol, ports) if !one.negated => Some((at, *protocol, ports)),
        _ => None,
    });
    if let Some((at, protocol, ports)) = several {
        let single = ports.iter().flat_map(|port| {
            let mut one = rule.clone();
            one.matches.splice(at..=at, [ruleset::to_port(protocol, *port)]);
            translated(&one, family)
        });
        return single.collect();
    }
    if rule.matches.iter().any(|one| one.negated && is_everywhere(&one.test)) {
        return Vec::new();
    }
    let all: Vec<Statement> = rule.matches.iter().flat_map(condition).collect();
    let has_port = |p: &Protocol| all.iter().any(|one| matches!(one, Statement::Port(_, _, of, _) if of == p));
    let implied = |one: &Statement| matches!(one, Statement::Protocol(false, protocol) if has_port(protocol));
    let mut conditions: Vec<Statement> = all.iter().filter(|one| !implied(one)).cloned().collect();
    conditions.dedup();
    let invalid = |one: &Statement| matches!(one, Statement::State(_, states) if states.contains(&ConnState::Invalid));
    if conditions.iter().any(invalid) {
        conditions.insert(0, Statement::Protocol(false, Protocol::Tcp));
    }
    steps(&rule.target, family).into_iter().map(|steps| [conditions.clone(), steps].concat()).collect()
}

fn is_everywhere(test: &Test) -> bool {
    matches!(test, Test::Source(net) | Test::Destination(net) if net.prefix_len() == 0)
}

fn condition(Match { negated, test }: &Match) -> Vec<Statement> {
    let not = *negated;
    let one = match test {
        Test::Source(net) | Test::Destination(net) if net.prefix_len() == 0 => {
            Statement::Family(Family::of(net.addr()))
        }
        Test::Source(net) => Statement::Address(Side::Source, not, net.trunc()),
        Test::Destination(net) => Statement::Address(Side::Destination, not, net.trunc()),
        Test::InInterface(name) => Statement::From(not, name.clone()),
        Test::OutInterface(name) => Statement::To(not, name.clone()),
        Test::Protocol(protocol) => Statement::Protocol(not, *protocol),
        Test::Header(protocol, None) => Statement::Protocol(false, *protocol),
        Test::Header(protocol, Some(Port::Source(port))) => Statement::Port(Side::Source, not, *protocol, *port),
        Test::Header(protocol, Some(Port::Destination(port))) => {
            Statement::Port(Side::Destination, not, *protocol, *port)
        }
        Test::Ports(protocol, ports) => {
            return ports.iter().map(|port| Statement::Port(Side::Destination, not, *protocol, *port)).collect();
        }
        Test::Mark(mark) => Statement::Mark(Of::Packet, not, *mark),
        Test::ConnMark(mark) => Statement::Mark(Of::Connection, not, *mark),
        Test::User(uid) => Statement::User(not, *uid),
        Test::Group(gid) => Statement::Group(not, *gid),
        Test::ConnState(states) => Statement::State(not, states.clone()),
        Test::LocalSocket => Statement::Socket,
        Test::DestinationSet(name) => {
            let family = if *name == host::probe_set(Family::V4) { Family::V4 } else { Family::V6 };
            Statement::InSet(not, family)
        }
    };
    vec![one]
}

/// What happens, and what happens if that cannot be.
fn steps(target: &Target, family: Family) -> Vec<Vec<Statement>> {
    let one = match *target {
        Target::Accept => Statement::Accept,
        Target::Return => Statement::Return,
        Target::Drop => Statement::Drop,
        Target::Jump(to) => Statement::Jump(name(to)),
        Target::Redirect(port) => Statement::Redirect(port),
        Target::SetConnMark(mark) => Statement::SetMark(Of::Connection, mark),
        Target::SetMark(mark) => Statement::SetMark(Of::Packet, mark),
        Target::SaveMark => Statement::CopyMark(Of::Connection),
        Target::RestoreMark => Statement::CopyMark(Of::Packet),
        Target::Zone(zone) => Statement::Zone(zone),
        Target::SourceNat(address) => Statement::SourceNat(address),
        Target::Tproxy { port, mark } => {
            let handed = vec![Statement::Tproxy(family, port), Statement::SetMark(Of::Packet, mark), Statement::Accept];
            // With nobody there, iptables' target lets nothing pass.
            return vec![handed, vec![Statement::Drop]];
        }
    };
    vec![vec![one]]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rules as words: of IPv4, of IPv6, and both in one list, in which `4` or `6` says that it is of one family.
    #[test]
    fn families_are_merged_in_order() {
        let ports = |text: &str| -> Vec<Vec<Statement>> {
            let port = |word: &str| word.bytes().next().unwrap_or(0).into();
            text.split_whitespace().map(|word| vec![Statement::Redirect(port(word))]).collect()
        };
        let check = |v4: &str, v6: &str, want: &str| {
            let merged = merged([ports(v4), ports(v6)], true);
            let shown = merged.iter().map(|rule| match rule.0.as_slice() {
                [Statement::Redirect(port)] => char::from(*port as u8).to_string(),
                [Statement::Family(Family::V4), Statement::Redirect(port)] => format!("4{}", char::from(*port as u8)),
                [Statement::Family(Family::V6), Statement::Redirect(port)] => format!("6{}", char::from(*port as u8)),
                other => panic!("{other:?}"),
            });
            assert_eq!(shown.collect::<Vec<_>>().join(" "), want, "{v4} / {v6}");
        };
        check("", "", "");
        check("a b c", "a b c", "a b c");
        check("a b c", "", "4a 4b 4c");
        check("", "a b", "6a 6b");
        check("a b c", "a c", "a 4b c");
        check("a c", "a b c", "a 6b c");
        check("x a y b", "p a q b", "4x 6p a 4y 6q b");
        check("a b", "b a", "4a b 6a");
        check("a a b", "a b", "a 4a b");
        check("a x", "y a", "6y a 4x");
    }

    #[test]
    fn what_cannot_be_said_at_once_becomes_several_rules_or_none() {
        use ruleset::{conn_state, destination, protocol, to_port, to_ports};
        let tcp = Protocol::Tcp;
        let check = |matches: Vec<Match>, target: Target, want: &[&str]| {
            let rule = ruleset::Rule::new(matches, target);
            let said: Vec<String> =
                translated(&rule, Family::V6).into_iter().map(|rule| Rule(rule).to_string()).collect();
            assert_eq!(said, want, "{rule:?}");
        };
        let everywhere = || destination("0.0.0.0/0".parse::<IpNet>().unwrap());
        check(vec![], Target::Return, &[" counter return"]);
        check(vec![protocol(tcp), to_port(tcp, 7)], Target::Drop, &[" tcp dport 7 counter drop"]);
        check(
            vec![protocol(tcp), !to_ports(tcp, [7, 8])],
            Target::Drop,
            &[" tcp dport != 7 tcp dport != 8 counter drop"],
        );
        check(
            vec![to_ports(tcp, [7, 8])],
            Target::Accept,
            &[" tcp dport 7 counter accept", " tcp dport 8 counter accept"],
        );
        check(vec![everywhere()], Target::Accept, &[" meta nfproto ipv4 counter accept"]);
        check(vec![!everywhere(), protocol(tcp)], Target::Accept, &[]);
        let invalid = vec![conn_state([ConnState::Invalid])];
        check(invalid, Target::Jump("ISTIO_DROP"), &[" meta l4proto tcp ct state invalid counter jump istio-drop"]);
        let whole = Mark { value: 5, mask: u32::MAX };
        let tproxy = Target::Tproxy { port: 9, mark: whole };
        let taken = " meta l4proto tcp counter tproxy ip6 to :9 meta mark set 0x5 accept";
        check(vec![protocol(tcp)], tproxy, &[taken, " meta l4proto tcp counter drop"]);
    }
}
