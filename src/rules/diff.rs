//! From what the kernel has to what it should have, by the smallest input of `iptables-restore`.
//!
//! Rules that are right are never touched and chains are refilled in one COMMIT, so no connection escapes while rules
//! are replaced. Rules of others are neither moved nor counted.

use super::preceding::Preceding;
use super::render::TableEdit;
use super::ruleset::{BuiltIn, Hook, Owned, Place, RuleSet, Table, TableName};
use super::view::{RuleView, TableView, View};
use crate::error::Result;
use crate::invalid;
use crate::rules::family::Family;
use std::sync::OnceLock;

/// A rule set together with what a kernel that holds it looks like.
#[derive(Debug)]
pub struct Expected {
    rules: RuleSet,
    view: View,
    /// What is to be done where there is nothing at all, as in most namespaces that are new.
    all: OnceLock<Plan>,
}

/// A rule in a built-in chain that is ours, wanted or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The table.
    pub table: TableName,
    /// The chain.
    pub chain: BuiltIn,
    /// Number in the chain, from 0.
    pub at: usize,
    /// Matches and target as iptables writes them, after a blank.
    pub text: String,
}

/// What is to be done about a difference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Input of `iptables-restore --noflush`; empty when that has nothing to do.
    pub restore: String,
    /// Tables that are switched off and must be switched on.
    pub wake: Vec<TableName>,
    /// What is not as it should be, one clause each.
    pub differences: Vec<String>,
}

