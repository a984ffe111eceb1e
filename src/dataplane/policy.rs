//! Policy rules that match where a packet comes from or goes to, and the routes to single hosts, in the calling thread's
//! network namespace.

use super::routing::{Lookup, TO_TABLE, fra, route_header, rta, rule_header};
use crate::error::{Context, Result};
use crate::rules::family::Family;
use crate::sys::netlink::attributes::{Attributes, put};
use crate::sys::netlink::{RawMessage, change, dump, unless};
use nix::net::if_::if_indextoname;
use std::net::IpAddr;

/// `RT_TABLE_LOCAL`: addresses of this host.
pub const LOCAL_TABLE: u32 = 255;

/// What a rule matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// `to ADDRESS/32` (or `/128`).
    To(IpAddr),
    /// `iif INTERFACE`.
    From(String),
}

/// `ip rule add MATCH pref PRIORITY lookup TABLE`, and nothing else in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRule {
    /// Family.
    pub family: Family,
    /// Which packets.
    pub matches: Match,
    /// Routing table.
    pub table: u32,
    /// Preference.
    pub priority: u32,
}

impl PolicyRule {
    fn payload(&self) -> Vec<u8> {
        let mut header = rule_header(self.family, TO_TABLE);
        let (kind, value) = match &self.matches {
            Match::To(address) => {
                header[1] = prefix(*address);
                (fra::DST, octets(*address))
            }
            Match::From(interface) => (fra::IIFNAME, [interface.as_bytes(), b"\0"].concat()),
        };
        let mut payload = header.to_vec();
        put(&mut payload, kind, &value);
        put(&mut payload, fra::TABLE, &self.table.to_ne_bytes());
        put(&mut payload, fra::PRIORITY, &self.priority.to_ne_bytes());
        payload
    }

    /// A rule of the kernel of this form; `None` for others, and for what is no rule.
    pub fn parse(rule: &RawMessage) -> Option<Self> {
        let Lookup { family, to, table, priority, conditions } = Lookup::parse(rule)?;
        let matches = match conditions.as_slice() {
            [(fra::DST, value)] => Match::To(address(value).filter(|address| prefix(*address) == to)?),
            [(fra::IIFNAME, name)] if to == 0 => {
                Match::From(String::from_utf8(name.strip_suffix(b"\0")?.to_vec()).ok()?)
            }
            _ => return None,
        };
        Some(PolicyRule { family, matches, table, priority })
    }
}

fn prefix(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// Every rule of this form.
pub fn list(family: Family) -> Result<Vec<PolicyRule>> {
    let found = dump(libc::RTM_GETRULE, &rule_header(family, 0)).context("list policy rules")?;
    Ok(found.iter().filter_map(PolicyRule::parse).collect())
}

/// Adds the rule; returns whether it was missing.
pub fn add(rule: &PolicyRule) -> Result<bool> {
    let added = change(libc::RTM_NEWRULE, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &rule.payload());
    unless(added, libc::EEXIST).with_context(|| format!("add policy rule {rule:?}"))
}

/// Removes the rule; returns whether exactly this one was there.
pub fn remove(rule: &PolicyRule) -> Result<bool> {
    // Looked at first: the kernel takes what a request does not name as "any".
    if !list(rule.family)?.contains(rule) {
        return Ok(false);
    }
    unless(change(libc::RTM_DELRULE, 0, &rule.payload()), libc::ENOENT)
        .with_context(|| format!("remove policy rule {rule:?}"))
}

/// A route to one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRoute {
    /// Through this interface.
    pub interface: String,
    /// In this table.
    pub table: u32,
}

/// The unicast routes to exactly this address, of all tables.
pub fn host_routes(to: IpAddr) -> Result<Vec<HostRoute>> {
    let family = Family::of(to);
    let routes = dump(libc::RTM_GETROUTE, &route_header(family, 0, 0, 0)).context("list routes")?;
    let through = routes.iter().filter_map(|route| host_route(route, to));
    Ok(through.filter_map(|(index, table)| Some(HostRoute { interface: name(index)?, table })).collect())
}

/// Interface and table, if the message tells of a route to this address.
fn host_route(route: &RawMessage, to: IpAddr) -> Option<(u32, u32)> {
    /// `struct rtmsg`.
    const HEADER: usize = 12;
    let (&[_, bits, _, _, table, _, _, kind, ..], attributes) = route.payload.split_first_chunk::<HEADER>()?;
    let attributes = Attributes::parse(attributes).ok()?;
    let number = |kind| attributes.get(kind).and_then(|value| value.try_into().ok()).map(u32::from_ne_bytes);
    let is_it = route.kind == libc::RTM_NEWROUTE
        && (bits, kind) == (prefix(to), libc::RTN_UNICAST)
        && attributes.get(rta::DST).and_then(address) == Some(to);
    is_it.then_some((number(rta::OIF)?, number(rta::TABLE).unwrap_or(table.into())))
}

fn name(index: u32) -> Option<String> {
    if_indextoname(index).ok()?.into_string().ok()
}
