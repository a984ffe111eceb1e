//! What a program needs outside the packet filter, in the calling thread's namespace: policy rules and routes for marked
//! packets, addresses of `lo`.

use super::routing;
use crate::error::{Context, Result};
use crate::rules::program::Effect;
use crate::sys::netlink;

/// Width of an IPv6 address: the prefix that holds one.
const ALONE: u8 = 128;

/// What a person calls it.
pub fn name(effect: &Effect) -> String {
    match effect {
        Effect::Rule(_) => "the rule for marked packets".to_owned(),
        Effect::Route(_) => "the local route for marked packets".to_owned(),
        Effect::Loopback(address) => format!("address {address} of lo"),
    }
}

/// Whether it is there.
pub fn is_there(effect: &Effect) -> Result<bool> {
    match effect {
        Effect::Rule(rule) => routing::has_rule(*rule),
        Effect::Route(route) => routing::has_route(*route),
        Effect::Loopback(address) => Ok(netlink::addresses()?.contains(&(*address).into())),
    }
}

/// Adds it; what is there already is fine.
pub fn add(effect: &Effect) -> Result<()> {
    let added = match effect {
        Effect::Rule(rule) => routing::add_rule(*rule),
        Effect::Route(route) => routing::add_route(*route),
        Effect::Loopback(address) => netlink::add_address("lo", (*address).into(), ALONE),
    };
    added.map_err(|e| {
        let hint = if e.errno() == Some(libc::ENETDOWN) { " (is its lo down? the runtime brings it up)" } else { "" };
        e.context(format_args!("add {}{hint}", name(effect)))
    })
}

/// Removes it; what is gone already is fine.
pub fn remove(effect: &Effect) -> Result<()> {
    let removed = match effect {
        Effect::Rule(rule) => routing::remove_rule(*rule),
        Effect::Route(route) => routing::remove_route(*route),
        Effect::Loopback(address) => netlink::remove_address("lo", (*address).into(), ALONE),
    };
    removed.map(drop).with_context(|| format!("remove {}", name(effect)))
}
