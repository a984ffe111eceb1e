//! rtnetlink in the calling thread's network namespace: rules, routes, links and addresses, and raw dumps of
//! nf_tables. Sockets live only as long as a call (an open one would keep the namespace alive).

use crate::error::Result;
use std::net::IpAddr;

/// IPv4 or IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A policy rule: packets with this mark use this table (`ip rule add fwmark MARK/MASK pref PREF lookup TABLE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// `ip route … local 0.0.0.0/0 dev lo table TABLE` (or `::/0`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalRoute {
    /// Family.
    pub family: Family,
    /// Routing table.
    pub table: u32,
}

/// Adds the rule unless it is there.
pub fn add_rule(_rule: MarkRule) -> Result<()> {
    todo!()
}
/// Removes every copy of the rule; returns whether there was one.
pub fn remove_rule(_rule: MarkRule) -> Result<bool> {
    todo!()
}
/// Whether exactly this rule is there.
pub fn has_rule(_rule: MarkRule) -> Result<bool> {
    todo!()
}
/// Adds or replaces the route.
pub fn replace_route(_route: LocalRoute) -> Result<()> {
    todo!()
}
/// Removes the route; returns whether it was there.
pub fn remove_route(_route: LocalRoute) -> Result<bool> {
    todo!()
}
/// Whether the route is there.
pub fn has_route(_route: LocalRoute) -> Result<bool> {
    todo!()
}
/// Every address of every interface.
pub fn addresses() -> Result<Vec<IpAddr>> {
    todo!()
}
/// Adds an address to an interface; one that is there is fine.
pub fn add_address(_interface: &str, _address: IpAddr, _prefix: u8) -> Result<()> {
    todo!()
}
/// Brings an interface up.
pub fn set_link_up(_interface: &str) -> Result<()> {
    todo!()
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
/// that the kernel marks interrupted (`NLM_F_DUMP_INTR`) is repeated.
pub fn netfilter(_kind: u16, _flags: u16, _payload: &[u8]) -> Result<Vec<RawMessage>> {
    todo!()
}
