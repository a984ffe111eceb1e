//! rtnetlink in the calling thread's network namespace: rules, routes, links and addresses, and raw requests to the
//! netfilter subsystems. Sockets live only as long as a call, or as a thread that is inside a namespace for the rest of its
//! life (an open one keeps the namespace alive).
//!
//! Formats: rtnetlink(7), `linux/fib_rules.h`, `linux/rtnetlink.h`. A family that the kernel does not have (IPv6 off at
//! boot) is an error of kind `Unsupported`.

pub mod attributes;
pub mod policy;
pub mod socket;

use crate::error::{Context, Error, Kind, Result};
use attributes::{Attributes, put};
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

    fn numbered(number: u8) -> Option<Self> {
        [Family::V4, Family::V6].into_iter().find(|family| family.number() == number)
    }

    /// `AF_INET` or `AF_INET6`.
    fn number(self) -> u8 {
        match self {
            Family::V4 => libc::AF_INET as u8,
            Family::V6 => libc::AF_INET6 as u8,
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

/// Attributes of `struct fib_rule_hdr`.
mod fra {
    pub const DST: u16 = 1;
    pub const IIFNAME: u16 = 3;
    pub const PRIORITY: u16 = 6;
    pub const FWMARK: u16 = 10;
    pub const SUPPRESS_PREFIXLEN: u16 = 14;
    pub const TABLE: u16 = 15;
    pub const FWMASK: u16 = 16;
    pub const PROTOCOL: u16 = 21;
}

/// `FR_ACT_TO_TBL`.
const TO_TABLE: u8 = 1;
/// `FIB_RULE_INVERT`.
const INVERT: u32 = 2;

impl MarkRule {
    fn payload(&self) -> Vec<u8> {
        let mut payload = rule_header(self.family, TO_TABLE).to_vec();
        put(&mut payload, fra::FWMARK, &self.mark.to_ne_bytes());
        put(&mut payload, fra::FWMASK, &self.mask.to_ne_bytes());
        // The header has room for tables up to 255 only; the attribute wins.
        put(&mut payload, fra::TABLE, &self.table.to_ne_bytes());
        if let Some(priority) = self.priority {
            put(&mut payload, fra::PRIORITY, &priority.to_ne_bytes());
        }
        payload
    }

    /// A rule of the kernel that matches nothing but the mark; its priority is given. What is not of the form of a rule
    /// is none.
    pub fn parse(rule: &RawMessage) -> Option<Self> {
        let Lookup { family, to, table, priority, conditions } = Lookup::parse(rule)?;
        let (mut mark, mut mask) = (0, u32::MAX);
        for (kind, value) in conditions {
            let number = u32::from_ne_bytes(value.try_into().ok()?);
            match kind {
                fra::FWMARK => mark = number,
                fra::FWMASK => mask = number,
                _ => return None,
            }
        }
        (to == 0).then_some(MarkRule { family, mark, mask, priority: Some(priority), table })
    }

    /// Whether a rule of the kernel is this one.
    fn is(&self, other: &MarkRule) -> bool {
        *self == MarkRule { priority: self.priority.and(other.priority), ..*other }
    }

    fn count(&self) -> Result<usize> {
        Ok(rules(self.family)?.iter().filter(|rule| self.is(rule)).count())
    }
}

/// A rule of the kernel that looks a table up where all its conditions hold.
struct Lookup<'a> {
    family: Family,
    /// Length of the destination, bits.
    to: u8,
    table: u32,
    priority: u32,
    /// Attributes by which it matches.
    conditions: Vec<(u16, &'a [u8])>,
}

impl<'a> Lookup<'a> {
    /// `None` for other rules, those that match by the header's other fields, and what is no rule.
    fn parse(rule: &'a RawMessage) -> Option<Self> {
        let (&[family, to, from, tos, table, _, _, action, flags @ ..], attributes) =
            rule.payload.split_first_chunk::<RULE_HEADER>()?;
        let family = Family::numbered(family)?;
        // The other flags tell whether an interface is there.
        let inverted = u32::from_ne_bytes(flags) & INVERT != 0;
        if rule.kind != libc::RTM_NEWRULE || (from, tos, action) != (0, 0, TO_TABLE) || inverted {
            return None;
        }
        let mut lookup = Lookup { family, to, table: table.into(), priority: 0, conditions: Vec::new() };
        for (kind, value) in Attributes::parse(attributes).ok()?.iter() {
            match (kind, value.try_into().map(u32::from_ne_bytes)) {
                // The header has room for tables up to 255 only; the attribute wins.
                (fra::TABLE, Ok(n)) => lookup.table = n,
                (fra::PRIORITY, Ok(n)) => lookup.priority = n,
                // Who made it, and what the kernel adds to every rule: "suppress nothing".
                (fra::PROTOCOL, _) | (fra::SUPPRESS_PREFIXLEN, Ok(u32::MAX)) => {}
                _ => lookup.conditions.push((kind, value)),
            }
        }
        Some(lookup)
    }
}

/// Size of `struct fib_rule_hdr`: family, lengths of destination and source, type of service, table, two reserved bytes,
/// action, flags.
const RULE_HEADER: usize = 12;

fn rule_header(family: Family, action: u8) -> [u8; RULE_HEADER] {
    [family.number(), 0, 0, 0, 0, 0, 0, action, 0, 0, 0, 0]
}

/// The rules of a family that match nothing but a mark.
fn rules(family: Family) -> Result<Vec<MarkRule>> {
    let found = dump(libc::RTM_GETRULE, &rule_header(family, 0)).context("list policy rules")?;
    Ok(found.iter().filter_map(MarkRule::parse).collect())
}

/// The rules that match nothing but this mark, all of it.
pub fn rules_by_mark(family: Family, mark: u32) -> Result<Vec<MarkRule>> {
    Ok(rules(family)?.into_iter().filter(|rule| (rule.mark, rule.mask) == (mark, u32::MAX)).collect())
}

/// `ip route … local 0.0.0.0/0 dev lo table TABLE` (or `::/0`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LocalRoute {
    /// Family.
    pub family: Family,
    /// Routing table.
    pub table: u32,
}

/// Attributes of `struct rtmsg`.
mod rta {
    pub const DST: u16 = 1;
    pub const OIF: u16 = 4;
    pub const TABLE: u16 = 15;
}

impl LocalRoute {
    fn payload(&self) -> Vec<u8> {
        let mut payload = route_header(self.family, libc::RTPROT_BOOT, libc::RT_SCOPE_HOST, libc::RTN_LOCAL).to_vec();
        put(&mut payload, rta::TABLE, &self.table.to_ne_bytes());
        put(&mut payload, rta::OIF, &LOOPBACK.to_ne_bytes());
        payload
    }

    /// Whether a route of the kernel is this one. What is not of the form of a route is none.
    pub fn is(&self, route: &RawMessage) -> bool {
        /// Family, lengths of destination and source, type of service, table, protocol, scope, type, flags.
        const HEADER: usize = 12;
        let Some((&[family, to, _, _, table, _, _, kind, ..], attributes)) =
            route.payload.split_first_chunk::<HEADER>()
        else {
            return false;
        };
        let Ok(attributes) = Attributes::parse(attributes) else { return false };
        let number = |kind| attributes.get(kind).and_then(|value| value.try_into().ok()).map(u32::from_ne_bytes);
        route.kind == libc::RTM_NEWROUTE
            && (family, to, kind) == (self.family.number(), 0, libc::RTN_LOCAL)
            && number(rta::TABLE).unwrap_or(table.into()) == self.table
            && number(rta::OIF) == Some(LOOPBACK)
    }
}

/// `struct rtmsg`.
fn route_header(family: Family, protocol: u8, scope: u8, kind: u8) -> [u8; 12] {
    [family.number(), 0, 0, 0, 0, protocol, scope, kind, 0, 0, 0, 0]
}

/// Adds the rule unless it is there.
pub fn add_rule(rule: MarkRule) -> Result<()> {
    // Without a preference of ours the kernel takes a new one each time, and never sees that the rule is there.
    if rule.priority.is_none() && has_rule(rule)? {
        return Ok(());
    }
    let added = change(libc::RTM_NEWRULE, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &rule.payload());
    unless(added, libc::EEXIST).map(drop).with_context(|| format!("add policy rule {rule:?}"))
}

/// Removes every copy of the rule; returns whether there was one.
pub fn remove_rule(rule: MarkRule) -> Result<bool> {
    let what = || format!("remove policy rule {rule:?}");
    // Counted first: the kernel takes what a request does not name as "any", and would go on with rules that match
    // more than the mark.
    let count = rule.count().with_context(what)?;
    for _ in 0..count {
        unless(change(libc::RTM_DELRULE, 0, &rule.payload()), libc::ENOENT).with_context(what)?;
    }
    Ok(count > 0)
}

/// Whether exactly this rule is there.
pub fn has_rule(rule: MarkRule) -> Result<bool> {
    Ok(rule.count()? > 0)
}

/// Adds or replaces the route.
pub fn replace_route(route: LocalRoute) -> Result<()> {
    change(libc::RTM_NEWROUTE, libc::NLM_F_CREATE | libc::NLM_F_REPLACE, &route.payload())
        .with_context(|| format!("add route {route:?}"))
}

/// Removes the route; returns whether it was there.
pub fn remove_route(route: LocalRoute) -> Result<bool> {
    unless(change(libc::RTM_DELROUTE, 0, &route.payload()), libc::ESRCH)
        .with_context(|| format!("remove route {route:?}"))
}

/// Whether the route is there.
pub fn has_route(route: LocalRoute) -> Result<bool> {
    let routes = dump(libc::RTM_GETROUTE, &route_header(route.family, 0, 0, 0)).context("list routes")?;
    Ok(routes.iter().any(|found| route.is(found)))
}

/// Every address of every interface.
pub fn addresses() -> Result<Vec<IpAddr>> {
    let found = dump(libc::RTM_GETADDR, &[0; ADDRESS_HEADER]).context("list addresses")?;
    Ok(found.iter().filter_map(address).collect())
}

/// Attributes of `struct ifaddrmsg`.
mod ifa {
    pub const ADDRESS: u16 = 1;
    pub const LOCAL: u16 = 2;
}

/// Size of `struct ifaddrmsg`: family, prefix length, flags, scope, interface.
const ADDRESS_HEADER: usize = 8;

/// The address that a message tells of, if it is one that does.
pub fn address(message: &RawMessage) -> Option<IpAddr> {
    let attributes = Attributes::parse(message.payload.get(ADDRESS_HEADER..)?).ok()?;
    // On a point-to-point link `ADDRESS` is the peer's, and `LOCAL` ours (rtnetlink(7)).
    let bytes = attributes.get(ifa::LOCAL).or_else(|| attributes.get(ifa::ADDRESS))?;
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let address = v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()?;
    (message.kind == libc::RTM_NEWADDR).then_some(address)
}

/// Adds an address to an interface; one that is there is fine.
pub fn add_address(interface: &str, address: IpAddr, prefix: u8) -> Result<()> {
    let what = || format!("add address {address}/{prefix} to {interface}");
    let payload = address_payload(interface, address, prefix).with_context(what)?;
    let added = change(libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &payload);
    unless(added, libc::EEXIST).map(drop).with_context(what)
}

/// Removes an address from an interface; returns whether it was there.
pub fn remove_address(interface: &str, address: IpAddr, prefix: u8) -> Result<bool> {
    let what = || format!("remove address {address}/{prefix} from {interface}");
    let payload = address_payload(interface, address, prefix).with_context(what)?;
    unless(change(libc::RTM_DELADDR, 0, &payload), libc::EADDRNOTAVAIL).with_context(what)
}

fn address_payload(interface: &str, address: IpAddr, prefix: u8) -> Result<Vec<u8>> {
    let mut payload = vec![Family::of(address).number(), prefix, 0, 0];
    payload.extend(index(interface)?.to_ne_bytes());
    for kind in [ifa::LOCAL, ifa::ADDRESS] {
        match address {
            IpAddr::V4(v4) => put(&mut payload, kind, &v4.octets()),
            IpAddr::V6(v6) => put(&mut payload, kind, &v6.octets()),
        }
    }
    Ok(payload)
}

/// Brings an interface up.
pub fn set_link_up(interface: &str) -> Result<()> {
    let what = || format!("set interface {interface} up");
    // struct ifinfomsg: family, padding, type, interface, flags, and which flags are meant.
    let mut payload = vec![0; 4];
    let up = libc::IFF_UP.cast_unsigned();
    for number in [index(interface).with_context(what)?, up, up] {
        payload.extend(number.to_ne_bytes());
    }
    change(libc::RTM_NEWLINK, 0, &payload).with_context(what)
}

fn index(interface: &str) -> Result<u32> {
    nix::net::if_::if_nametoindex(interface).map_err(|e| Error::from(e).with_kind(Kind::NotFound))
}

fn change(kind: u16, flags: i32, payload: &[u8]) -> Result<()> {
    socket::exchange(SockProtocol::NetlinkRoute, kind, flags as u16, payload).map(drop)
}

fn dump(kind: u16, payload: &[u8]) -> Result<Vec<RawMessage>> {
    socket::exchange(SockProtocol::NetlinkRoute, kind, libc::NLM_F_DUMP as u16, payload)
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
