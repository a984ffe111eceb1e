//! One visit to a pod's namespace: look, write what differs, look again. Everything here runs on a thread inside.

use super::detect::Firewall;
use super::look::{Kernel, Look};
use super::nft;
use super::xtables::Variant;
use crate::error::{Context, Error, Kind, Result};
use crate::rules::diff::{Expected, removal};
use crate::rules::inpod::{OWNED, routing};
use crate::rules::ruleset::TableName;
use crate::sys::netlink::{self, Family, LocalRoute, MarkRule};
use crate::sys::{exec, file};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What each family should hold.
pub type Wanted<'a> = BTreeMap<Family, &'a Expected>;

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
pub struct Survey {
    /// What is not as it should be, one clause each.
    pub differences: Vec<String>,
    /// Something of ours was in the tables.
    pub had_ours: bool,
    restores: Vec<Restore>,
    wake: Vec<(Family, TableName)>,
    rules: Vec<MarkRule>,
    routes: Vec<LocalRoute>,
    /// Rules of ours where they should not be; taken out last.
    leftovers: Vec<Restore>,
}

impl Survey {
    /// Asks for the routes and rule-marks too.
    pub fn ask_routing(&mut self, wanted: &Wanted<'_>) -> Result<()> {
        for &family in wanted.keys() {
            let (rule, route) = routing(family);
            if !netlink::has_rule(rule)? {
                self.differences.push(format!("{}: the rule for marked packets is missing", family_name(family)));
                self.rules.push(rule);
            }
            if !netlink::has_route(route)? {
                let name = family_name(family);
                self.differences.push(format!("{name}: the local route for marked packets is missing"));
                self.routes.push(route);
            }
        }
        Ok(())
    }

    /// Writes all routes and rule-marks without asking: what is there already does no harm, and this is quicker.
    pub fn assume_no_routing(&mut self, wanted: &Wanted<'_>) {
        for &family in wanted.keys() {
            let (rule, route) = routing(family);
            self.rules.push(rule);
            self.routes.push(route);
        }
    }
}

/// A visit. Made inside.
#[derive(Debug)]
pub struct Visit<'a> {
    /// The programs.
    pub firewall: &'a Firewall,
    /// What can be looked at.
    pub kernel: Kernel,
    /// Path of the namespace's lock files.
    pub lock: PathBuf,
}

impl Visit<'_> {
    /// Compares the tables with what they should be.
    pub fn survey(&self, wanted: &Wanted<'_>) -> Result<Survey> {
        let look = self.kernel.look()?;
        let mut survey = Survey::default();
        for (&family, expected) in wanted {
            let name = family_name(family);
            for variant in [Variant::Nft, Variant::Legacy] {
                let view = look.view(variant, family);
                let ours = removal(OWNED, view);
                survey.had_ours |= !ours.is_empty();
                if variant == self.firewall.chosen {
                    let plan = expected.plan(OWNED, view);
                    survey.differences.extend(plan.differences.iter().map(|what| format!("{name}: {what}")));
                    survey.restores.extend(restore(variant, family, plan.restore));
                    survey.wake.extend(plan.wake.into_iter().map(|table| (family, table)));
                } else if !ours.is_empty() {
                    survey.differences.push(format!("{name}: there are rules of ours in the {variant} tables too"));
                    survey.leftovers.extend(restore(variant, family, ours.restore));
                }
            }
        }
        Ok(survey)
    }

    /// Writes what differs.
    pub fn write(&self, survey: Survey) -> Result<()> {
        let Survey { restores, wake, rules, routes, leftovers, .. } = survey;
        // The programs take a while to start.
        let (failures, routed) = self.run_while(restores, || route(&rules, &routes));
        all_well(failures.into_iter().chain(routed.err()).collect())?;
        for (family, table) in wake {
            nft::wake(family, table.as_str())?;
        }
        all_well(self.run(leftovers)).context("take out the rules of the other variant")
    }

    /// Takes everything of ours out, goes on past failures.
    pub fn remove(&self) -> Result<()> {
        let look = self.kernel.look()?;
        let mut families = vec![Family::V4];
        if Ipv6::here()? != Ipv6::Absent {
            families.push(Family::V6);
        }
        let mut failures = self.run(everything_of_ours(&look, &families));
        for family in families {
            let (rule, route) = routing(family);
            failures.extend(netlink::remove_rule(rule).context("remove the rule for marked packets").err());
            failures.extend(netlink::remove_route(route).context("remove the local route for marked packets").err());
        }
        all_well(failures)
    }

    /// Runs the programs side by side; returns the failures.
    fn run(&self, restores: Vec<Restore>) -> Vec<Error> {
        self.run_while(restores, || ()).0
    }

    fn run_while<T>(&self, restores: Vec<Restore>, meanwhile: impl FnOnce() -> T) -> (Vec<Error>, T) {
        let mut failures = Vec::new();
        let mut commands = Vec::new();
        for Restore { variant, family, input } in restores {
            let programs = self.firewall.programs(variant);
            match programs.and_then(|programs| programs.restore(family, input, &self.lock)) {
                Ok(command) => commands.push(command),
                Err(e) => failures.push(e),
            }
        }
        let (results, done) = exec::run_all_while(&commands, meanwhile);
        failures.extend(results.into_iter().filter_map(Result::err));
        (failures, done)
    }
}

fn route(rules: &[MarkRule], routes: &[LocalRoute]) -> Result<()> {
    for rule in rules {
        netlink::add_rule(*rule).context("add the rule for marked packets")?;
    }
    for route in routes {
        netlink::replace_route(*route).map_err(|e| {
            let down = e.errno() == Some(libc::ENETDOWN);
            let hint = if down { " (is its lo down? the runtime brings it up)" } else { "" };
            e.context(format_args!("add the local route for marked packets{hint}"))
        })?;
    }
    Ok(())
}

fn everything_of_ours(look: &Look, families: &[Family]) -> Vec<Restore> {
    let mut all = Vec::new();
    for &family in families {
        for variant in [Variant::Nft, Variant::Legacy] {
            all.extend(restore(variant, family, removal(OWNED, look.view(variant, family)).restore));
        }
    }
    all
}

fn restore(variant: Variant, family: Family, input: String) -> Option<Restore> {
    (!input.is_empty()).then_some(Restore { variant, family, input })
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
