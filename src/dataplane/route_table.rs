//! The routing table to which marked packets are led, in the calling thread's network namespace.
//!
//! It must hold our route and nothing else: what another has put there would take marked packets elsewhere, and our
//! route would take the other's packets to `lo` (the CNI plugin `sbr` numbers its tables from 100, which is Istio's
//! number). So where the usual table is taken, another one is used, and the other's routes stay as they are.

use super::routing::{is_route, route_header, rta, rules_alike};
use crate::error::{Context, Error, Result};
use crate::rules::family::Family;
use crate::rules::program::Effect;
use crate::rules::routing::{LocalRoute, MarkRule};
use crate::sys::netlink::attributes::Attributes;
use crate::sys::netlink::{RawMessage, dump};
use std::net::IpAddr;

/// Used one after the other where the usual table is taken: far from the numbers that others begin with.
const OTHERS: std::ops::Range<u32> = 15100..15164;

/// Where effects belong here.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// The effects, with the tables that are used.
    pub wanted: Vec<Effect>,
    /// Rules of ours by the same marks that lead to other tables, and our routes there.
    pub stale: Vec<Effect>,
}

/// Finds tables for policy rules and the routes they lead to. Other effects are passed on.
pub fn place(effects: impl Iterator<Item = Effect>) -> Result<Placed> {
    let mut placed = Placed::default();
    let mut moved: Vec<(Family, u32, u32)> = Vec::new();
    for effect in effects {
        match effect {
            Effect::Rule(rule) => {
                let tables = Tables::read(rule.family)?;
                let table = tables.choose(&rule)?;
                moved.push((rule.family, rule.table, table));
                placed.wanted.push(Effect::Rule(MarkRule { table, ..rule }));
                placed.stale.extend(tables.elsewhere(&rule, table)?);
            }
            Effect::Route(route) => {
                let to = moved.iter().find(|(family, from, _)| (*family, *from) == (route.family, route.table));
                let table = to.map_or(route.table, |(.., table)| *table);
                placed.wanted.push(Effect::Route(LocalRoute { table, ..route }));
            }
            Effect::Loopback(_) => placed.wanted.push(effect),
        }
    }
    Ok(placed)
}

/// The rules of ours by this rule's mark that lead to other tables than its own, and our routes there.
pub fn elsewhere(rule: &MarkRule) -> Result<Vec<Effect>> {
    Tables::read(rule.family)?.elsewhere(rule, rule.table)
}

/// The routes of a family.
struct Tables {
    family: Family,
    routes: Vec<RawMessage>,
}

impl Tables {
    fn read(family: Family) -> Result<Self> {
        let routes = dump(libc::RTM_GETROUTE, &route_header(family, 0, 0, 0)).context("list routes")?;
        Ok(Tables { family, routes })
    }

    /// A table that is ours already is kept.
    fn choose(&self, rule: &MarkRule) -> Result<u32> {
        if self.foreign(rule.table).is_none() {
            return Ok(rule.table);
        }
        let used = rules_alike(rule)?.into_iter().map(|other| other.table);
        let used = used.filter(|table| self.has_ours(*table) && self.foreign(*table).is_none()).min();
        if let Some(table) = used {
            return Ok(table);
        }
        let free = OTHERS.into_iter().find(|table| !self.routes.iter().any(|route| table_of(route) == Some(*table)));
        let of_another = self.foreign(rule.table).unwrap_or_default();
        let free = free.ok_or_else(|| {
            Error::new(format_args!(
                "routing table {} has another's route ({of_another}), and no other table is free",
                rule.table
            ))
        })?;
        log::info!(
            "routing table {} has another's {} route ({of_another}), which stays; table {free} is used for marked packets",
            rule.table,
            self.family.name()
        );
        Ok(free)
    }

    fn elsewhere(&self, rule: &MarkRule, but: u32) -> Result<Vec<Effect>> {
        let mut all = Vec::new();
        for other in rules_alike(rule)?.into_iter().filter(|other| other.table != but) {
            let has_ours = self.has_ours(other.table);
            // A rule with our mark and our preference is ours, another only if it leads to our route.
            if has_ours || rule.priority.is_some() {
                all.push(Effect::Rule(MarkRule { priority: rule.priority, ..other }));
            }
            if has_ours {
                all.push(Effect::Route(LocalRoute { family: self.family, table: other.table }));
            }
        }
        Ok(all)
    }

    fn has_ours(&self, table: u32) -> bool {
        self.routes.iter().any(|route| is_route(&LocalRoute { family: self.family, table }, route))
    }

    /// The destination of a route in a table that is not ours.
    fn foreign(&self, table: u32) -> Option<String> {
        let ours = LocalRoute { family: self.family, table };
        let mut others = self.routes.iter().filter(|route| table_of(route) == Some(table) && !is_route(&ours, route));
        others.next().map(destination)
    }
}

/// `struct rtmsg`: family, lengths of destination and source, type of service, table, protocol, scope, type, flags.
const HEADER: usize = 12;

fn table_of(route: &RawMessage) -> Option<u32> {
    let (&[_, _, _, _, table, ..], attributes) = route.payload.split_first_chunk::<HEADER>()?;
    let attributes = Attributes::parse(attributes).ok()?;
    let number = attributes.get(rta::TABLE).and_then(|value| value.try_into().ok()).map(u32::from_ne_bytes);
    (route.kind == libc::RTM_NEWROUTE).then(|| number.unwrap_or(table.into()))
}

/// What a person calls a route.
fn destination(route: &RawMessage) -> String {
    let parts = || {
        let (&[_, length, ..], attributes) = route.payload.split_first_chunk::<HEADER>()?;
        let address = Attributes::parse(attributes).ok()?.get(rta::DST)?.to_vec();
        let address = match *address.as_slice() {
            [a, b, c, d] => IpAddr::from([a, b, c, d]),
            ref long => IpAddr::from(<[u8; 16]>::try_from(long).ok()?),
        };
        Some(format!("{address}/{length}"))
    };
    parts().unwrap_or_else(|| "default".to_owned())
}
