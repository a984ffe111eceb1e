//! One visit to a namespace: look, write what differs, look again. Everything here runs on a thread inside.

use super::backend::Backend;
use super::effect;
use super::look::{Kernel, Look, Part};
use super::nftables::dump;
use super::nftables::tables::{self as own, Own};
use super::reference::Reference;
use super::route_table::{self, Placed};
use super::routing;
use super::scope::Scope;
use super::xtables::detect::Firewall;
use super::xtables::variant::Variant;
use crate::error::{Context, Error, Kind, Result};
use crate::rules::diff::{Expected, Found, Leftovers, has_chain_of, plain_jumps};
use crate::rules::family::Family;
use crate::rules::owned::owned;
use crate::rules::preceding::Preceding;
use crate::rules::program::{Effect, Program, Purpose};
use crate::rules::routing::{LocalRoute, MarkRule};
use crate::rules::ruleset::TableName;
use crate::rules::sidecar::Traces;
use crate::sys::exec;
use crate::sys::{file, netlink};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The interface to which packets for this host go.
const LOOPBACK: &str = "lo";

/// What the packet filter should hold.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// What iptables keeps. A family that is not there is left alone.
    pub families: BTreeMap<Family, &'a Expected>,
    /// Tables of our own.
    pub own: &'a Own,
}

impl<'a> Wanted<'a> {
    /// All of it.
    pub fn of(reference: &'a Reference) -> Self {
        let families = reference.families.iter().map(|(family, expected)| (*family, expected));
        Wanted { families: families.collect(), own: &reference.own }
    }
}

/// What IPv6 is in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ipv6 {
    /// The kernel has none.
    Absent,
    /// Switched off (`net.ipv6.conf.lo.disable_ipv6`).
    Off,
    /// In use.
    On,
}

impl Ipv6 {
    /// In the calling thread's namespace.
    pub fn here() -> Result<Self> {
        match file::read_limited(Path::new("/proc/sys/net/ipv6/conf/lo/disable_ipv6"), 16) {
            Ok(text) if text.trim_ascii() == b"1" => Ok(Ipv6::Off),
            Ok(_) => Ok(Ipv6::On),
            Err(e) if e.kind() == Kind::NotFound => Ok(Ipv6::Absent),
            Err(e) => Err(e),
        }
    }
}

/// Input for one restore program.
#[derive(Debug)]
struct Restore {
    variant: Variant,
    family: Family,
    input: String,
}

/// What a look brought up.
#[derive(Debug, Default)]
pub struct Survey<'a> {
    /// What is not as it should be, one clause each.
    pub differences: Vec<String>,
    /// Something of ours was in the tables.
    pub had_ours: bool,
    /// The rules of others that packets come to before ours.
    pub preceding: Vec<Preceding>,
    /// Why the program must not be put in here.
    pub refusal: Option<String>,
    restores: Vec<Restore>,
    wake: Vec<(Family, TableName)>,
    /// What is to be done about tables of our own.
    own: own::Edit<'a>,
    /// Routing by marks of earlier settings.
    stale: Vec<Effect>,
    add: Vec<Effect>,
    remove: Vec<Effect>,
    /// `lo` is to be brought up: redirected packets go there.
    raise: bool,
    /// Rules of ours where they should not be; taken out last.
    elsewhere: Vec<Restore>,
}

impl Survey<'_> {
    /// The variants whose tables are written; our own are among those of nf_tables.
    pub fn variants(&self) -> Vec<Variant> {
        let written = |variant: &Variant| {
            let restores = self.restores.iter().chain(&self.elsewhere).any(|restore| restore.variant == *variant);
            restores || *variant == Variant::Nft && !(self.wake.is_empty() && self.own.is_empty())
        };
        Variant::ALL.into_iter().filter(written).collect()
    }

    /// Rules of ours stand where another backend puts them, and are taken out there.
    pub fn moves(&self, backend: Backend) -> bool {
        !self.elsewhere.is_empty() || backend != Backend::Nftables && !self.own.is_empty()
    }

    /// What would be loaded, by the name of the program.
    pub fn inputs(self) -> Vec<(String, String)> {
        let own = (!self.own.is_empty()).then(|| ("nft".to_owned(), self.own.script()));
        let all = self.restores.into_iter().chain(self.elsewhere);
        let all = all.map(|Restore { variant, family, input }| (program_name(variant, family), input));
        own.into_iter().chain(all).collect()
    }
}

/// What was looked at while it was written, and is right.
#[derive(Debug, Default)]
pub struct Seen {
    families: Vec<Family>,
    /// What precedes ours in those families, as [`Survey::preceding`] has it.
    pub preceding: Vec<Preceding>,
}

