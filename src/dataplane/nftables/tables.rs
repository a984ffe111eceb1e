//! The tables of nf_tables that are ours as a whole ([`crate::rules::nftables`]): written by one transaction over
//! netlink, compared with what they should be, taken out. No program is needed.
//!
//! In the calling thread's namespace. Formats: `linux/netfilter/nf_tables.h`.

use super::dump;
use super::expression::expressions;
use super::message::{self, INET, NEWCHAIN, NEWRULE, NEWTABLE, SUBSYSTEM, kind};
use crate::error::{Context, Result};
use crate::invalid;
use crate::rules::diff::Leftovers;
use crate::rules::family::Family;
use crate::rules::host::probe_set;
use crate::rules::nftables::{Base, Chain, Table, owned, text};
use crate::rules::program::Purpose;
use crate::rules::ruleset::BuiltIn;
use crate::rules::view::{TableView, View};
use crate::sys::netlink::attributes::{NESTED, header, put, put_text};
use crate::sys::netlink::{self, Change};

const DELTABLE: u16 = kind(2);
const DELCHAIN: u16 = kind(5);
const DELRULE: u16 = kind(8);
const NEWSET: u16 = kind(9);
const SET_KEY_TYPE: u16 = 4;
const SET_KEY_LENGTH: u16 = 5;
/// The number by which the rest of the transaction may call it.
const SET_ID: u16 = 10;

const CREATE: i32 = libc::NLM_F_CREATE;

/// Tables of ours together with what a kernel that holds them shows.
#[derive(Debug, Default)]
pub struct Own {
    /// The tables.
    pub tables: Vec<Table>,
    /// The tables as the kernel shows them.
    pub view: View,
}

/// What is to be done about a difference.
#[derive(Debug, Default)]
pub struct Edit<'a> {
    /// Tables that are written, whatever stands there.
    write: Vec<&'a Table>,
    /// Names of tables to write that are not there at all.
    missing: Vec<&'static str>,
    /// The chains of those that stay because of their sets.
    chains: Vec<(&'static str, Vec<String>)>,
    /// Tables that are switched off and stay.
    wake: Vec<&'static str>,
    /// Tables that are taken out.
    remove: Vec<&'static str>,
    /// What is not as it should be, one clause each.
    pub differences: Vec<String>,
    /// Something of ours is there.
    pub had_ours: bool,
}

impl Own {
    /// Takes the tables and a view of a namespace into which nothing but these was put.
    pub fn new(tables: Vec<Table>, view: View) -> Result<Self> {
        for Table { name, chains, .. } in &tables {
            for Chain { name: chain, rules, .. } in chains {
                let (want, got) = (rules.len(), view.table(name).map_or(0, |table| table.rules(chain).len()));
                if want != got {
                    return Err(invalid!("the kernel shows {got} rules in {name} {chain}, {want} were written"));
                }
            }
        }
        Ok(Own { tables, view })
    }

    /// What has to be done where the kernel has `actual`.
    pub fn plan(&self, purpose: Purpose, actual: &View, leftovers: Leftovers) -> Edit<'_> {
        let mut edit = Edit { had_ours: !actual.tables.is_empty(), ..Edit::default() };
        for table in &self.tables {
            let nothing = TableView::default();
            let want = self.view.table(table.name).unwrap_or(&nothing);
            let wrong = match actual.table(table.name) {
                None => {
                    edit.missing.push(table.name);
                    vec!["is missing".to_owned()]
                }
                Some(have) => {
                    if !table.sets.is_empty() {
                        edit.chains.push((table.name, have.chains.keys().cloned().collect()));
                        edit.wake.extend(have.dormant.then_some(table.name));
                    }
                    differences(want, have)
                }
            };
            if !wrong.is_empty() {
                edit.differences.extend(wrong.iter().map(|what| format!("table inet {} {what}", table.name)));
                edit.write.push(table);
            }
        }
        if leftovers == Leftovers::Remove {
            for name in owned(purpose) {
                if actual.table(name).is_some() && !self.tables.iter().any(|table| table.name == name) {
                    edit.differences.push(format!("table inet {name} is a leftover"));
                    edit.remove.push(name);
                }
            }
        }
        edit
    }
}

/// Predicates of the table.
fn differences(want: &TableView, have: &TableView) -> Vec<String> {
    let mut all = Vec::new();
    if have.dormant != want.dormant {
        all.push("is switched off".to_owned());
    }
    for (name, chain) in &want.chains {
        match have.chains.get(name) {
            None => all.push(format!("lacks chain {name}")),
            Some(other) if other.attached != chain.attached => {
                all.push(format!("has chain {name} not attached as it should be"));
            }
            Some(other) if other.rules != chain.rules => all.push(format!("has other rules in chain {name}")),
            Some(_) => {}
        }
    }
    all.extend(
        have.chains.keys().filter(|name| !want.chains.contains_key(*name)).map(|name| format!("has a chain {name}")),
    );
    all
}

