//! The one mechanism by which every [`Program`] is applied, checked and removed: look at what the kernel holds, write
//! only what differs, look again.

use super::backend::Backend;
use super::differences::Differences;
use super::look::{Kernel, Part};
use super::nftables::tables::{self as own, Own};
use super::reference::Reference;
use super::scope::Scope;
use super::trial::takes_own_tables;
use super::visit::{Ipv6, Visit, Wanted};
use super::xtables::detect::Firewall;
use super::xtables::ipset;
use super::xtables::programs::Programs;
use super::xtables::variant::Variant;
use crate::error::{Context, Error, Kind, Result};
use crate::rules::diff::{Expected, Leftovers};
use crate::rules::family::Family;
use crate::rules::nftables;
use crate::rules::preceding::Preceding;
use crate::rules::program::{Program, Purpose};
use crate::rules::render::restore;
use crate::rules::ruleset::RuleSet;
use crate::sys::exec;
use crate::sys::file;
use crate::sys::netlink::sock_diag;
use crate::sys::netns::{Netns, Owner};
use crate::sys::sync;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// What this module is told once.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `FORCE_IPTABLES_BINARY`.
    pub force_variant: Option<Variant>,
    /// Directory for the xtables lock files of each namespace (below the run dir); made when it is not there.
    pub lock_dir: PathBuf,
    /// Where the iptables programs are looked for; `None`: in the system's own directories.
    pub program_dir: Option<PathBuf>,
    /// Write tables of nf_tables of our own, where the kernel can, instead of running iptables.
    pub native_nftables: bool,
}

/// What [`Engine::apply`] found and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// Everything was right; nothing was written.
    AlreadyRight,
    /// Rules were written and verified.
    Written,
}

/// Detection is done once, references are cached per program.
#[derive(Debug)]
pub struct Engine {
    kernel: Kernel,
    firewall: Firewall,
    backend: Backend,
    /// Whether tables of our own can have IPv6, or why not.
    own_ipv6: OnceLock<Result<(), String>>,
    lock_dir: PathBuf,
    /// It has been said that rules are moved from where another backend puts them.
    told_move: AtomicBool,
    /// The newest last. A list: there are few, and to hash a program takes longer than to compare it with these.
    references: Mutex<Vec<(Backend, Program, Arc<Reference>)>>,
}

impl Engine {
    /// Finds what works here (tested in a throwaway namespace, not guessed). `host` is the host's namespace, which is
    /// only read.
    pub fn detect(options: Options, host: &Netns) -> Result<Self> {
        Self::on(Kernel::probe()?, options, host)
    }

    fn on(kernel: Kernel, options: Options, host: &Netns) -> Result<Self> {
        let Options { force_variant, lock_dir, program_dir, native_nftables } = options;
        file::create_dir_all(&lock_dir, file::Mode(0o700))?;
        let firewall = Firewall::new(program_dir, lock_dir.join("detect"));
        let native =
            if native_nftables { takes_own_tables(kernel, Family::V4) } else { Err(Error::new("not asked for")) };
        let backend = match native {
            Ok(()) => {
                log::info!("rules are written into nf_tables natively");
                Backend::Nftables
            }
            Err(e) => {
                if native_nftables {
                    log::warn!(
                        "native nf_tables is asked for (--native-nftables) and cannot be had; iptables is used: {e}"
                    );
                }
                Backend::Iptables(firewall.choose(kernel, host, force_variant)?)
            }
        };
        let (own_ipv6, told_move, references) = (OnceLock::new(), AtomicBool::new(false), Mutex::default());
        Ok(Engine { kernel, firewall, backend, own_ipv6, lock_dir, told_move, references })
    }

    /// Where new rules go.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The iptables programs that work here, and what is wrong with the others. Tries them if nobody has yet.
    pub fn trials(&self) -> (impl Iterator<Item = &Programs>, &[String]) {
        self.firewall.trials()
    }

    /// Whether IPv6 can be programmed; the error says why not.
    pub fn ipv6(&self) -> Result<()> {
        self.ipv6_by(self.backend)
    }

    fn ipv6_by(&self, backend: Backend) -> Result<()> {
        match backend {
            Backend::Iptables(variant) => self.firewall.programs(variant)?.ipv6(),
            Backend::Nftables => {
                let tried =
                    self.own_ipv6.get_or_init(|| takes_own_tables(self.kernel, Family::V6).map_err(|e| e.to_string()));
                tried.clone().map_err(|why| Error::new(format_args!("this kernel's nf_tables cannot do IPv6: {why}")))
            }
        }
    }