/// What becomes of rules of ours that are not wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftovers {
    /// They are taken out; until then they are a difference.
    Remove,
    /// They are left alone, and not spoken of.
    Keep,
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
            for chain in BuiltIn::ALL {
                let want = table.hooks.iter().filter(|hook| hook.chain == chain).count();
                let (chain, got) = (chain.as_str(), seen.rules(chain.as_str()).len());
                if want != got {
                    return Err(invalid!("the kernel shows {got} rules in {name} {chain}, {want} were loaded"));
                }
            }
        }
        Ok(Expected { rules, view, all: OnceLock::new() })
    }

    /// Nothing of ours.
    pub fn nothing(family: Family) -> Self {
        Expected { rules: RuleSet { family, tables: vec![] }, view: View::default(), all: OnceLock::new() }
    }

    /// What has to be done where the kernel has `actual`, in which `found` are the rules of ours in built-in chains.
    /// `owned` names the chains that are not to be there unless they are wanted.
    pub fn plan(&self, owned: &[Owned], found: &[Found], actual: &View, leftovers: Leftovers) -> Plan {
        if actual.tables.is_empty() {
            return self.all.get_or_init(|| self.compare(owned, found, actual, leftovers)).clone();
        }
        self.compare(owned, found, actual, leftovers)
    }

    fn compare(&self, owned: &[Owned], found: &[Found], actual: &View, leftovers: Leftovers) -> Plan {
        let mut plan = Plan::default();
        let wanted = self.rules.tables.iter().map(|table| table.name);
        let others = TableName::ALL.into_iter().filter(|name| !self.rules.tables.iter().any(|t| t.name == *name));
        for name in wanted.chain(others) {
            self.plan_table(name, owned, found, actual, leftovers, &mut plan);
        }
        plan
    }

    /// The rules of others that stand before ours.
    pub fn preceding(&self, actual: &View) -> Vec<Preceding> {
        let family = self.rules.family;
        let mut preceding = Vec::new();
        for table in self.rules.tables.iter().map(|table| table.name) {
            let (Some(want), Some(have)) = (self.view.table(table.as_str()), actual.table(table.as_str())) else {
                continue;
            };
            for chain in BuiltIn::ALL {
                let (want, have) = (want.rules(chain.as_str()), have.rules(chain.as_str()));
                // Ours may stand apart: up to the last of them.
                let end = have.iter().rposition(|rule| want.contains(rule)).unwrap_or(0);
                let others = have.iter().enumerate().take(end).filter(|(_, rule)| !want.contains(rule));
                preceding.extend(others.map(|(at, rule)| Preceding::rule((family, table, chain), at, &rule.body)));
            }
        }
        preceding
    }

    /// Whether a built-in chain holds a rule that is neither wanted nor one of `found`.
    pub fn is_puzzled_by(&self, found: &[Found], actual: &View) -> bool {
        let nothing = TableView::default();
        TableName::ALL.into_iter().any(|table| {
            let have = actual.table(table.as_str()).unwrap_or(&nothing);
            let want = self.view.table(table.as_str()).unwrap_or(&nothing);
            BuiltIn::ALL.into_iter().any(|chain| {
                let (have, want) = (have.rules(chain.as_str()), want.rules(chain.as_str()));
                let known = |at| found.iter().any(|f| (f.table, f.chain, f.at) == (table, chain, at));
                have.iter().enumerate().any(|(at, rule)| !want.contains(rule) && !known(at))
            })
        })
    }

    fn plan_table(
        &self,
        name: TableName,
        owned: &[Owned],
        found: &[Found],
        actual: &View,
        leftovers: Leftovers,
        plan: &mut Plan,
    ) {
        let nothing = TableView::default();
        let empty = Table { name, chains: vec![], hooks: vec![] };
        let table = self.rules.tables.iter().find(|table| table.name == name);
        let want = table.and_then(|table| self.view.table(table.name.as_str())).unwrap_or(&nothing);
        let have = actual.table(name.as_str()).unwrap_or(&nothing);
        if have == want {
            // As it is most of the time: what is wanted, and nothing of anybody else.
            return;
        }
        let mut edit = TableEdit::new(name);
        if have.dormant && table.is_some() {
            plan.wake.push(name);
            plan.differences.push(format!("table {} is switched off", name.as_str()));
        }
        let table = table.unwrap_or(&empty);
        // Where rules stay, by chain: what stays may lead to a chain that is to go.
        let mut staying = Vec::new();
        for chain in BuiltIn::ALL {
            let hooks = table.hooks.iter().filter(|hook| hook.chain == chain);
            // In the order in which they stand in the kernel.
            let (first, last): (Vec<_>, Vec<_>) = hooks.partition(|hook| hook.place == Place::First);
            let attached = |view: &TableView| view.chains.get(chain.as_str()).map(|c| c.attached.clone());
            let is_used = !(first.is_empty() && last.is_empty());
            if is_used && attached(have).is_some_and(|attachment| Some(attachment) != attached(want)) {
                let (chain, table) = (chain.as_str(), name.as_str());
                plan.differences
                    .push(format!("built-in chain {chain} of table {table} is not attached as it should be"));
            }
            let mut alignment = Alignment::new(&first, &last, want.rules(chain.as_str()), have.rules(chain.as_str()));
            if leftovers == Leftovers::Remove {
                let here = found.iter().filter(|found| (found.table, found.chain) == (name, chain));
                alignment.remove(here);
            }
            alignment.edit(chain, &mut edit, &mut plan.differences);
            staying.extend(alignment.staying());
        }
        for chain in &table.chains {
            let problem = match have.chains.get(chain.name) {
                None => "is missing",
                Some(found) if Some(found) != want.chains.get(chain.name) => "differs",
                Some(_) => continue,
            };
            plan.differences.push(format!("chain {} of table {} {problem}", chain.name, name.as_str()));
            edit.fill.push(chain);
        }
        if leftovers == Leftovers::Remove {
            let is_ours = |chain: &str| owned.iter().any(|one| one.table == name && one.chain == chain);
            let of_others = |(chain, _): &(&String, _)| {
                !is_ours(chain) && !BuiltIn::ALL.iter().any(|built_in| built_in.as_str() == *chain)
            };
            staying.extend(have.chains.iter().filter(of_others).flat_map(|(_, chain)| &chain.rules));
            for one in owned.iter().filter(|one| one.table == name) {
                if !table.chains.iter().any(|chain| chain.name == one.chain) {
                    take_out(one.chain, have, &staying, &mut edit, &mut plan.differences);
                }
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
}

/// The rules of built-in chains that jump to a chain of ours without condition, from where they should.
pub fn plain_jumps(owned: &[Owned], actual: &View) -> Vec<Found> {
    let mut found = Vec::new();
    for &Owned { table, from, chain: ours } in owned {
        let (Some(chain), Some(have)) = (from, actual.table(table.as_str())) else { continue };
        let jumps = have.rules(chain.as_str()).iter().enumerate().filter(|(_, rule)| rule.is_plain_jump(ours));
        found.extend(jumps.map(|(at, _)| Found { table, chain, at, text: format!(" -j {ours}") }));
    }
    found
}

/// Whether a chain of ours is there.
pub fn has_chain_of(owned: &[Owned], actual: &View) -> bool {
    owned.iter().any(|one| actual.table(one.table.as_str()).is_some_and(|t| t.chains.contains_key(one.chain)))
}

/// A chain to which a rule of somebody else still leads can only be emptied: the kernel refuses to remove it, and that
/// rule is not ours to remove.
fn take_out(
    name: &'static str,
    have: &TableView,
    staying: &[&RuleView],
    edit: &mut TableEdit<'_>,
    differences: &mut Vec<String>,
) {
    let Some(chain) = have.chains.get(name) else { return };
    let held = staying.iter().any(|rule| rule.jumps_to(name));
    if held && chain.rules.is_empty() {
        return;
    }
    differences.push(format!("chain {name} of table {} is a leftover", edit.table.as_str()));
    edit.flush.push(name);
    if !held {
        edit.drop.push(name);
    }
}

/// One built-in chain: the hooks that it should hold against the rules that it holds.
struct Alignment<'a> {
    /// The hooks that stand before all others, then the others, each in order.
    hooks: Vec<&'a Hook>,
    /// How many stand before all others.
    first: usize,
    /// The wanted rules as the kernel shows them.
    wanted: &'a [RuleView],
    have: &'a [RuleView],
    /// Where the hook is that stays; `None` where it is to be put in.
    kept: Vec<Option<usize>>,
    /// Rules that are to go, by their number, with the text by which one copy of them is deleted.
    gone: Vec<(usize, String)>,
    /// What is wrong, as the text of a rule and a verdict.
    problems: Vec<(String, &'static str)>,
}

impl<'a> Alignment<'a> {
    fn new(first: &[&'a Hook], last: &[&'a Hook], wanted: &'a [RuleView], have: &'a [RuleView]) -> Self {
        let hooks = [first, last].concat();
        let mut alignment = Alignment {
            first: first.len(),
            kept: vec![None; hooks.len()],
            hooks,
            wanted,
            have,
            gone: vec![],
            problems: vec![],
        };
        let first: Vec<usize> = (0..alignment.first).collect();
        if first.iter().all(|number| alignment.copies(*number) == [*number]) {
            alignment.keep(first.into_iter().map(|number| (number, number)));
        }
        let rest: Vec<usize> = (alignment.first..alignment.hooks.len()).collect();
        alignment.keep(alignment.longest_in_order(&rest));
        alignment.compare();
        alignment
    }

    /// Where a hook stands.
    fn copies(&self, hook: usize) -> Vec<usize> {
        let rule = self.wanted.get(hook);
        self.have.iter().enumerate().filter(|(_, other)| Some(*other) == rule).map(|(at, _)| at).collect()
    }

    fn keep(&mut self, which: impl IntoIterator<Item = (usize, usize)>) {
        for (hook, at) in which {
            if let Some(kept) = self.kept.get_mut(hook) {
                *kept = Some(at);
            }
        }
    }

    /// The most hooks that stand in the right order. Of several copies the last counts: a deletion takes the first.
    fn longest_in_order(&self, hooks: &[usize]) -> Vec<(usize, usize)> {
        let mut best: Vec<Vec<(usize, usize)>> = Vec::new();
        for &hook in hooks {
            let Some(&at) = self.copies(hook).last() else { continue };
            let before = best.iter().filter(|chain| chain.last().is_some_and(|(_, earlier)| *earlier < at));
            let mut chain = before.max_by_key(|chain| chain.len()).cloned().unwrap_or_default();
            chain.push((hook, at));
            best.push(chain);
        }
        best.into_iter().rev().max_by_key(Vec::len).unwrap_or_default()
    }

    /// Notes what is wrong with each hook, and which copies go.
    fn compare(&mut self) {
        for (number, hook) in self.hooks.clone().into_iter().enumerate() {
            let copies = self.copies(number);
            let kept = self.kept.get(number).copied().flatten();
            let problem = match copies.as_slice() {
                [] => "is missing",
                [at] if Some(*at) == kept => continue,
                [at, ..] if number < self.first && *at != number => "is not first",
                [_] if number < self.first => "stands right, but not those beside it",
                [_] => "is out of order",
                _ => "is there more than once",
            };
            let text = hook.rule.to_string();
            self.problems.push((text.clone(), problem));
            self.gone.extend(copies.into_iter().filter(|at| Some(*at) != kept).map(|at| (at, text.clone())));
        }
    }

    /// Takes rules out that are ours and not wanted.
    fn remove<'f>(&mut self, found: impl Iterator<Item = &'f Found>) {
        for Found { at, text, .. } in found {
            if self.have.get(*at).is_some_and(|rule| !self.wanted.contains(rule)) {
                self.problems.push((text.clone(), "is not wanted"));
                self.gone.push((*at, text.clone()));
            }
        }
    }

    /// What stays of the chain.
    fn staying(&self) -> impl Iterator<Item = &'a RuleView> {
        let stays = |at: &usize| !self.gone.iter().any(|(gone, _)| gone == at);
        self.have.iter().enumerate().filter(move |(at, _)| stays(at)).map(|(_, rule)| rule)
    }

    fn edit(&self, chain: BuiltIn, edit: &mut TableEdit<'a>, differences: &mut Vec<String>) {
        let place = (chain.as_str(), edit.table.as_str());
        let clause =
            |(text, problem): &(String, &str)| format!("rule \"-A {}{text}\" of table {} {problem}", place.0, place.1);
        differences.extend(self.problems.iter().map(clause));
        edit.delete.extend(self.gone.iter().map(|(_, text)| (chain, text.clone())));
        // The chain as it is while rules are put in: the number a rule had, `None` for those put in.
        let mut now: Vec<Option<usize>> = (0..self.have.len()).filter(|at| !self.is_gone(*at)).map(Some).collect();
        for (number, (hook, kept)) in self.hooks.iter().zip(&self.kept).enumerate() {
            if kept.is_some() {
                continue;
            }
            let next = self.kept.iter().skip(number).flatten().next();
            let at = match next {
                _ if number < self.first => Some(number),
                Some(next) => now.iter().position(|at| *at == Some(*next)),
                None => None,
            };
            now.insert(at.unwrap_or(now.len()), None);
            edit.add.push((at.map(|at| at + 1), hook));
        }
    }

    fn is_gone(&self, at: usize) -> bool {
        self.gone.iter().any(|(gone, _)| *gone == at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::ruleset::{Chain, Rule, Target};
    use crate::rules::view::{Attachment, ChainView};

    const OWNED: &[Owned] = &[
        Owned { table: TableName::Nat, from: Some(BuiltIn::Output), chain: "OURS" },
        Owned { table: TableName::Nat, from: Some(BuiltIn::Prerouting), chain: "OLD" },
        Owned { table: TableName::Raw, from: Some(BuiltIn::Output), chain: "OURS" },
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
        Attachment { hook: 3, priority, kind: "nat".into(), accepts: None }
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

    fn planned(expected: &Expected, actual: &View) -> Plan {
        expected.plan(OWNED, &plain_jumps(OWNED, actual), actual, Leftovers::Remove)
    }

    fn expected(place: Place) -> Expected {
        Expected::new(rule_set(place), view("OUTPUT=>OURS OURS=a,r", "")).unwrap()
    }

    #[test]
    fn only_what_differs_is_written() {
        let check = |nat: &str, raw: &str, want: &str| {
            let plan = planned(&expected(Place::Last), &view(nat, raw));
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
            let plan = planned(&expected(Place::First), &view(nat, ""));
            assert_eq!(plan.restore.replace('\n', "|"), want, "{nat}");
        };
        check("OUTPUT=>OURS,x OURS=a,r", "");
        check("OUTPUT=x OURS=a,r", "*nat|-I OUTPUT 1 -j OURS|COMMIT|");
        check("OUTPUT=x,>OURS OURS=a,r", "*nat|-D OUTPUT -j OURS|-I OUTPUT 1 -j OURS|COMMIT|");
        check("OUTPUT=>OURS,x,>OURS OURS=a,r", "*nat|-D OUTPUT -j OURS|-D OUTPUT -j OURS|-I OUTPUT 1 -j OURS|COMMIT|");
    }

    /// Hooks as in [`rule`], those in front of the bar before all others.
    #[test]
    fn several_hooks_in_one_chain_keep_their_order() {
        let check = |want: &str, have: &str, edit: &str| {
            let (first, last) = want.split_once('|').unwrap();
            let mut hooks = Vec::new();
            for (names, place) in [(first, Place::First), (last, Place::Last)] {
                for name in names.split(',').filter(|name| !name.is_empty()) {
                    let name = match name {
                        "A" => "A",
                        "B" => "B",
                        "C" => "C",
                        _ => "D",
                    };
                    hooks.push(Hook { place, ..Hook::jump(BuiltIn::Output, name) });
                }
            }
            let rules =
                RuleSet { family: Family::V4, tables: vec![Table { name: TableName::Nat, chains: vec![], hooks }] };
            let jumps =
                |names: &str| names.split(['|', ',']).filter(|n| !n.is_empty()).map(jump).collect::<Vec<_>>().join(",");
            let expected = Expected::new(rules, view(&format!("OUTPUT={}", jumps(want)), "")).unwrap();
            let actual = view(&format!("OUTPUT={}", jumps(have)), "");
            let owned = ["A", "B", "C", "D"].map(|chain| Owned { chain, ..OWNED[0] });
            let plan = expected.plan(&owned, &plain_jumps(&owned, &actual), &actual, Leftovers::Remove);
            let lines = plan
                .restore
                .lines()
                .filter(|line| line.contains("OUTPUT"))
                .map(|line| line.replace(" OUTPUT", "").replace(" -j", ""));
            assert_eq!(lines.collect::<Vec<_>>().join(","), edit, "{want} / {have}");
            // The rules of the others stay in their order, and ours come into theirs.
            let mut now: Vec<&str> = have.split(',').filter(|name| !name.is_empty()).collect();
            for line in plan.restore.lines() {
                match *line.split(' ').collect::<Vec<_>>() {
                    ["-D", _, _, name] => drop(now.remove(now.iter().position(|other| *other == name).unwrap())),
                    ["-A", _, _, name] => now.push(name),
                    ["-I", _, n, _, name] => now.insert(n.parse::<usize>().unwrap() - 1, name),
                    _ => {}
                }
            }
            let ours: Vec<_> = now.iter().filter(|name| name.chars().all(char::is_uppercase)).copied().collect();
            let wanted: Vec<_> = want.split(['|', ',']).filter(|name| !name.is_empty()).collect();
            assert_eq!(ours, wanted, "{want} / {have}: {now:?}");
            let others = |names: &[&str]| -> Vec<String> {
                names.iter().filter(|n| n.chars().all(char::is_lowercase)).map(|n| (*n).to_owned()).collect()
            };
            assert_eq!(others(&now), others(&have.split(',').filter(|n| !n.is_empty()).collect::<Vec<_>>()));
        };
        check("|A,B,C", "A,B,C", "");
        check("|A,B,C", "x,A,y,B,C,z", "");
        check("|A,B,C", "x,A,C,z", "-I 3 B");
        check("|A,B,C", "x,B,y", "-I 2 A,-A C");
        check("|A,B,C", "C,x,A,B", "-D C,-A C");
        check("|A,B,C", "B,A,x,C", "-D A,-I 1 A");
        check("|A,B,C", "A,B,A,B,C", "-D A,-D B");
        check("|A,C", "A,B,x,C,D", "-D B,-D D");
        check("A,B|C", "A,B,x,C", "");
        check("A,B|C", "x,C,y", "-I 1 A,-I 2 B");
        check("A,B|C", "A,x,B,C", "-D A,-D B,-I 1 A,-I 2 B");
        check("A,B|C", "x,A,B,A,C,C", "-D A,-D A,-D B,-D C,-I 1 A,-I 2 B");
        check("A|B,C", "B,x,A", "-D A,-I 1 A,-A C");
        check("|", "A,x,B", "-D A,-D B");
    }

    fn jump(name: &str) -> String {
        if name.chars().all(char::is_uppercase) { format!(">{name}") } else { name.to_owned() }
    }

    #[test]
    fn rules_of_others_before_ours_are_told_from_those_that_were_there() {
        let expected = expected(Place::Last);
        let preceding = |nat: &str| expected.preceding(&view(&format!("{nat} OURS=a,r"), "OUTPUT=z"));
        let check = |before: &str, now: &str, want: &[&str]| {
            let (before, now) = (preceding(before), preceding(now));
            let new: Vec<_> = Preceding::newcomers(&before, &now).iter().map(ToString::to_string).collect();
            assert_eq!(new, want, "{before:?} / {now:?}");
        };
        check("OUTPUT=>OURS", "OUTPUT=>OURS,x", &[]);
        check("OUTPUT=>OURS", "OUTPUT=x,>OURS,y", &["IPv4 rule 1 of chain OUTPUT of table nat"]);
        check("OUTPUT=x,>OURS", "OUTPUT=x,>OURS PREROUTING=y", &[]);
        let both = ["IPv4 rule 1 of chain OUTPUT of table nat", "IPv4 rule 3 of chain OUTPUT of table nat"];
        check("OUTPUT=x,>OURS", "OUTPUT=y,x,z,>OURS", &both);
        check("OUTPUT=x,>OURS", "OUTPUT=x,x,>OURS", &["IPv4 rule 2 of chain OUTPUT of table nat"]);
        check("OUTPUT=x,y,>OURS", "OUTPUT=y,x,>OURS", &[]);
        check("OUTPUT=x,y,>OURS", "OUTPUT=>OURS", &[]);
        // Ours is not there: that is said elsewhere.
        check("OUTPUT=>OURS", "OUTPUT=x,y", &[]);
    }

    #[test]
    fn a_table_that_sees_no_packets_is_a_difference() {
        let mut asleep = view("OUTPUT=>OURS OURS=a,r", "");
        asleep.tables.get_mut("nat").unwrap().dormant = true;
        let plan = planned(&expected(Place::Last), &asleep);
        assert_eq!((plan.restore.as_str(), plan.wake), ("", vec![TableName::Nat]));
        assert_eq!(plan.differences, ["table nat is switched off"]);

        for attached in [None, Some(attachment(0))] {
            let mut detached = view("OUTPUT=>OURS OURS=a,r", "");
            detached.tables.get_mut("nat").unwrap().chains.get_mut("OUTPUT").unwrap().attached = attached;
            let plan = planned(&expected(Place::Last), &detached);
            assert_eq!(plan.differences, ["built-in chain OUTPUT of table nat is not attached as it should be"]);
        }
        let mut attached = view("OUTPUT=>OURS OURS=a,r", "");
        attached.tables.get_mut("nat").unwrap().chains.get_mut("OURS").unwrap().attached = Some(attachment(0));
        assert_eq!(planned(&expected(Place::Last), &attached).differences, ["chain OURS of table nat differs"]);
    }

    #[test]
    fn removal_takes_what_is_ours() {
        let check = |nat: &str, raw: &str, want: &str| {
            assert_eq!(
                planned(&Expected::nothing(Family::V4), &view(nat, raw)).restore.replace('\n', "|"),
                want,
                "{nat} / {raw}"
            );
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
