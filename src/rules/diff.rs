//! From what the kernel has to what it should have, by the smallest input of `iptables-restore`.
//!
//! Jumps that are right are never touched and chains are refilled in one COMMIT, so no connection escapes while rules
//! are replaced. Rules of others are neither moved nor counted.

use super::render::{TableEdit, position};
use super::ruleset::{Hook, Owned, Rule, RuleSet, Table, TableName, Target};
use super::view::{RuleView, TableView, View};
use crate::error::Result;
use crate::invalid;
use std::collections::BTreeSet;

/// A rule set together with what a kernel that holds it looks like.
#[derive(Debug)]
pub struct Expected {
    rules: RuleSet,
    view: View,
}

/// What is to be done about a difference.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Input of `iptables-restore --noflush`; empty when that has nothing to do.
    pub restore: String,
    /// Tables that are switched off and must be switched on.
    pub wake: Vec<TableName>,
    /// What is not as it should be, one clause each.
    pub differences: Vec<String>,
}

impl Expected {
    /// Takes the rule set and a view of a namespace into which nothing but this rule set was put.
    pub fn new(rules: RuleSet, view: View) -> Result<Self> {
        for table in &rules.tables {
            let name = table.name.as_str();
            let seen =
                view.table(name).ok_or_else(|| invalid!("the kernel shows no table {name} after loading one"))?;
            for chain in &table.chains {
                let (want, got) = (chain.rules.len(), seen.rules(chain.name).len());
                if want != got {
                    return Err(invalid!("the kernel shows {got} rules in {name} {}, {want} were loaded", chain.name));
                }
            }
            for chain in built_in_chains(table) {
                let want = table.hooks.iter().filter(|hook| hook.chain.as_str() == chain).count();
                let got = seen.rules(chain).len();
                if want != got {
                    return Err(invalid!("the kernel shows {got} rules in {name} {chain}, {want} were loaded"));
                }
            }
        }
        Ok(Expected { rules, view })
    }

    /// What has to be done where the kernel has `actual`. `owned` names what is removed where it is not wanted.
    pub fn plan(&self, owned: &[Owned], actual: &View) -> Plan {
        let mut plan = Plan::default();
        for table in &self.rules.tables {
            self.plan_table(table, owned, actual, &mut plan);
        }
        let rest = owned.iter().filter(|o| !self.rules.tables.iter().any(|t| t.name == o.table));
        plan.append(removal(&rest.copied().collect::<Vec<_>>(), actual));
        plan
    }

    fn plan_table(&self, table: &Table, owned: &[Owned], actual: &View, plan: &mut Plan) {
        let nothing = TableView::default();
        let name = table.name.as_str();
        let want = self.view.table(name).unwrap_or(&nothing);
        let have = actual.table(name).unwrap_or(&nothing);
        let mut edit = TableEdit::new(table.name);
        if have.dormant {
            plan.wake.push(table.name);
            plan.differences.push(format!("table {name} is switched off"));
        }
        for chain in built_in_chains(table) {
            let attached = |view: &TableView| view.chains.get(chain).map(|c| c.attached.clone());
            if attached(have).is_some_and(|attachment| Some(attachment) != attached(want)) {
                plan.differences
                    .push(format!("built-in chain {chain} of table {name} is not attached as it should be"));
            }
            let hooks = table.hooks.iter().filter(|hook| hook.chain.as_str() == chain);
            for (hook, rule) in hooks.zip(want.rules(chain)) {
                plan_hook(hook, rule, &table.hooks, have.rules(chain), &mut edit, &mut plan.differences);
            }
        }
        for chain in &table.chains {
            let problem = match have.chains.get(chain.name) {
                None => "is missing",
                Some(found) if Some(found) != want.chains.get(chain.name) => "differs",
                Some(_) => continue,
            };
            plan.differences.push(format!("chain {} of table {name} {problem}", chain.name));
            edit.fill.push(chain);
        }
        for one in owned.iter().filter(|o| o.table == table.name) {
            if !table.chains.iter().any(|chain| chain.name == one.chain) {
                take_out(one, have, &mut edit, &mut plan.differences);
            }
        }
        plan.restore += &edit.to_string();
    }
}

impl Plan {
    /// All is as it should be.
    pub fn is_empty(&self) -> bool {
        self.differences.is_empty()
    }

    fn append(&mut self, other: Plan) {
        self.restore += &other.restore;
        self.wake.extend(other.wake);
        self.differences.extend(other.differences);
    }
}

/// What takes everything `owned` out of `actual`; empty when nothing of it is there.
pub fn removal(owned: &[Owned], actual: &View) -> Plan {
    let mut plan = Plan::default();
    let tables: BTreeSet<TableName> = owned.iter().map(|one| one.table).collect();
    for table in tables {
        let Some(have) = actual.table(table.as_str()) else { continue };
        let mut edit = TableEdit::new(table);
        for one in owned.iter().filter(|one| one.table == table) {
            take_out(one, have, &mut edit, &mut plan.differences);
        }
        plan.restore += &edit.to_string();
    }
    plan
}

/// The built-in chains in which a table has hooks.
fn built_in_chains(table: &Table) -> BTreeSet<&'static str> {
    table.hooks.iter().map(|hook| hook.chain.as_str()).collect()
}

/// A hook is right when it is there exactly once, and first if it has to be.
fn plan_hook<'a>(
    hook: &'a Hook,
    rule: &RuleView,
    all: &[Hook],
    have: &[RuleView],
    edit: &mut TableEdit<'a>,
    differences: &mut Vec<String>,
) {
    let place = position(hook, all);
    let copies = have.iter().filter(|other| *other == rule).count();
    let misplaced = place.is_some_and(|n| have.get(n - 1) != Some(rule));
    let (problem, keep) = match copies {
        0 => ("is missing", false),
        _ if misplaced => ("is not first", false),
        1 => return,
        _ => ("is there more than once", true),
    };
    let (table, chain) = (edit.table.as_str(), hook.chain.as_str());
    differences.push(format!("rule \"-A {chain}{}\" of table {table} {problem}", hook.rule));
    for _ in usize::from(keep)..copies {
        edit.delete.push((hook.chain, hook.rule.clone()));
    }
    if !keep {
        edit.add.push((place, hook));
    }
}

/// Takes a chain of ours and the jumps to it out. A chain to which somebody else's rule still leads can only be
/// emptied: the kernel refuses to remove it, and that rule is not ours to remove.
fn take_out(one: &Owned, have: &TableView, edit: &mut TableEdit<'_>, differences: &mut Vec<String>) {
    let (table, from) = (one.table.as_str(), one.from.as_str());
    let jumps = have.rules(from).iter().filter(|rule| rule.is_plain_jump(one.chain)).count();
    for _ in 0..jumps {
        edit.delete.push((one.from, Rule::new([], Target::Jump(one.chain))));
    }
    if jumps > 0 {
        differences.push(format!("chain {from} of table {table} jumps to {} needlessly", one.chain));
    }
    let Some(chain) = have.chains.get(one.chain) else { return };
    let references = have.chains.values().flat_map(|c| &c.rules).filter(|rule| rule.jumps_to(one.chain)).count();
    let held = references > jumps;
    if held && chain.rules.is_empty() {
        return;
    }
    differences.push(format!("chain {} of table {table} is a leftover", one.chain));
    edit.flush.push(one.chain);
    if !held {
        edit.drop.push(one.chain);
    }
}
