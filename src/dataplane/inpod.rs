//! Puts the rules, routes and rule-marks of an ambient pod into its namespace, checks them and takes them out.

use super::detect::{Firewall, detect};
use super::look::Kernel;
use super::visit::{Ipv6, Visit, Wanted};
use super::xtables::Variant;
use crate::error::{Context, Error, Kind, Result};
use crate::rules::diff::Expected;
use crate::rules::inpod::{Settings, rules};
use crate::rules::render::restore;
use crate::sys::exec;
use crate::sys::file;
use crate::sys::netlink::Family;
use crate::sys::netns::Netns;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What this module is told once.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `FORCE_IPTABLES_BINARY`.
    pub force_variant: Option<Variant>,
    /// Directory for the xtables lock files of each namespace (below the run dir); made when it is not there.
    pub lock_dir: PathBuf,
    /// Where the iptables programs are looked for; `None`: in the system's own directories.
    pub program_dir: Option<PathBuf>,
}

/// What [`InPod::apply`] found and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// Everything was right; nothing was written.
    AlreadyRight,
    /// Rules were written and verified.
    Written,
}

/// What a kernel with the rules of certain settings looks like, by family; IPv6 only where it is wanted and works.
type Reference = Arc<BTreeMap<Family, Expected>>;

/// The programmer of pod namespaces; detection is done once, references are cached per settings.
#[derive(Debug)]
pub struct InPod {
    /// Held open, so that its identity cannot pass to another namespace.
    host: Netns,
    kernel: Kernel,
    firewall: Firewall,
    lock_dir: PathBuf,
    references: Mutex<HashMap<Settings, Reference>>,
}

impl InPod {
    /// Finds the iptables that works here (tested in a throwaway namespace, not guessed). `host` is the host's
    /// namespace: it is only read, and refused as a pod's.
    pub fn detect(options: Options, host: &Netns) -> Result<Self> {
        let Options { force_variant, lock_dir, program_dir } = options;
        file::create_dir_all(&lock_dir, file::Mode(0o700))?;
        let kernel = Kernel::probe()?;
        let firewall = detect(kernel, host, force_variant, program_dir.as_deref(), &lock_dir.join("detect"))?;
        Ok(InPod { host: host.try_clone()?, kernel, firewall, lock_dir, references: Mutex::default() })
    }

    /// The iptables variant that was chosen.
    pub fn variant(&self) -> Variant {
        self.firewall.chosen
    }

    /// Brings the namespace to `settings`: looks, writes only what differs, verifies. On failure what was put in is
    /// taken out again unless the pod had rules of ours before. Fails with `HostNetns` on the host's namespace.
    pub fn apply(&self, netns: &Netns, settings: &Settings) -> Result<Applied> {
        self.visit(netns, settings, |visit, wanted| {
            let mut survey = visit.survey(wanted)?;
            if survey.differences.is_empty() {
                survey.ask_routing(wanted)?;
            } else {
                survey.assume_no_routing(wanted);
            }
            if survey.differences.is_empty() {
                return Ok(Applied::AlreadyRight);
            }
            let had_ours = survey.had_ours;
            // Routes and rule-marks need no second look: the kernel has acknowledged each.
            let written = visit.write(survey).and_then(|()| match visit.survey(wanted)?.differences.as_slice() {
                [] => Ok(Applied::Written),
                wrong => Err(Error::new(format_args!("after writing, {}", wrong.join("; ")))),
            });
            written.map_err(|e| if had_ours { e } else { undo(visit, e) })
        })
        .context("rules in the pod's network namespace")
    }

    /// What differs from `settings`, one clause each; empty when all is right. Starts no process in the pod.
    pub fn check(&self, netns: &Netns, settings: &Settings) -> Result<Vec<String>> {
        self.visit(netns, settings, |visit, wanted| {
            let mut survey = visit.survey(wanted)?;
            survey.ask_routing(wanted)?;
            Ok(survey.differences)
        })
        .context("check the rules in the pod's network namespace")
    }