impl Edit<'_> {
    /// Nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.write.is_empty() && self.remove.is_empty()
    }

    /// What is to be done, as input of `nft -f`.
    pub fn script(&self) -> String {
        let tables: Vec<Table> = self.write.iter().map(|table| (*table).clone()).collect();
        let removed = self.remove.iter().map(|name| format!("delete table inet {name}\n"));
        text::script(&tables) + &removed.collect::<String>()
    }

    /// Does it, all in one transaction.
    pub fn run(&self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        for name in &self.wake {
            dump::wake(INET, name)?;
        }
        let mut changes = Vec::new();
        for table in &self.write {
            let chains = self.chains.iter().find(|(name, _)| *name == table.name).map_or(&[][..], |(_, all)| all);
            clear(table, chains, self.missing.contains(&table.name), &mut changes);
            fill(table, &mut changes);
        }
        changes.extend(self.remove.iter().map(|name| change(DELTABLE, 0, named(&[name]))));
        netlink::netfilter_batch(SUBSYSTEM, &changes).context("write our tables of nf_tables")
    }
}

/// Writes tables, in place of those of these names.
pub fn write(tables: &[Table]) -> Result<()> {
    Edit { write: tables.iter().collect(), ..Edit::default() }.run()
}

/// Makes the table and the sets of a family unless they are there.
pub fn make_set(table: &str, family: Family) -> Result<()> {
    let changes = [change(NEWTABLE, CREATE, named(&[table])), set(table, family)];
    netlink::netfilter_batch(SUBSYSTEM, &changes)
        .with_context(|| format!("make set {} of table inet {table}", probe_set(family)))
}

/// A table with nothing but its sets. One that has some keeps them, with what is in them: only its chains, which are
/// `there`, go. Where it is `missing` nothing is removed: the next transaction would wait for that, some 10 ms.
fn clear(table: &Table, there: &[String], missing: bool, changes: &mut Vec<Change>) {
    let Table { name, sets, .. } = table;
    let make = |flags| change(NEWTABLE, CREATE | flags, named(&[name]));
    if missing {
        changes.push(make(libc::NLM_F_EXCL));
    } else if sets.is_empty() {
        changes.extend([make(0), change(DELTABLE, 0, named(&[name])), make(0)]);
    } else {
        changes.push(make(0));
        // First all that may lead from one to another.
        for kind in [DELRULE, DELCHAIN] {
            changes.extend(there.iter().map(|chain| {
                let mut payload = header(INET).to_vec();
                put_text(&mut payload, message::CHAIN_TABLE, name);
                put_text(&mut payload, if kind == DELRULE { message::RULE_CHAIN } else { message::CHAIN_NAME }, chain);
                change(kind, 0, payload)
            }));
        }
    }
    changes.extend(sets.iter().map(|family| set(name, *family)));
}

/// A table's chains and their rules.
fn fill(table: &Table, changes: &mut Vec<Change>) {
    let Table { name, chains, .. } = table;
    for chain in chains {
        let mut payload = named(&[name]);
        put_text(&mut payload, message::CHAIN_NAME, chain.name);
        if let Some(base) = chain.base {
            attach(&mut payload, base);
        }
        changes.push(change(NEWCHAIN, CREATE, payload));
    }
    for Chain { name: chain, rules, .. } in chains {
        for rule in rules {
            let mut payload = named(&[name, chain]);
            put(&mut payload, message::RULE_EXPRESSIONS | NESTED, &expressions(rule));
            changes.push(change(NEWRULE, CREATE | libc::NLM_F_APPEND, payload));
        }
    }
}

fn attach(payload: &mut Vec<u8>, Base { kind, hook, priority }: Base) {
    /// `NF_ACCEPT`.
    const ACCEPT: u32 = 1;
    // enum nf_inet_hooks.
    let number: u32 = match hook {
        BuiltIn::Prerouting => 0,
        BuiltIn::Output => 3,
        BuiltIn::Postrouting => 4,
    };
    let mut hook = Vec::new();
    put(&mut hook, message::HOOK_NUMBER, &number.to_be_bytes());
    put(&mut hook, message::HOOK_PRIORITY, &priority.to_be_bytes());
    put(payload, message::CHAIN_HOOK | NESTED, &hook);
    put(payload, message::CHAIN_POLICY, &ACCEPT.to_be_bytes());
    put_text(payload, message::CHAIN_TYPE, kind);
}

fn set(table: &str, family: Family) -> Change {
    // As `nft` numbers the types ipv4_addr and ipv6_addr.
    let (kind, length): (u32, u32) = match family {
        Family::V4 => (7, 4),
        Family::V6 => (8, 16),
    };
    let mut payload = named(&[table, probe_set(family)]);
    for (attribute, value) in [(SET_KEY_TYPE, kind), (SET_KEY_LENGTH, length), (SET_ID, kind)] {
        put(&mut payload, attribute, &value.to_be_bytes());
    }
    change(NEWSET, CREATE, payload)
}

/// What a message begins with: the family and the names of a table and what is in it, attributes 1 and 2 of all
/// messages but those for chains.
pub(super) fn named(names: &[&str]) -> Vec<u8> {
    let mut payload = header(INET).to_vec();
    for (kind, name) in (1..).zip(names) {
        put_text(&mut payload, kind, name);
    }
    payload
}

fn change(kind: u16, flags: i32, payload: Vec<u8>) -> Change {
    Change { kind, flags: flags as u16, payload }
}