    /// Whether this kernel takes the program: tried in a namespace that is thrown away.
    pub fn supports(&self, program: &Program) -> Result<()> {
        self.reference(self.backend, program).map(drop)
    }

    /// Brings the namespace to the program: looks, writes only what differs, verifies. On failure what was put in is
    /// taken out again unless there were rules of ours before.
    pub fn apply(&self, netns: &Netns, program: &Program, leftovers: Leftovers) -> Result<Applied> {
        self.bring(netns, program, leftovers).map(|(applied, _)| applied)
    }

    /// Does what [`Self::apply`] does, but every chain of ours is written again even if it looks right.
    pub fn rewrite(&self, netns: &Netns, program: &Program, leftovers: Leftovers) -> Result<()> {
        self.bring_about(netns, program, leftovers, true).map(drop)
    }

    /// [`Self::apply`], with the rules of others that packets come to before ours.
    pub fn bring(&self, netns: &Netns, program: &Program, leftovers: Leftovers) -> Result<(Applied, Vec<Preceding>)> {
        self.bring_about(netns, program, leftovers, false)
    }

    fn bring_about(
        &self,
        netns: &Netns,
        program: &Program,
        leftovers: Leftovers,
        doubt: bool,
    ) -> Result<(Applied, Vec<Preceding>)> {
        let _alone = reserve(netns)?;
        self.visit(netns, program, leftovers, |visit, wanted| {
            let mut survey = if doubt { visit.survey_in_doubt(wanted)? } else { visit.survey(wanted)? };
            if let Some(why) = survey.refusal {
                return Err(Error::of(Kind::Refused, why));
            }
            if survey.differences.is_empty() {
                visit.ask_effects(wanted, &mut survey)?;
            } else {
                visit.assume_no_effects(wanted, &mut survey)?;
            }
            if survey.differences.is_empty() {
                let policy = visit.preceding_policy_rules(wanted)?;
                return Ok((Applied::AlreadyRight, [survey.preceding, policy].concat()));
            }
            if survey.moves(visit.backend) && !self.told_move.swap(true, Ordering::Relaxed) {
                log::info!(
                    "rules of ours are where another backend puts them: they are moved, in running pods too, whose settings \
                     stay; no connection is lost by that"
                );
            }
            let (had_ours, variants, before) = (survey.had_ours, survey.variants(), survey.preceding.clone());
            // What is outside the tables needs no second look: the kernel has acknowledged each.
            let written = visit.write(survey, wanted).and_then(|seen| {
                let survey = visit.survey_of(wanted, Part { variants: &variants, families: &seen.others() })?;
                match survey.differences.as_slice() {
                    [] if !variants.iter().any(|variant| self.backend == Backend::Iptables(*variant)) => {
                        Ok((Applied::Written, before))
                    }
                    [] => {
                        let after = seen.preceding.into_iter().chain(survey.preceding).filter(Preceding::is_rule);
                        let chains = before.into_iter().filter(|one| !one.is_rule());
                        Ok((Applied::Written, chains.chain(after).collect()))
                    }
                    wrong => Err(Error::new(format_args!("after writing, {}", wrong.join("; ")))),
                }
            });
            let (applied, before) = written.map_err(|e| if had_ours { e } else { undo(visit, e) })?;
            let policy = visit.preceding_policy_rules(wanted)?;
            Ok((applied, [before, policy].concat()))
        })
    }

    /// What differs from the program, one clause each; empty when all is right. Starts no process inside, unless
    /// something of ours is not as it should be.
    pub fn check(&self, netns: &Netns, program: &Program, leftovers: Leftovers) -> Result<Vec<String>> {
        self.compare(netns, program, leftovers).map(Differences::all)
    }

    /// What differs from the program, by kind.
    pub fn compare(&self, netns: &Netns, program: &Program, leftovers: Leftovers) -> Result<Differences> {
        self.visit(netns, program, leftovers, |visit, wanted| {
            let mut survey = visit.survey(wanted)?;
            let rules = std::mem::take(&mut survey.differences);
            visit.ask_effects(wanted, &mut survey)?;
            let preceding = [survey.preceding, visit.preceding_policy_rules(wanted)?].concat();
            let listening = (program.purpose == Purpose::Ambient).then(sock_diag::listening).transpose();
            let listening = listening.unwrap_or_else(|e| {
                log::debug!("{e}");
                None
            });
            Ok(Differences { rules, routes: survey.differences, preceding, bypassed: false, listening })
        })
    }