impl Seen {
    /// The families that are still to be looked at.
    pub fn others(&self) -> Vec<Family> {
        Part::ALL.families.iter().filter(|family| !self.families.contains(family)).copied().collect()
    }
}

/// A visit. Made inside.
#[derive(Debug)]
pub struct Visit<'a> {
    /// The programs.
    pub firewall: &'a Firewall,
    /// Where new rules go.
    pub backend: Backend,
    /// What can be looked at.
    pub kernel: Kernel,
    /// What is put there, or taken out.
    pub program: &'a Program,
    /// How much is looked at.
    pub scope: Scope,
    /// What becomes of rules of ours that are not wanted.
    pub leftovers: Leftovers,
    /// Path of the namespace's lock files.
    pub lock: PathBuf,
}

impl Visit<'_> {
    /// Compares the tables with what they should be.
    pub fn survey<'w>(&self, wanted: &Wanted<'w>) -> Result<Survey<'w>> {
        self.survey_of(wanted, Part::ALL)
    }

    /// Compares a part of the tables with what they should be.
    pub fn survey_of<'w>(&self, wanted: &Wanted<'w>, part: Part<'_>) -> Result<Survey<'w>> {
        self.look_at(wanted, part, false)
    }

    /// Compares the tables without believing that any chain of ours is as it looks: all of them are written again.
    pub fn survey_in_doubt<'w>(&self, wanted: &Wanted<'w>) -> Result<Survey<'w>> {
        self.look_at(wanted, Part::ALL, true)
    }

    fn look_at<'w>(&self, wanted: &Wanted<'w>, part: Part<'_>, doubt: bool) -> Result<Survey<'w>> {
        let look = self.kernel.look(self.scope, self.program.purpose, part)?;
        let owned = owned(self.program.purpose);
        let mut survey = Survey::default();
        let memory = self.learn(&look, wanted)?;
        survey.stale = self.stale_routing(&memory.traces, wanted)?;
        if part.has_own() {
            if self.program.purpose != Purpose::Host {
                survey.preceding = look.preceding();
            }
            if self.program.purpose == Purpose::Ambient {
                survey.refusal = look.sidecar();
            }
            let doubted = doubt.then(|| look.own().without_rules(|_, _| true));
            let own = doubted.as_ref().unwrap_or(look.own());
            survey.own = wanted.own.plan(self.program.purpose, own, self.leftovers);
            survey.had_ours = survey.own.had_ours;
            survey.differences.append(&mut survey.own.differences);
        }
        for (&family, expected) in wanted.families.iter().filter(|(family, _)| part.families.contains(family)) {
            let name = family_name(family);
            for &variant in part.variants {
                let view = look.view(variant, family);
                let found = memory.found(owned, &look, variant, family);
                let had_ours = !found.is_empty() || has_chain_of(owned, view);
                survey.had_ours |= had_ours;
                if self.backend == Backend::Iptables(variant) {
                    let is_ours = |table: &str, chain: &str| {
                        owned.iter().any(|one| one.table.as_str() == table && one.chain == chain)
                    };
                    let doubted = doubt.then(|| view.without_rules(is_ours));
                    let plan = expected.plan(owned, &found, doubted.as_ref().unwrap_or(view), self.leftovers);
                    survey.preceding.extend(expected.preceding(view));
                    survey.differences.extend(plan.differences.iter().map(|what| format!("{name}: {what}")));
                    survey.restores.extend(restore(variant, family, plan.restore));
                    survey.wake.extend(plan.wake.into_iter().map(|table| (family, table)));
                } else if had_ours && self.leftovers == Leftovers::Remove {
                    let plan = Expected::nothing(family).plan(owned, &found, view, Leftovers::Remove);
                    // What others still refer to may be all that is left.
                    if !plan.is_empty() {
                        survey.differences.push(format!("{name}: there are rules of ours in the {variant} tables too"));
                        survey.elsewhere.extend(restore(variant, family, plan.restore));
                    }
                }
            }
        }
        Ok(survey)
    }

    /// Asks for what is needed outside the tables too.
    pub fn ask_effects(&self, wanted: &Wanted<'_>, survey: &mut Survey<'_>) -> Result<()> {
        let placed = self.placed(wanted)?;
        if !placed.wanted.is_empty() && !netlink::loopback_is_up()? {
            survey.differences.push(format!("{LOOPBACK} is down"));
            survey.raise = true;
        }
        for effect in &placed.wanted {
            if !effect::is_there(effect)? {
                let family = family_name(effect.family());
                survey.differences.push(format!("{family}: {} is missing", effect::name(effect)));
                survey.add.push(*effect);
            }
        }
        for effect in self.unwanted(wanted, survey, placed)? {
            if effect::is_there(&effect)? {
                let family = family_name(effect.family());
                survey.differences.push(format!("{family}: {} is not wanted", effect::name(&effect)));
                survey.remove.push(effect);
            }
        }
        Ok(())
    }

    /// Brings all of it about without asking: what is so already does no harm, and this is quicker.
    pub fn assume_no_effects(&self, wanted: &Wanted<'_>, survey: &mut Survey<'_>) -> Result<()> {
        let placed = self.placed(wanted)?;
        survey.add.extend(&placed.wanted);
        survey.remove.extend(self.unwanted(wanted, survey, placed)?);
        Ok(())
    }

    /// What is wanted outside the tables, where it belongs here.
    fn placed(&self, wanted: &Wanted<'_>) -> Result<Placed> {
        let here = |effect: &Effect| wanted.families.contains_key(&effect.family());
        route_table::place(self.program.wanted.iter().copied().filter(here))
    }

    /// The policy rules of others to which packets come before they come to those of the program.
    pub fn preceding_policy_rules(&self, wanted: &Wanted<'_>) -> Result<Vec<Preceding>> {
        let mut all = Vec::new();
        for effect in &self.program.wanted {
            if let Effect::Rule(rule) = effect
                && wanted.families.contains_key(&rule.family)
            {
                all.extend(routing::preceding(*rule)?);
            }
        }
        Ok(all)
    }

    /// Why nothing may be taken out here.
    pub fn objection(&self) -> Result<Option<String>> {
        match self.program.purpose {
            Purpose::Ambient => Ok(self.kernel.look(self.scope, Purpose::Ambient, Part::ALL)?.objection()),
            Purpose::Sidecar | Purpose::Host => Ok(None),
        }
    }

    fn unwanted(&self, wanted: &Wanted<'_>, survey: &Survey<'_>, placed: Placed) -> Result<Vec<Effect>> {
        // Our own rule must not lead to two tables, whatever becomes of leftovers.
        let mut all = placed.stale;
        if self.leftovers == Leftovers::Remove {
            let here = |effect: &&Effect| wanted.families.contains_key(&effect.family());
            for effect in self.program.unwanted.iter().filter(here) {
                all.push(*effect);
                if let Effect::Rule(rule) = effect {
                    all.extend(route_table::elsewhere(rule)?);
                }
            }
            all.extend(survey.stale.iter().filter(here));
        }
        all.retain(|effect| !placed.wanted.contains(effect));
        Ok(all)
    }

    /// The routing that belongs to marks of ours which the program does not use: a rule is ours if it leads to a table
    /// with our route.
    fn stale_routing(&self, traces: &Traces, wanted: &Wanted<'_>) -> Result<Vec<Effect>> {
        let mut stale = Vec::new();
        for mark in traces.marks() {
            for &family in wanted.families.keys() {
                for rule in routing::rules_by_mark(family, mark)? {
                    let route = LocalRoute { family, table: rule.table };
                    let both = Effect::routing((MarkRule { priority: None, ..rule }, route));
                    if !self.program.wanted.contains(&both[0]) && routing::has_route(route)? {
                        stale.extend(both);
                    }
                }
            }
        }
        Ok(stale)
    }

    /// Writes what differs. While the program of one family is still running, what that of the other has written is
    /// looked at.
    pub fn write(&self, survey: Survey<'_>, wanted: &Wanted<'_>) -> Result<Seen> {
        let Survey { restores, wake, own, raise, add, remove, elsewhere, .. } = survey;
        if raise {
            netlink::set_link_up(LOOPBACK)?;
        }
        if self.backend == Backend::Nftables {
            own.run()?;
        }
        let mut seen = Seen::default();
        let is_all = wake.is_empty() && own.is_empty() && elsewhere.is_empty();
        let look = |variant: Variant, family: Family| {
            let part = Part { variants: &[variant], families: &[family] };
            // What is not right yet, or cannot be told now, is looked at again with the rest.
            if is_all && let Some(right) = self.survey_of(wanted, part).ok().filter(|s| s.differences.is_empty()) {
                seen.families.push(family);
                seen.preceding.extend(right.preceding);
            }
        };
        // The programs take a while to start.
        let (failures, added) = self.run_while(restores, || add.iter().try_for_each(effect::add), look);
        all_well(failures.into_iter().chain(added.err()).collect())?;
        for (family, table) in wake {
            dump::wake(family.number(), table.as_str())?;
        }
        let mut failures = self.run(elsewhere);
        if self.backend != Backend::Nftables {
            failures.extend(own.run().err());
        }
        failures.extend(remove.iter().filter_map(|effect| effect::remove(effect).err()));
        all_well(failures).context("take out what is not wanted any more")?;
        Ok(seen)
    }

    /// Takes everything of ours out, goes on past failures. The program is an emptied one.
    pub fn remove(&self) -> Result<()> {
        let nothing: BTreeMap<Family, Expected> =
            self.program.rules.iter().map(|set| (set.family, Expected::nothing(set.family))).collect();
        let nothing = Reference { families: nothing, ..Reference::default() };
        let mut wanted = Wanted::of(&nothing);
        if Ipv6::here()? == Ipv6::Absent {
            wanted.families.remove(&Family::V6);
        }
        let mut survey = self.survey(&wanted)?;
        self.assume_no_effects(&wanted, &mut survey)?;
        // One after the other. A program that has removed rules of nf_tables ends some 20 ms later, when the kernel is
        // sure that no packet is on its way through them, and until then has its namespace's tables locked. If another
        // waits for those, it keeps the rest of the node waiting too: the kernel has it hold a lock of all namespaces.
        let restores = survey.restores.into_iter().chain(survey.elsewhere);
        let mut failures: Vec<Error> = restores.flat_map(|restore| self.run(vec![restore])).collect();
        failures.extend(survey.own.run().err());
        failures.extend(survey.remove.iter().filter_map(|effect| effect::remove(effect).err()));
        all_well(failures)
    }

    /// Asks iptables itself about built-in chains that hold more than is wanted, where something of ours is there: only
    /// then may a rule with conditions be ours.
    fn learn(&self, look: &Look, wanted: &Wanted<'_>) -> Result<Memory> {
        let mut memory = Memory::default();
        if !self.program.purpose.has_conditional_hooks() {
            return Ok(memory);
        }
        let owned = owned(self.program.purpose);
        for (&family, expected) in &wanted.families {
            for variant in Variant::ALL {
                let view = look.view(variant, family);
                let nothing = Expected::nothing(family);
                let expected = if self.backend == Backend::Iptables(variant) { expected } else { &nothing };
                if has_chain_of(owned, view) && expected.is_puzzled_by(&plain_jumps(owned, view), view) {
                    let save = self.firewall.programs(variant)?.save(family)?;
                    let said = String::from_utf8_lossy(&exec::run(&save)?.stdout).into_owned();
                    memory.traces.learn(&said);
                    memory.saves.insert((variant, family), said);
                }
            }
        }
        Ok(memory)
    }

    /// Runs the programs side by side; returns the failures.
    fn run(&self, restores: Vec<Restore>) -> Vec<Error> {
        self.run_while(restores, || (), |_, _| ()).0
    }

    /// Runs the programs side by side, and does something in the meantime: once, and for each that ended well before the last.
    fn run_while<T>(
        &self,
        restores: Vec<Restore>,
        meanwhile: impl FnOnce() -> T,
        mut ended: impl FnMut(Variant, Family),
    ) -> (Vec<Error>, T) {
        let mut failures = Vec::new();
        let mut commands = Vec::new();
        let mut of = Vec::new();
        for Restore { variant, family, input } in restores {
            let programs = self.firewall.programs(variant);
            match programs.and_then(|programs| programs.restore(family, input, &self.lock)) {
                Ok(command) => {
                    commands.push(command);
                    of.push((variant, family));
                }
                Err(e) => failures.push(e),
            }
        }
        let ended = |number: usize| {
            if let Some((variant, family)) = of.get(number) {
                ended(*variant, *family);
            }
        };
        let (results, done) = exec::run_all_while(&commands, meanwhile, ended);
        failures.extend(results.into_iter().filter_map(Result::err));
        (failures, done)
    }
}