    /// Takes everything of ours out, in both variants and families; goes on past failures and returns them joined.
    /// What is not there is no failure.
    pub fn remove(&self, netns: &Netns) -> Result<()> {
        self.refuse_host(netns)?;
        let visit = self.visitor(netns);
        netns.enter(|| visit.remove())?.context("take the rules out of the pod's network namespace")
    }

    fn visit<T: Send>(
        &self,
        netns: &Netns,
        settings: &Settings,
        work: impl FnOnce(&Visit<'_>, &Wanted<'_>) -> Result<T> + Send,
    ) -> Result<T> {
        self.refuse_host(netns)?;
        let reference = self.reference(settings)?;
        let visit = self.visitor(netns);
        netns.enter(|| {
            let mut wanted: Wanted<'_> = reference.iter().map(|(family, expected)| (*family, expected)).collect();
            if settings.ipv6 && Ipv6::here()? == Ipv6::On {
                // A pod must not be half protected.
                self.firewall.programs(self.firewall.chosen)?.ipv6().context(
                    "the pod has IPv6: give this node ip6tables with the kernel modules it needs, or set \
                     --ambient-ipv6=false",
                )?;
            } else {
                wanted.remove(&Family::V6);
            }
            work(&visit, &wanted)
        })?
    }

    fn visitor(&self, netns: &Netns) -> Visit<'_> {
        // Named by the inode: these are reused, so the files do not pile up.
        let lock = self.lock_dir.join(netns.id().ino.to_string());
        Visit { firewall: &self.firewall, kernel: self.kernel, lock }
    }

    fn refuse_host(&self, netns: &Netns) -> Result<()> {
        if netns.id() == self.host.id() {
            return Err(Error::of(Kind::HostNetns, "this network namespace is the host's, not a pod's"));
        }
        Ok(())
    }

    /// What the kernel should show for `settings`: loaded once into a namespace that is thrown away.
    fn reference(&self, settings: &Settings) -> Result<Reference> {
        /// Settings differ by few switches, but interface names come from pods.
        const MOST: usize = 64;
        if let Some(known) = self.references().get(settings) {
            return Ok(known.clone());
        }
        let made = Arc::new(self.make_reference(settings).context("load the rules into an empty network namespace")?);
        let mut references = self.references();
        if references.len() >= MOST {
            references.clear();
        }
        references.insert(settings.clone(), made.clone());
        Ok(made)
    }

    fn references(&self) -> MutexGuard<'_, HashMap<Settings, Reference>> {
        self.references.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make_reference(&self, settings: &Settings) -> Result<BTreeMap<Family, Expected>> {
        let variant = self.firewall.chosen;
        let programs = self.firewall.programs(variant)?;
        let mut families = vec![Family::V4];
        if settings.ipv6 && programs.ipv6().is_ok() {
            families.push(Family::V6);
        }
        let scratch = Netns::scratch()?;
        let lock = self.visitor(&scratch).lock;
        let sets: Vec<_> = families.iter().map(|family| rules(settings, *family)).collect();
        let commands = sets.iter().map(|set| programs.restore(set.family, restore(set), &lock));
        let commands = commands.collect::<Result<Vec<_>>>()?;
        let look = scratch.enter(|| {
            for result in exec::run_all(&commands) {
                result?;
            }
            self.kernel.look()
        })??;
        let expect = |set: crate::rules::ruleset::RuleSet| {
            let family = set.family;
            Ok((family, Expected::new(set, look.view(variant, family).clone())?))
        };
        sets.into_iter().map(expect).collect()
    }
}

/// Takes out what a failed attempt left, and keeps its error.
fn undo(visit: &Visit<'_>, error: Error) -> Error {
    match visit.remove() {
        Ok(()) => error,
        Err(left) => {
            let kind = error.kind();
            Error::of(kind, format_args!("{error}; and what was put in could not be taken out: {left}"))
        }
    }
}