    /// The input that would be loaded, each with the name of the program that would take it; nothing is.
    pub fn preview(&self, netns: &Netns, program: &Program, leftovers: Leftovers) -> Result<Vec<(String, String)>> {
        self.visit(netns, program, leftovers, |visit, wanted| Ok(visit.survey(wanted)?.inputs()))
    }

    /// Takes everything of ours out that a program of this purpose may have put there, in both variants and families;
    /// goes on past failures and returns them joined. What is not there is no failure. Ambient's rules are taken out only
    /// where the rules themselves prove that they are ambient's; elsewhere nothing is touched, and a warning says why.
    pub fn remove(&self, netns: &Netns, program: &Program) -> Result<()> {
        let program = program.clone().emptied();
        let _alone = reserve(netns)?;
        let visit = self.visitor(netns, &program, Scope::Everything, Leftovers::Remove)?;
        let ino = netns.id().ino;
        netns.enter(|| match visit.objection()? {
            Some(why) => {
                log::warn!(netns = ino; "nothing is taken out of the network namespace: {why}");
                Ok(())
            }
            None => visit.remove(),
        })?
    }

    fn visit<T: Send>(
        &self,
        netns: &Netns,
        program: &Program,
        leftovers: Leftovers,
        work: impl FnOnce(&Visit<'_>, &Wanted<'_>) -> Result<T> + Send,
    ) -> Result<T> {
        let visit = self.visitor(netns, program, Scope::of(program.purpose), leftovers)?;
        let backend = visit.backend;
        // Tables of our own are of both families.
        let v4 = || program.clone().without(Family::V6);
        let reference = match backend {
            Backend::Nftables if self.ipv6_by(backend).is_err() => self.reference(backend, &v4()),
            _ => self.reference(backend, program),
        };
        let reference = if backend == self.backend {
            reference?
        } else {
            reference
                .context("the user namespace of this pod (hostUsers: false) takes these rules from nf_tables only")?
        };
        netns.enter(|| {
            if Ipv6::here()? == Ipv6::On {
                if program.programs(Family::V6) {
                    // Nothing must be half protected.
                    let remedy = match program.purpose {
                        Purpose::Ambient => ", or set --ambient-ipv6=false",
                        Purpose::Sidecar | Purpose::Host => "",
                    };
                    let lacks = match backend {
                        Backend::Iptables(_) => "ip6tables with the kernel modules it needs",
                        Backend::Nftables => "a kernel that can do it",
                    };
                    self.ipv6_by(backend).with_context(|| format!("there is IPv6: give this node {lacks}{remedy}"))?;
                }
                return work(&visit, &Wanted::of(&reference));
            }
            let reference = match backend {
                Backend::Iptables(_) => reference,
                Backend::Nftables => self.reference(backend, &v4())?,
            };
            let mut wanted = Wanted::of(&reference);
            wanted.families.remove(&Family::V6);
            work(&visit, &wanted)
        })?
    }

