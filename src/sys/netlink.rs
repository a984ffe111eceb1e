//! rtnetlink in the calling thread's network namespace: rules, routes, links and addresses, and raw dumps of
//! nf_tables. Sockets live only as long as a call (an open one would keep the namespace alive).
//!
//! A family that the kernel does not have (IPv6 off at boot) is an error of kind `Unsupported`.

pub mod socket;

use crate::error::{Context, Error, Kind, Result};
use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::sys::socket::SockProtocol;
use std::net::IpAddr;

/// Index of `lo`, the same in every network namespace (`LOOPBACK_IFINDEX` in the kernel's net/flow.h).
const LOOPBACK: u32 = 1;

/// IPv4 or IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}

impl From<Family> for AddressFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => AddressFamily::Inet,
            Family::V6 => AddressFamily::Inet6,
        }
    }
}

/// A policy rule: packets with this mark use this table (`ip rule add fwmark MARK/MASK pref PREF lookup TABLE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MarkRule {
    /// Family.
    pub family: Family,
    /// Mark.
    pub mark: u32,
    /// Mask of the mark.
    pub mask: u32,
    /// Preference; `None` lets the kernel choose.
    pub priority: Option<u32>,
    /// Routing table.
    pub table: u32,
}

impl MarkRule {
    fn message(&self) -> RuleMessage {
        let mut rule = RuleMessage::default();
        rule.header.family = self.family.into();
        rule.header.action = RuleAction::ToTable;
        rule.attributes = vec![
            RuleAttribute::FwMark(self.mark),
            RuleAttribute::FwMask(self.mask),
            // The header has room for tables up to 255 only; the attribute wins.
            RuleAttribute::Table(self.table),
        ];
        rule.attributes.extend(self.priority.map(RuleAttribute::Priority));
        rule
    }

    /// A rule of the kernel that matches nothing but the mark; its priority is given.
    fn parse(family: Family, rule: &RuleMessage) -> Option<Self> {
        let header = &rule.header;
        let plain = header.family == family.into()
            && header.action == RuleAction::ToTable
            && (header.src_len, header.dst_len, header.tos) == (0, 0, 0)
            && !header.flags.contains(RuleFlags::Invert);
        let (mut mark, mut mask, mut table, mut priority) = (0, u32::MAX, u32::from(header.table), 0);
        for attribute in &rule.attributes {
            match attribute {
                RuleAttribute::FwMark(n) => mark = *n,
                RuleAttribute::FwMask(n) => mask = *n,
                RuleAttribute::Table(n) => table = *n,
                RuleAttribute::Priority(n) => priority = *n,
                // Who made it, and what the kernel adds to every rule: "suppress nothing".
                RuleAttribute::Protocol(_) | RuleAttribute::SuppressPrefixLen(u32::MAX) => {}
                _ => return None,
            }
        }
        plain.then_some(MarkRule { family, mark, mask, priority: Some(priority), table })
    }

    /// Whether a rule of the kernel is this one.
    fn is(&self, rule: &RuleMessage) -> bool {
        let other = MarkRule::parse(self.family, rule);
        let priority = |other: MarkRule| MarkRule { priority: self.priority.and(other.priority), ..other };
        other.map(priority) == Some(*self)
    }

    fn count(&self) -> Result<usize> {
        Ok(rules(self.family)?.iter().filter(|rule| self.is(rule)).count())
    }
}

/// `ip route … local 0.0.0.0/0 dev lo table TABLE` (or `::/0`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LocalRoute {
    /// Family.
    pub family: Family,
    /// Routing table.
    pub table: u32,
}

impl LocalRoute {
    fn message(&self) -> RouteMessage {
        let mut route = RouteMessage::default();
        route.header.address_family = self.family.into();
        route.header.kind = RouteType::Local;
        route.header.scope = RouteScope::Host;
        route.header.protocol = RouteProtocol::Boot;
        route.attributes = vec![RouteAttribute::Table(self.table), RouteAttribute::Oif(LOOPBACK)];
        route
    }

