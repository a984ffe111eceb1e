//! Policy rules and routes for marked packets over rtnetlink, in the calling thread's network namespace.
//!
//! Formats: rtnetlink(7), `linux/fib_rules.h`, `linux/rtnetlink.h`. A family that the kernel does not have (IPv6 off at
//! boot) is an error of kind `Unsupported`.

use crate::error::{Context, Result};
use crate::rules::family::Family;
use crate::rules::preceding::Preceding;
use crate::rules::routing::{LocalRoute, MarkRule};
use crate::sys::netlink::attributes::{Attributes, put};
use crate::sys::netlink::{RawMessage, change, dump, unless};

/// Index of `lo`, the same in every network namespace (`LOOPBACK_IFINDEX` in the kernel's net/flow.h).
const LOOPBACK: u32 = 1;

/// Attributes of `struct fib_rule_hdr`.
pub(super) mod fra {
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
pub(super) const TO_TABLE: u8 = 1;
/// `FIB_RULE_INVERT`.
const INVERT: u32 = 2;

fn rule_payload(rule: &MarkRule) -> Vec<u8> {
    let mut payload = rule_header(rule.family, TO_TABLE).to_vec();
    put(&mut payload, fra::FWMARK, &rule.mark.to_ne_bytes());
    put(&mut payload, fra::FWMASK, &rule.mask.to_ne_bytes());
    // The header has room for tables up to 255 only; the attribute wins.
    put(&mut payload, fra::TABLE, &rule.table.to_ne_bytes());
    if let Some(priority) = rule.priority {
        put(&mut payload, fra::PRIORITY, &priority.to_ne_bytes());
    }
    payload
}

/// A rule of the kernel that matches nothing but the mark; its priority is given. What is not of the form of a rule is
/// none.
pub fn parse_rule(rule: &RawMessage) -> Option<MarkRule> {
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

/// Whether a rule of the kernel is the wanted one.
fn is_rule(wanted: &MarkRule, other: &MarkRule) -> bool {
    *wanted == MarkRule { priority: wanted.priority.and(other.priority), ..*other }
}

fn count(rule: &MarkRule) -> Result<usize> {
    Ok(rules(rule.family)?.iter().filter(|other| is_rule(rule, other)).count())
}

/// A rule of the kernel that looks a table up where all its conditions hold.
pub(super) struct Lookup<'a> {
    pub(super) family: Family,
    /// Length of the destination, bits.
    pub(super) to: u8,
    pub(super) table: u32,
    pub(super) priority: u32,
    /// Attributes by which it matches.
    pub(super) conditions: Vec<(u16, &'a [u8])>,
}

impl<'a> Lookup<'a> {
    /// `None` for other rules, those that match by the header's other fields, and what is no rule.
    pub(super) fn parse(rule: &'a RawMessage) -> Option<Self> {
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

pub(super) fn rule_header(family: Family, action: u8) -> [u8; RULE_HEADER] {
    [family.number(), 0, 0, 0, 0, 0, 0, action, 0, 0, 0, 0]
}

/// The rules of a family that match nothing but a mark.
fn rules(family: Family) -> Result<Vec<MarkRule>> {
    let found = dump(libc::RTM_GETRULE, &rule_header(family, 0)).context("list policy rules")?;
    Ok(found.iter().filter_map(parse_rule).collect())
}

/// The rules that match nothing but this mark, all of it.
pub fn rules_by_mark(family: Family, mark: u32) -> Result<Vec<MarkRule>> {
    Ok(rules(family)?.into_iter().filter(|rule| (rule.mark, rule.mask) == (mark, u32::MAX)).collect())
}

/// The rules that differ from this one by their table at most; by their preference too where that is not asked for.
pub(super) fn rules_alike(rule: &MarkRule) -> Result<Vec<MarkRule>> {
    let mut all = rules(rule.family)?;
    all.retain(|other| is_rule(rule, &MarkRule { table: rule.table, ..*other }));
    Ok(all)
}

/// Attributes of `struct rtmsg`.
pub(super) mod rta {
    pub const DST: u16 = 1;
    pub const OIF: u16 = 4;
    pub const TABLE: u16 = 15;
}

fn route_payload(route: &LocalRoute) -> Vec<u8> {
    let mut payload = route_header(route.family, libc::RTPROT_BOOT, libc::RT_SCOPE_HOST, libc::RTN_LOCAL).to_vec();
    put(&mut payload, rta::TABLE, &route.table.to_ne_bytes());
    put(&mut payload, rta::OIF, &LOOPBACK.to_ne_bytes());
    payload
}

/// Whether a route of the kernel is the wanted one. What is not of the form of a route is none.
pub fn is_route(wanted: &LocalRoute, route: &RawMessage) -> bool {
    /// Family, lengths of destination and source, type of service, table, protocol, scope, type, flags.
    const HEADER: usize = 12;
    let Some((&[family, to, _, _, table, _, _, kind, ..], attributes)) = route.payload.split_first_chunk::<HEADER>()
    else {
        return false;
    };
    let Ok(attributes) = Attributes::parse(attributes) else { return false };
    let number = |kind| attributes.get(kind).and_then(|value| value.try_into().ok()).map(u32::from_ne_bytes);
    route.kind == libc::RTM_NEWROUTE
        && (family, to, kind) == (wanted.family.number(), 0, libc::RTN_LOCAL)
        && number(rta::TABLE).unwrap_or(table.into()) == wanted.table
        && number(rta::OIF) == Some(LOOPBACK)
}

/// `struct rtmsg`.
pub(super) fn route_header(family: Family, protocol: u8, scope: u8, kind: u8) -> [u8; 12] {
    [family.number(), 0, 0, 0, 0, protocol, scope, kind, 0, 0, 0, 0]
}

/// The policy rules of others to which packets come before they come to this one, in whatever table it looks; none while
/// this one is not there. The
/// rule that looks the host's own addresses up (table `local`) is no other's.
pub fn preceding(rule: MarkRule) -> Result<Vec<Preceding>> {
    let found = dump(libc::RTM_GETRULE, &rule_header(rule.family, 0)).context("list policy rules")?;
    let ours = found.iter().filter_map(parse_rule);
    let ours =
        ours.filter(|other| is_rule(&rule, &MarkRule { table: rule.table, ..*other })).filter_map(|it| it.priority);
    let Some(ours) = ours.max() else { return Ok(Vec::new()) };
    let other = |message: &RawMessage| {
        let is_local = Lookup::parse(message)
            .is_some_and(|it| it.to == 0 && it.conditions.is_empty() && it.table == u32::from(libc::RT_TABLE_LOCAL));
        let family = message.payload.first().copied().and_then(Family::numbered)?;
        let attributes = Attributes::parse(message.payload.get(RULE_HEADER..)?).ok()?;
        let preference = attributes.get(fra::PRIORITY).and_then(|value| value.try_into().ok());
        let preference = preference.map_or(0, u32::from_ne_bytes);
        let precedes = message.kind == libc::RTM_NEWRULE && preference < ours && !is_local;
        precedes.then(|| Preceding::policy_rule(family, preference, &message.payload))
    };
    Ok(found.iter().filter_map(other).collect())
}

/// Adds the rule unless it is there.
pub fn add_rule(rule: MarkRule) -> Result<()> {
    // Without a preference of ours the kernel takes a new one each time, and never sees that the rule is there.
    if rule.priority.is_none() && has_rule(rule)? {
        return Ok(());
    }
    let added = change(libc::RTM_NEWRULE, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &rule_payload(&rule));
    unless(added, libc::EEXIST).map(drop).with_context(|| format!("add policy rule {rule:?}"))
}

/// Removes every copy of the rule; returns whether there was one.
pub fn remove_rule(rule: MarkRule) -> Result<bool> {
    let what = || format!("remove policy rule {rule:?}");
    // Counted first: the kernel takes what a request does not name as "any", and would go on with rules that match
    // more than the mark.
    let count = count(&rule).with_context(what)?;
    for _ in 0..count {
        unless(change(libc::RTM_DELRULE, 0, &rule_payload(&rule)), libc::ENOENT).with_context(what)?;
    }
    Ok(count > 0)
}

/// Whether exactly this rule is there.
pub fn has_rule(rule: MarkRule) -> Result<bool> {
    Ok(count(&rule)? > 0)
}

/// Adds the route unless it is there. Another's to the same destination stays, and is an error.
pub fn add_route(route: LocalRoute) -> Result<()> {
    let added = change(libc::RTM_NEWROUTE, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &route_payload(&route));
    match added {
        Err(e) if e.errno() == Some(libc::EEXIST) && has_route(route)? => Ok(()),
        added => added.with_context(|| format!("add route {route:?}")),
    }
}

/// Removes the route; returns whether it was there.
pub fn remove_route(route: LocalRoute) -> Result<bool> {
    // The kernel does not ask for the type in IPv6, and takes `unreachable default` for it.
    if !has_route(route)? {
        return Ok(false);
    }
    unless(change(libc::RTM_DELROUTE, 0, &route_payload(&route)), libc::ESRCH)
        .with_context(|| format!("remove route {route:?}"))
}

/// Whether the route is there.
pub fn has_route(route: LocalRoute) -> Result<bool> {
    let routes = dump(libc::RTM_GETROUTE, &route_header(route.family, 0, 0, 0)).context("list routes")?;
    Ok(routes.iter().any(|found| is_route(&route, found)))
}