    fn visitor<'a>(
        &'a self,
        netns: &Netns,
        program: &'a Program,
        scope: Scope,
        leftovers: Leftovers,
    ) -> Result<Visit<'a>> {
        // Named by the inode: these are reused, so the files do not pile up.
        let lock = self.lock_dir.join(netns.id().ino.to_string());
        let (firewall, backend, kernel) = (&self.firewall, self.backend_in(netns, program)?, self.kernel);
        Ok(Visit { firewall, backend, kernel, program, scope, leftovers, lock })
    }

    /// Where the rules of a program go in this namespace. From iptables the kernel takes owner matches only inside the
    /// user namespace that owns it, and whoever is root there could stop, trace and search such a process. So no
    /// process of ours enters one: where it would have to, the rules go into tables of our own, over netlink.
    fn backend_in(&self, netns: &Netns, program: &Program) -> Result<Backend> {
        match self.backend {
            Backend::Iptables(_) if program.matches_owners() && netns.owner()? != Owner::Own => Ok(Backend::Nftables),
            backend => Ok(backend),
        }
    }

    /// What the kernel should show: loaded once into a namespace that is thrown away.
    fn reference(&self, backend: Backend, program: &Program) -> Result<Arc<Reference>> {
        /// Settings differ by few switches, but interface names and ranges come from pods.
        const MOST: usize = 64;
        /// All that are kept have at most this many, except for the newest alone: a rule takes some hundred bytes.
        const MOST_RULES: usize = 8192;
        if let Some((.., known)) = self.references().iter().find(|(by, of, _)| *by == backend && of == program) {
            return Ok(Arc::clone(known));
        }
        let made =
            Arc::new(self.make_reference(backend, program).context("load the rules into an empty network namespace")?);
        let mut references = self.references();
        let rules =
            |references: &[(Backend, Program, _)]| references.iter().map(|(_, of, _)| of.count()).sum::<usize>();
        while references.len() >= MOST || !references.is_empty() && rules(&references) + program.count() > MOST_RULES {
            references.remove(0);
        }
        references.push((backend, program.clone(), Arc::clone(&made)));
        Ok(made)
    }

    fn references(&self) -> MutexGuard<'_, Vec<(Backend, Program, Arc<Reference>)>> {
        sync::lock(&self.references)
    }

    fn make_reference(&self, backend: Backend, program: &Program) -> Result<Reference> {
        let scratch = Netns::scratch()?;
        match backend {
            Backend::Iptables(variant) => self.loaded_by_iptables(program, variant, &scratch),
            Backend::Nftables => {
                let tables = nftables::tables(program.purpose, &program.rules);
                let look = scratch.enter(|| {
                    own::write(&tables)?;
                    self.kernel.look(Scope::Everything, program.purpose, Part::ALL)
                })??;
                let nothing = |set: &RuleSet| (set.family, Expected::nothing(set.family));
                let own = Own::new(tables, look.own().clone())?;
                Ok(Reference { families: program.rules.iter().map(nothing).collect(), own })
            }
        }
    }

    fn loaded_by_iptables(&self, program: &Program, variant: Variant, scratch: &Netns) -> Result<Reference> {
        let programs = self.firewall.programs(variant)?;
        let lock = self.lock_dir.join(scratch.id().ino.to_string());
        let usable = |set: &&RuleSet| set.family == Family::V4 || programs.ipv6().is_ok();
        let sets: Vec<&RuleSet> = program.rules.iter().filter(|set| !set.tables.is_empty()).filter(usable).collect();
        let commands = sets.iter().map(|set| programs.restore(set.family, restore(set), &lock));
        let commands = commands.collect::<Result<Vec<_>>>()?;
        let look = scratch.enter(|| {
            for set in sets.iter().filter(|set| set.uses_a_set()) {
                ipset::create(set.family)?;
            }
            for result in exec::run_all(&commands) {
                result?;
            }
            self.kernel.look(Scope::Everything, program.purpose, Part::ALL)
        })??;
        let mut reference = Reference::default();
        for set in &program.rules {
            if set.tables.is_empty() {
                reference.families.insert(set.family, Expected::nothing(set.family));
            } else if sets.contains(&set) {
                let view = look.view(variant, set.family).clone();
                reference.families.insert(set.family, Expected::new(set.clone(), view)?);
            }
        }
        Ok(reference)
    }
}

/// One look, write and second look at a time: two plugins may be run for one sandbox, and a person's `iptables` command
/// beside the agent. Without, both append the same jump, and the one that notices takes out the other's rules.
fn reserve(netns: &Netns) -> Result<Option<File>> {
    /// An apply takes a few milliseconds.
    const PATIENCE: Duration = Duration::from_secs(2);
    let reserved = netns.reserve(PATIENCE)?;
    if reserved.is_none() {
        log::warn!(netns = netns.id().ino;
            "somebody holds a lock on the network namespace for longer than {} s; going on without", PATIENCE.as_secs());
    }
    Ok(reserved)
}

/// Takes out what a failed attempt left, and keeps its error.
fn undo(visit: &Visit<'_>, error: Error) -> Error {
    let program = visit.program.clone().emptied();
    let visit = Visit { program: &program, lock: visit.lock.clone(), ..*visit };
    match visit.remove() {
        Ok(()) => error,
        Err(left) => {
            let kind = error.kind();
            Error::of(kind, format_args!("{error}; and what was put in could not be taken out: {left}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_nf_tables_iptables_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let options = |native_nftables| Options {
            native_nftables,
            lock_dir: dir.path().to_owned(),
            // What runs on nf_tables does not work either.
            force_variant: Some(Variant::Legacy),
            program_dir: None,
        };
        let host = Netns::scratch().unwrap();
        let engine = Engine::on(Kernel::without_nft(), options(true), &host).unwrap();
        assert_eq!(engine.backend(), Backend::Iptables(Variant::Legacy));
        assert_eq!(Engine::detect(options(true), &host).unwrap().backend(), Backend::Nftables);
        assert_eq!(Engine::detect(options(false), &host).unwrap().backend(), Backend::Iptables(Variant::Legacy));
    }
}
