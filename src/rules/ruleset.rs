//! Rule sets as data: tables, chains of ours, the rules that lead into them from built-in chains, matches, targets.
//!
//! A backend renders this model; nothing here knows how a rule is written down. Matches keep their order, because the
//! kernel keeps it and two rule sets are compared by what the kernel holds.

use crate::rules::family::Family;
use ipnet::IpNet;
use std::net::IpAddr;
use std::ops::Not;

/// What one family's packet filter should hold of ours.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RuleSet {
    /// IPv4 or IPv6.
    pub family: Family,
    /// Only tables in which something of ours is.
    pub tables: Vec<Table>,
}

impl RuleSet {
    /// Whether a rule asks for an address in an ipset, without which the kernel does not take it.
    pub fn uses_a_set(&self) -> bool {
        self.rules().flat_map(|rule| &rule.matches).any(|one| matches!(one.test, Test::DestinationSet(_)))
    }

    /// Whether a rule asks for the user or the group of the process that sends.
    pub fn matches_owners(&self) -> bool {
        let mut tests = self.rules().flat_map(|rule| &rule.matches).map(|one| &one.test);
        tests.any(|test| matches!(test, Test::User(_) | Test::Group(_)))
    }

    pub(super) fn rules(&self) -> impl Iterator<Item = &Rule> {
        let chains = self.tables.iter().flat_map(|table| &table.chains).flat_map(|chain| &chain.rules);
        chains.chain(self.tables.iter().flat_map(|table| &table.hooks).map(|hook| &hook.rule))
    }
}

/// Our part of one table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Table {
    /// Which table.
    pub name: TableName,
    /// Chains of ours.
    pub chains: Vec<Chain>,
    /// Rules of ours in built-in chains, in the order they have within each of these.
    pub hooks: Vec<Hook>,
}

/// A table of the packet filter, under the name iptables gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableName {
    /// Packet and connection marks.
    Mangle,
    /// Redirection.
    Nat,
    /// Connection tracking zones.
    Raw,
}

impl TableName {
    /// All of them.
    pub const ALL: [TableName; 3] = [TableName::Mangle, TableName::Nat, TableName::Raw];

    /// The name that iptables writes.
    pub fn as_str(self) -> &'static str {
        match self {
            TableName::Mangle => "mangle",
            TableName::Nat => "nat",
            TableName::Raw => "raw",
        }
    }
}

/// A chain that the kernel walks by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BuiltIn {
    /// Packets as they come in, before routing.
    Prerouting,
    /// Packets made here, before they are routed again.
    Output,
    /// Packets as they leave.
    Postrouting,
}

impl BuiltIn {
    /// All of them.
    pub const ALL: [BuiltIn; 3] = [BuiltIn::Prerouting, BuiltIn::Output, BuiltIn::Postrouting];

    /// The name that iptables writes.
    pub fn as_str(self) -> &'static str {
        match self {
            BuiltIn::Prerouting => "PREROUTING",
            BuiltIn::Output => "OUTPUT",
            BuiltIn::Postrouting => "POSTROUTING",
        }
    }
}

/// A chain of ours with its rules.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Chain {
    /// Its name, part of the contract with other tools on the node.
    pub name: &'static str,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// A rule of ours in a built-in chain.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hook {
    /// The built-in chain.
    pub chain: BuiltIn,
    /// Where in it.
    pub place: Place,
    /// The rule; most often a plain jump.
    pub rule: Rule,
}

impl Hook {
    /// A jump without conditions, after what is there already.
    pub fn jump(chain: BuiltIn, to: &'static str) -> Self {
        Hook { chain, place: Place::Last, rule: Rule::new([], Target::Jump(to)) }
    }
}

/// Where a rule of ours stands among the rules of others in a built-in chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// Before all others (after hooks of the same chain that are listed earlier).
    First,
    /// Where it was appended; rules of others may stand before it.
    Last,
}

/// A chain of ours and the built-in chain that calls it without condition: the unit of ownership. Whatever is not on
/// such a list belongs to somebody else, whatever its name begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owned {
    /// The table.
    pub table: TableName,
    /// The built-in chain with the jump; `None` for a chain that is called from others of ours, or on conditions.
    pub from: Option<BuiltIn>,
    /// The chain.
    pub chain: &'static str,
}

/// One rule: all matches hold, then the target.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Conditions, in kernel order.
    pub matches: Vec<Match>,
    /// What happens.
    pub target: Target,
}

impl Rule {
    /// A rule.
    pub fn new(matches: impl Into<Vec<Match>>, target: Target) -> Self {
        Rule { matches: matches.into(), target }
    }
}

/// A condition, possibly negated with `!`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Match {
    /// The condition must not hold.
    pub negated: bool,
    /// The condition.
    pub test: Test,
}