/// What iptables said where we had to ask.
#[derive(Default)]
struct Memory {
    traces: Traces,
    saves: BTreeMap<(Variant, Family), String>,
}

impl Memory {
    /// The rules of ours in built-in chains.
    fn found(
        &self,
        owned: &[crate::rules::ruleset::Owned],
        look: &Look,
        variant: Variant,
        family: Family,
    ) -> Vec<Found> {
        let mut found = plain_jumps(owned, look.view(variant, family));
        if let Some(save) = self.saves.get(&(variant, family)) {
            let more = self.traces.find(save);
            found.extend(more.into_iter().filter(|one| !found.contains(one)).collect::<Vec<_>>());
        }
        found
    }
}

fn restore(variant: Variant, family: Family, input: String) -> Option<Restore> {
    (!input.is_empty()).then_some(Restore { variant, family, input })
}

fn program_name(variant: Variant, family: Family) -> String {
    let ip = if family == Family::V4 { "iptables" } else { "ip6tables" };
    format!("{ip}-{variant}-restore")
}

fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// One error for all; its kind is the first one's.
fn all_well(mut failures: Vec<Error>) -> Result<()> {
    if failures.len() < 2 {
        return failures.pop().map_or(Ok(()), Err);
    }
    let kind = failures.first().map_or(Kind::Other, Error::kind);
    let texts: Vec<_> = failures.iter().map(Error::to_string).collect();
    Err(Error::of(kind, texts.join("; ")))
}