    fn is(&self, route: &RouteMessage) -> bool {
        let header = &route.header;
        let table = route.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Table(table) => Some(*table),
            _ => None,
        });
        header.address_family == self.family.into()
            && header.kind == RouteType::Local
            && header.destination_prefix_length == 0
            && table.unwrap_or(header.table.into()) == self.table
            && route.attributes.contains(&RouteAttribute::Oif(LOOPBACK))
    }
}

fn rules(family: Family) -> Result<Vec<RuleMessage>> {
    let mut all = RuleMessage::default();
    all.header.family = family.into();
    let found = dump(RouteNetlinkMessage::GetRule(all)).context("list policy rules")?;
    let rule = |message| if let RouteNetlinkMessage::NewRule(rule) = message { Some(rule) } else { None };
    Ok(found.into_iter().filter_map(rule).collect())
}

/// The rules that match nothing but this mark, all of it.
pub fn rules_by_mark(family: Family, mark: u32) -> Result<Vec<MarkRule>> {
    let found = rules(family)?.into_iter().filter_map(|rule| MarkRule::parse(family, &rule));
    Ok(found.filter(|rule| (rule.mark, rule.mask) == (mark, u32::MAX)).collect())
}

/// Adds the rule unless it is there.
pub fn add_rule(rule: MarkRule) -> Result<()> {
    // Without a preference of ours the kernel takes a new one each time, and never sees that the rule is there.
    if rule.priority.is_none() && has_rule(rule)? {
        return Ok(());
    }
    let added = change(RouteNetlinkMessage::NewRule(rule.message()), libc::NLM_F_CREATE | libc::NLM_F_EXCL);
    unless(added, libc::EEXIST).map(drop).with_context(|| format!("add policy rule {rule:?}"))
}

/// Removes every copy of the rule; returns whether there was one.
pub fn remove_rule(rule: MarkRule) -> Result<bool> {
    let what = || format!("remove policy rule {rule:?}");
    // Counted first: the kernel takes what a request does not name as "any", and would go on with rules that match
    // more than the mark.
    let count = rule.count().with_context(what)?;
    for _ in 0..count {
        unless(change(RouteNetlinkMessage::DelRule(rule.message()), 0), libc::ENOENT).with_context(what)?;
    }
    Ok(count > 0)
}

/// Whether exactly this rule is there.
pub fn has_rule(rule: MarkRule) -> Result<bool> {
    Ok(rule.count()? > 0)
}

/// Adds or replaces the route.
pub fn replace_route(route: LocalRoute) -> Result<()> {
    change(RouteNetlinkMessage::NewRoute(route.message()), libc::NLM_F_CREATE | libc::NLM_F_REPLACE)
        .with_context(|| format!("add route {route:?}"))
}

/// Removes the route; returns whether it was there.
pub fn remove_route(route: LocalRoute) -> Result<bool> {
    unless(change(RouteNetlinkMessage::DelRoute(route.message()), 0), libc::ESRCH)
        .with_context(|| format!("remove route {route:?}"))
}

/// Whether the route is there.
pub fn has_route(route: LocalRoute) -> Result<bool> {
    let mut all = RouteMessage::default();
    all.header.address_family = route.family.into();
    let routes = dump(RouteNetlinkMessage::GetRoute(all)).context("list routes")?;
    Ok(routes.iter().any(|found| matches!(found, RouteNetlinkMessage::NewRoute(found) if route.is(found))))
}

/// Every address of every interface.
pub fn addresses() -> Result<Vec<IpAddr>> {
    let found = dump(RouteNetlinkMessage::GetAddress(AddressMessage::default())).context("list addresses")?;
    let own = |message: RouteNetlinkMessage| {
        let RouteNetlinkMessage::NewAddress(message) = message else { return None };
        // On a point-to-point link `Address` is the peer's, and `Local` ours (rtnetlink(7)).
        let local = |attribute: &AddressAttribute| match attribute {
            AddressAttribute::Local(address) => Some(*address),
            _ => None,
        };
        let any = |attribute: &AddressAttribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        };
        message.attributes.iter().find_map(local).or_else(|| message.attributes.iter().find_map(any))
    };
    Ok(found.into_iter().filter_map(own).collect())
}

