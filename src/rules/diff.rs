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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::ruleset::{BuiltIn, Chain, Place};
    use crate::rules::view::{Attachment, ChainView};
    use crate::sys::netlink::Family;

    const OWNED: &[Owned] = &[
        Owned { table: TableName::Nat, from: BuiltIn::Output, chain: "OURS" },
        Owned { table: TableName::Nat, from: BuiltIn::Prerouting, chain: "OLD" },
        Owned { table: TableName::Raw, from: BuiltIn::Output, chain: "OURS" },
    ];

    fn rule_set(place: Place) -> RuleSet {
        let chain = Chain { name: "OURS", rules: vec![Rule::new([], Target::Accept), Rule::new([], Target::Return)] };
        let hook = Hook { place, ..Hook::jump(BuiltIn::Output, "OURS") };
        RuleSet {
            family: Family::V4,
            tables: vec![Table { name: TableName::Nat, chains: vec![chain], hooks: vec![hook] }],
        }
    }

    /// A table as text: a word a chain, `NAME=` and its rules. `>X` is a jump to X, `?X` one with a condition, anything
    /// else an opaque rule; a name in capitals that is built in is attached.
    fn table(text: &str) -> TableView {
        let mut table = TableView::default();
        for word in text.split_whitespace() {
            let (name, rules) = word.split_once('=').unwrap();
            let attached = matches!(name, "OUTPUT" | "PREROUTING").then(|| attachment(-100));
            let rules = rules.split(',').filter(|rule| !rule.is_empty()).map(rule).collect();
            table.chains.insert(name.into(), ChainView { attached, rules });
        }
        table
    }

    fn attachment(priority: i32) -> Attachment {
        Attachment { hook: 3, priority, kind: "nat".into() }
    }

    fn rule(text: &str) -> RuleView {
        let jump = text.strip_prefix(['>', '?']).map(str::to_owned);
        RuleView { jump, plain: text.starts_with('>'), body: text.into() }
    }

    fn view(nat: &str, raw: &str) -> View {
        let mut view = View::default();
        for (name, text) in [("nat", nat), ("raw", raw)] {
            if !text.is_empty() {
                view.tables.insert(name.into(), table(text));
            }
        }
        view
    }

    fn expected(place: Place) -> Expected {
        Expected::new(rule_set(place), view("OUTPUT=>OURS OURS=a,r", "")).unwrap()
    }

    #[test]
    fn only_what_differs_is_written() {
        let check = |nat: &str, raw: &str, want: &str| {
            let plan = expected(Place::Last).plan(OWNED, &view(nat, raw));
            assert_eq!(plan.restore.replace('\n', "|"), want, "{nat} / {raw}");
            assert_eq!(plan.is_empty(), want.is_empty(), "{nat} / {raw}");
        };
        const ALL: &str = "*nat|:OURS - [0:0]|-A OUTPUT -j OURS|-A OURS -j ACCEPT|-A OURS -j RETURN|COMMIT|";
        const REFILL: &str = "*nat|:OURS - [0:0]|-A OURS -j ACCEPT|-A OURS -j RETURN|COMMIT|";
        check("", "", ALL);
        check("OUTPUT=x,y FOREIGN=z", "", ALL);
        assert_eq!(crate::rules::render::restore(&rule_set(Place::Last)).replace('\n', "|"), ALL);
        // Right, whatever others have.
        check("OUTPUT=>OURS OURS=a,r", "", "");
        check("OUTPUT=x,>OURS,y OURS=a,r OURS_TOO=z PREROUTING=>OURS_TOO", "OUTPUT=z", "");
        // One thing wrong.
        check("OUTPUT=>OURS OURS=a", "", REFILL);
        check("OUTPUT=>OURS OURS=r,a", "", REFILL);
        check("OUTPUT=>OURS OURS=a,r,x", "", REFILL);
        check("OUTPUT= OURS=a,r", "", "*nat|-A OUTPUT -j OURS|COMMIT|");
        check("OURS=a,r", "", "*nat|-A OUTPUT -j OURS|COMMIT|");
        check("OUTPUT=?OURS OURS=a,r", "", "*nat|-A OUTPUT -j OURS|COMMIT|");
        check("OUTPUT=>OURS,x,>OURS,>OURS OURS=a,r", "", "*nat|-D OUTPUT -j OURS|-D OUTPUT -j OURS|COMMIT|");
        // What is ours and not wanted.
        check("OUTPUT=>OURS OURS=a,r PREROUTING=>OLD OLD=x", "", "*nat|-D PREROUTING -j OLD|-F OLD|-X OLD|COMMIT|");
        check("OUTPUT=>OURS OURS=a,r", "OUTPUT=>OURS OURS=", "*raw|-D OUTPUT -j OURS|-F OURS|-X OURS|COMMIT|");
        check("OUTPUT=>OURS OURS=a,r OLD=x FOREIGN=>OLD", "", "*nat|-F OLD|COMMIT|");
        check("OUTPUT=>OURS OURS=a,r OLD= FOREIGN=>OLD", "", "");
    }

    #[test]
    fn what_must_be_first_is_put_first() {
        let check = |nat: &str, want: &str| {
            let plan = expected(Place::First).plan(OWNED, &view(nat, ""));
            assert_eq!(plan.restore.replace('\n', "|"), want, "{nat}");
        };
        check("OUTPUT=>OURS,x OURS=a,r", "");
        check("OUTPUT=x OURS=a,r", "*nat|-I OUTPUT 1 -j OURS|COMMIT|");
        check("OUTPUT=x,>OURS OURS=a,r", "*nat|-D OUTPUT -j OURS|-I OUTPUT 1 -j OURS|COMMIT|");
        check("OUTPUT=>OURS,x,>OURS OURS=a,r", "*nat|-D OUTPUT -j OURS|COMMIT|");
    }

    #[test]
    fn a_table_that_sees_no_packets_is_a_difference() {
        let mut asleep = view("OUTPUT=>OURS OURS=a,r", "");
        asleep.tables.get_mut("nat").unwrap().dormant = true;
        let plan = expected(Place::Last).plan(OWNED, &asleep);
        assert_eq!((plan.restore.as_str(), plan.wake), ("", vec![TableName::Nat]));
        assert_eq!(plan.differences, ["table nat is switched off"]);

        for attached in [None, Some(attachment(0))] {
            let mut detached = view("OUTPUT=>OURS OURS=a,r", "");
            detached.tables.get_mut("nat").unwrap().chains.get_mut("OUTPUT").unwrap().attached = attached;
            let plan = expected(Place::Last).plan(OWNED, &detached);
            assert_eq!(plan.differences, ["built-in chain OUTPUT of table nat is not attached as it should be"]);
        }
        let mut attached = view("OUTPUT=>OURS OURS=a,r", "");
        attached.tables.get_mut("nat").unwrap().chains.get_mut("OURS").unwrap().attached = Some(attachment(0));
        assert_eq!(expected(Place::Last).plan(OWNED, &attached).differences, ["chain OURS of table nat differs"]);
    }

    #[test]
    fn removal_takes_what_is_ours() {
        let check = |nat: &str, raw: &str, want: &str| {
            assert_eq!(removal(OWNED, &view(nat, raw)).restore.replace('\n', "|"), want, "{nat} / {raw}");
        };
        check("", "", "");
        check("OUTPUT=x FOREIGN=y OURS_TOO=z", "OUTPUT=x OLD=y", "");
        check("OUTPUT=x,>OURS,>OURS OURS=a", "", "*nat|-D OUTPUT -j OURS|-D OUTPUT -j OURS|-F OURS|-X OURS|COMMIT|");
        check(
            "OUTPUT=>OURS OURS=a OLD=b",
            "OURS=",
            "*nat|-D OUTPUT -j OURS|-F OURS|-F OLD|-X OURS|-X OLD|COMMIT|*raw|-F OURS|-X OURS|COMMIT|",
        );
    }

    #[test]
    fn a_view_that_does_not_show_what_was_loaded_is_no_reference() {
        for nat in ["", "OUTPUT=>OURS OURS=a", "OUTPUT=>OURS", "OUTPUT= OURS=a,r", "OURS=a,r"] {
            assert!(Expected::new(rule_set(Place::Last), view(nat, "")).is_err(), "{nat}");
        }
    }
}