impl Not for Match {
    type Output = Match;
    fn not(self) -> Match {
        Match { negated: !self.negated, ..self }
    }
}

impl From<Test> for Match {
    fn from(test: Test) -> Self {
        Match { negated: false, test }
    }
}

/// What a packet is asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Test {
    /// Source address.
    Source(IpNet),
    /// Destination address.
    Destination(IpNet),
    /// Interface it came in by.
    InInterface(String),
    /// Interface it leaves by.
    OutInterface(String),
    /// Transport protocol.
    Protocol(Protocol),
    /// A whole header of the transport protocol, and a port in it when one is named.
    Header(Protocol, Option<Port>),
    /// The packet's mark.
    Mark(Mark),
    /// The connection's mark.
    ConnMark(Mark),
    /// It was sent by a process that runs as this user.
    User(u32),
    /// It was sent by a process that runs as this group.
    Group(u32),
    /// The destination port is one of these.
    Ports(Protocol, Vec<u16>),
    /// Conntrack puts it into one of these states.
    ConnState(Vec<ConnState>),
    /// It belongs to a socket of this network namespace.
    LocalSocket,
    /// Its destination is in this ipset.
    DestinationSet(&'static str),
}

/// Transport protocols that rules tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// The name that iptables writes, for the protocol and for the match of its header.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        }
    }
}

/// A port of the transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Port {
    /// Source port.
    Source(u16),
    /// Destination port.
    Destination(u16),
}

/// What conntrack knows of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnState {
    /// It belongs to no connection that could be.
    Invalid,
    /// It belongs to a connection that has seen packets in both directions.
    Established,
    /// It opens a connection that an established one asked for.
    Related,
}

/// Bits of a mark and which of them count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The bits.
    pub value: u32,
    /// The bits that count.
    pub mask: u32,
}

/// What a rule does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// No further rule of this hook is asked.
    Accept,
    /// Back to the calling chain.
    Return,
    /// On in a chain of ours.
    Jump(&'static str),
    /// To this port of the local host.
    Redirect(u16),
    /// Marks the connection (replaces the masked bits).
    SetConnMark(Mark),
    /// The packet is gone.
    Drop,
    /// Marks the packet (replaces the masked bits).
    SetMark(Mark),
    /// Hands the packet, as it is, to the local socket on this port, and marks it.
    Tproxy {
        /// The port.
        port: u16,
        /// The mark.
        mark: Mark,
    },
    /// Copies the packet's mark to the connection.
    SaveMark,
    /// Copies the connection's mark to the packet.
    RestoreMark,
    /// Tracks the connection in a zone of its own.
    Zone(u16),
    /// Rewrites the source address.
    SourceNat(IpAddr),
}

/// Source address in `net`.
pub fn source(net: impl Into<IpNet>) -> Match {
    Test::Source(net.into()).into()
}

/// Destination address in `net`.
pub fn destination(net: impl Into<IpNet>) -> Match {
    Test::Destination(net.into()).into()
}

/// Came in by `interface`.
pub fn in_interface(interface: &str) -> Match {
    Test::InInterface(interface.to_owned()).into()
}

/// Leaves by `interface`.
pub fn out_interface(interface: &str) -> Match {
    Test::OutInterface(interface.to_owned()).into()
}

/// Transport protocol is `protocol`.
pub fn protocol(protocol: Protocol) -> Match {
    Test::Protocol(protocol).into()
}

/// Has a whole header of `protocol`.
pub fn header(protocol: Protocol) -> Match {
    Test::Header(protocol, None).into()
}

/// Destination port.
pub fn to_port(protocol: Protocol, port: u16) -> Match {
    Test::Header(protocol, Some(Port::Destination(port))).into()
}

/// Source port.
pub fn from_port(protocol: Protocol, port: u16) -> Match {
    Test::Header(protocol, Some(Port::Source(port))).into()
}

/// The packet carries `mark`.
pub fn mark(mark: Mark) -> Match {
    Test::Mark(mark).into()
}

/// The connection carries `mark`.
pub fn connmark(mark: Mark) -> Match {
    Test::ConnMark(mark).into()
}

/// Sent by a process that runs as user `uid`.
pub fn user(uid: u32) -> Match {
    Test::User(uid).into()
}

/// Sent by a process that runs as group `gid`.
pub fn group(gid: u32) -> Match {
    Test::Group(gid).into()
}

/// Destination port is one of `ports` (15 at most).
pub fn to_ports(protocol: Protocol, ports: impl Into<Vec<u16>>) -> Match {
    Test::Ports(protocol, ports.into()).into()
}

/// In one of these states.
pub fn conn_state(states: impl Into<Vec<ConnState>>) -> Match {
    Test::ConnState(states.into()).into()
}