/// Adds an address to an interface; one that is there is fine.
pub fn add_address(interface: &str, address: IpAddr, prefix: u8) -> Result<()> {
    let what = || format!("add address {address}/{prefix} to {interface}");
    let message = address_message(interface, address, prefix).with_context(what)?;
    let added = change(RouteNetlinkMessage::NewAddress(message), libc::NLM_F_CREATE | libc::NLM_F_EXCL);
    unless(added, libc::EEXIST).map(drop).with_context(what)
}

/// Removes an address from an interface; returns whether it was there.
pub fn remove_address(interface: &str, address: IpAddr, prefix: u8) -> Result<bool> {
    let what = || format!("remove address {address}/{prefix} from {interface}");
    let message = address_message(interface, address, prefix).with_context(what)?;
    unless(change(RouteNetlinkMessage::DelAddress(message), 0), libc::EADDRNOTAVAIL).with_context(what)
}

fn address_message(interface: &str, address: IpAddr, prefix: u8) -> Result<AddressMessage> {
    let mut message = AddressMessage::default();
    message.header.family = Family::of(address).into();
    message.header.prefix_len = prefix;
    message.header.index = index(interface)?;
    message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
    Ok(message)
}

/// Brings an interface up.
pub fn set_link_up(interface: &str) -> Result<()> {
    let what = || format!("set interface {interface} up");
    let mut message = LinkMessage::default();
    message.header.index = index(interface).with_context(what)?;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    change(RouteNetlinkMessage::NewLink(message), 0).with_context(what)
}

fn index(interface: &str) -> Result<u32> {
    nix::net::if_::if_nametoindex(interface).map_err(|e| Error::from(e).with_kind(Kind::NotFound))
}

fn encode(message: &RouteNetlinkMessage) -> (u16, Vec<u8>) {
    let mut payload = vec![0; message.buffer_len()];
    message.serialize(&mut payload);
    (message.message_type(), payload)
}

fn change(message: RouteNetlinkMessage, flags: i32) -> Result<()> {
    let (kind, payload) = encode(&message);
    socket::exchange(SockProtocol::NetlinkRoute, kind, flags as u16, &payload).map(drop)
}

fn dump(message: RouteNetlinkMessage) -> Result<Vec<RouteNetlinkMessage>> {
    let (kind, payload) = encode(&message);
    let answers = socket::exchange(SockProtocol::NetlinkRoute, kind, libc::NLM_F_DUMP as u16, &payload)?;
    Ok(answers.iter().filter_map(decode).collect())
}

/// Decodes one message of rtnetlink. What cannot be decoded has attributes newer than this program, so it is none of
/// its own.
pub fn decode(message: &RawMessage) -> Option<RouteNetlinkMessage> {
    let mut header = NetlinkHeader::default();
    header.message_type = message.kind;
    RouteNetlinkMessage::deserialize(&header, &message.payload).ok()
}

/// Turns one errno into "it was so already" (`false`).
fn unless(result: Result<()>, errno: i32) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(e) if e.errno() == Some(errno) => Ok(false),
        Err(e) => Err(e),
    }
}

/// One message of a dump: its type and everything after the netlink header.
#[derive(Debug, Clone)]
pub struct RawMessage {
    /// `nlmsg_type`.
    pub kind: u16,
    /// The payload.
    pub payload: Vec<u8>,
}

/// Sends one request to `NETLINK_NETFILTER` with `NLM_F_REQUEST | flags` and collects the answers until done; a dump
/// that the kernel marks interrupted (`NLM_F_DUMP_INTR`) is repeated. A refusal carries its errno
/// ([`Error::errno`]); one that is not there is `NotFound`.
pub fn netfilter(kind: u16, flags: u16, payload: &[u8]) -> Result<Vec<RawMessage>> {
    socket::exchange(SockProtocol::NetlinkNetFilter, kind, flags, payload)
}

/// One message of a transaction.
#[derive(Debug, Clone)]
pub struct Change {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags` besides `NLM_F_REQUEST`.
    pub flags: u16,
    /// Everything after the netlink header.
    pub payload: Vec<u8>,
}

/// Sends changes of one subsystem of `NETLINK_NETFILTER` (`NFNL_SUBSYS_…`) as one batch, of which the kernel takes all
/// or nothing.
pub fn netfilter_batch(subsystem: u8, changes: &[Change]) -> Result<()> {
    socket::batch(subsystem, changes)
}
