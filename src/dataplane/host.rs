//! The host's side: the probe sets with the addresses of enrolled pods, and the rule that gives the kubelet's probes to
//! them their well-known source address.
//!
//! Others change the host's packet filter too, and a firewall that is reloaded throws everything away: [`Host::ensure`]
//! puts back what is missing, as often as it is called. What should be in the sets is remembered here; entries of the
//! kernel that are not remembered are only removed by [`Host::prune`]. When the backend has changed, the sets of the
//! earlier one are taken over, so that no probe fails before the pods have been entered anew.

use super::backend::Backend;
use super::engine::Engine;
use super::kubelet::{self, Kubelet, Probers};
use super::sets::Sets;
use super::visit::Ipv6;
use super::xtables::ipset;
use crate::error::{Context, Kind, Result};
use crate::rules::diff::Leftovers;
use crate::rules::family::Family;
use crate::rules::host::{Settings, probe_set as set_name, program};
use crate::rules::program::Program;
use crate::sys::file::HostRoot;
use crate::sys::netns::Netns;
use crate::sys::sync;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// See the module. Every function may be called from several threads.
#[derive(Debug)]
pub struct Host {
    netns: Netns,
    settings: Settings,
    ipv6: bool,
    /// The sets are in nf_tables: what is hoped for, until an engine says.
    native: AtomicBool,
    /// Nothing of an earlier backend is left.
    moved: AtomicBool,
    /// It has been said that IPv6 is wanted and cannot be had.
    said: AtomicBool,
    /// It has been said that no kubelet was found.
    told_no_kubelet: AtomicBool,
    /// Below which `/proc` is, where the kubelet is looked for.
    processes: Option<HostRoot>,
    /// The kubelet, as it was found last.
    kubelet: Mutex<Option<Kubelet>>,
    /// What should be in the sets: the pod's uid by address.
    entries: Mutex<BTreeMap<IpAddr, String>>,
}

/// What is programmed.
struct Parts {
    families: Vec<Family>,
    /// One for each family, or one for both.
    programs: Vec<Program>,
}

impl Host {
    /// Makes the host's side for the namespace `netns`. `native` is what the engine is going to be told. Writes nothing yet.
    pub fn new(netns: Netns, settings: Settings, ipv6: bool, native: bool) -> Self {
        let [native, moved, said, told_no_kubelet] = [native, false, false, false].map(AtomicBool::new);
        let (kubelet, entries) = (Mutex::default(), Mutex::default());
        Host { netns, settings, ipv6, native, moved, said, told_no_kubelet, processes: None, kubelet, entries }
    }

    /// Looks for the kubelet in the `/proc` below `root`, and gives native rules its user.
    #[must_use]
    pub fn with_processes(self, root: HostRoot) -> Self {
        Host { processes: Some(root), ..self }
    }

    /// The processes of the host whose connections to pods count as the kubelet's probes; `None` where the rules are
    /// iptables', which cannot say.
    pub fn probers(&self) -> Option<Probers> {
        let told = || sync::lock(&self.kubelet).map_or(Probers::Any, Probers::User);
        (self.sets() == Sets::Nftables).then(told)
    }

    /// Makes the sets with their entries and puts the rule first in POSTROUTING, where that is not so already. Returns
    /// what was not as it should be, one clause each.
    pub fn ensure(&self, engine: &Engine) -> Result<Vec<String>> {
        let sets = self.choose(engine);
        let parts = self.parts(engine)?;
        let mut differences = self.missing_entries(&parts)?;
        self.netns.enter(|| {
            parts.families.iter().try_for_each(|family| {
                sets.create(*family)?;
                if self.moved.load(Ordering::Relaxed) { Ok(()) } else { take_over(sets, *family) }
            })
        })??;
        self.put_missing(&parts)?;
        for program in &parts.programs {
            let wrong = engine.check(&self.netns, program, Leftovers::Remove)?;
            if !wrong.is_empty() {
                engine.apply(&self.netns, program, Leftovers::Remove).context("rules of the host")?;
            }
            differences.extend(wrong);
        }
        if sets == Sets::Nftables && !self.moved.load(Ordering::Relaxed) {
            // No rule refers to them any more.
            differences.extend(self.netns.enter(|| destroy_ipsets(&parts.families))??);
        }
        self.moved.store(true, Ordering::Relaxed);
        Ok(differences)
    }

    /// What is not as it should be, one clause each. Starts no process.
    pub fn check(&self, engine: &Engine) -> Result<Vec<String>> {
        self.choose(engine);
        let parts = self.parts(engine)?;
        let mut differences = self.missing_entries(&parts)?;
        for program in &parts.programs {
            differences.extend(engine.check(&self.netns, program, Leftovers::Remove)?);
        }
        Ok(differences)
    }

    /// Enters the addresses of a pod, in place of whoever had them.
    pub fn add(&self, uid: &str, addresses: &[IpAddr]) -> Result<()> {
        let mine: Vec<IpAddr> = addresses.iter().map(IpAddr::to_canonical).collect();
        self.entries().extend(mine.iter().map(|address| (*address, uid.to_owned())));
        self.netns.enter(|| {
            for address in mine.into_iter().filter(|address| self.is_programmed(Family::of(*address))) {
                match self.sets().add(address, uid) {
                    Err(e) if e.kind() == Kind::NotFound => {
                        // Not made yet, or somebody has destroyed it.
                        self.sets().create(Family::of(address))?;
                        self.sets().add(address, uid)?;
                    }
                    added => added?,
                }
            }
            Ok(())
        })?
    }

    /// Takes the addresses of a pod out, where they are still entered for it. What is gone is fine.
    pub fn remove(&self, uid: &str, addresses: &[IpAddr]) -> Result<()> {
        let mine: Vec<IpAddr> = addresses.iter().map(IpAddr::to_canonical).collect();
        self.entries().retain(|address, owner| owner != uid || !mine.contains(address));
        self.netns.enter(|| mine.into_iter().try_for_each(|address| self.sets().remove(address, uid).map(drop)))?
    }

    /// Removes every entry that was not added here, unless it is to be kept: with one of a pod that is still to be added,
    /// that would cut the kubelet's probes to it off.
    pub fn prune(&self, keep: impl Fn(IpAddr, &str) -> bool + Sync) -> Result<Vec<String>> {
        self.netns.enter(|| {
            let mut pruned = Vec::new();
            for family in [Family::V4, Family::V6] {
                for (address, uid) in self.sets().entries(family)? {
                    let stays = self.entries().contains_key(&address) || keep(address, &uid);
                    if !stays && self.sets().remove(address, &uid)? {
                        pruned.push(format!("{address} was in {} for pod {uid}", self.sets().name(family)));
                    }
                }
            }
            Ok(pruned)
        })?
    }

    /// What the sets hold: the pod's uid by address.
    pub fn in_kernel(&self) -> Result<BTreeMap<IpAddr, String>> {
        self.netns.enter(|| {
            let mut all = self.sets().entries(Family::V4)?;
            all.extend(self.sets().entries(Family::V6)?);
            Ok(all)
        })?
    }

    /// What there is to remove, one clause each.
    pub fn left(&self, engine: &Engine) -> Result<Vec<String>> {
        let mut left = Vec::new();
        if !engine.check(&self.netns, &program(&self.settings, true).emptied(), Leftovers::Remove)?.is_empty() {
            left.push("remove our rules from the host's network namespace".to_owned());
        }
        self.netns.enter(|| {
            for family in [Family::V4, Family::V6] {
                if ipset::is_there(family)? {
                    left.push(format!("remove ipset {}", set_name(family)));
                }
            }
            Ok(left)
        })?
    }

    /// Takes rule and sets out, whatever an earlier run was told.
    pub fn remove_all(&self, engine: &Engine) -> Result<()> {
        let all = program(&self.settings, true);
        let removed = engine.remove(&self.netns, &all).context("take our rules out of the host's network namespace");
        self.entries().clear();
        let destroyed = self.netns.enter(|| destroy_ipsets(&[Family::V4, Family::V6]).map(drop));
        removed.and(destroyed?)
    }

    /// Keeps the sets where the engine puts its rules, and finds out who the kubelet is where that matters.
    fn choose(&self, engine: &Engine) -> Sets {
        self.native.store(engine.backend() == Backend::Nftables, Ordering::Relaxed);
        if self.sets() == Sets::Nftables {
            self.look_for_kubelet();
        }
        self.sets()
    }

    /// A kubelet that is away for a moment keeps its user.
    fn look_for_kubelet(&self) {
        let Some(root) = &self.processes else { return };
        let mut known = sync::lock(&self.kubelet);
        match kubelet::find(root, self.netns.id(), *known) {
            Ok(Some(found)) => {
                if known.is_none_or(|known| known.uid != found.uid) {
                    log::info!(pid = found.pid, kubelet = found.uid; "probes of pods are told by the kubelet's user");
                }
                *known = Some(found);
            }
            Ok(None) if known.is_none() => self.tell_there_is_no_kubelet("no process is a kubelet"),
            Ok(None) => {}
            Err(e) => self.tell_there_is_no_kubelet(&e.to_string()),
        }
    }

    fn tell_there_is_no_kubelet(&self, why: &str) {
        if !self.told_no_kubelet.swap(true, Ordering::Relaxed) {
            log::warn!("connections of any process of the host to pods count as the kubelet's probes: {why}");
        }
    }

    fn sets(&self) -> Sets {
        if self.native.load(Ordering::Relaxed) { Sets::Nftables } else { Sets::Ipset }
    }

    /// What is programmed, in the families that are.
    fn parts(&self, engine: &Engine) -> Result<Parts> {
        let kubelet = match self.probers() {
            Some(Probers::User(kubelet)) => Some(kubelet.uid),
            Some(Probers::Any) | None => None,
        };
        let all = program(&Settings { kubelet, ..self.settings.clone() }, self.ipv6);
        let (v4, v6) = (all.clone().without(Family::V6), all.clone().without(Family::V4));
        let mut parts = Parts { families: vec![Family::V4], programs: vec![v4] };
        if self.ipv6 && self.netns.enter(Ipv6::here)?? == Ipv6::On {
            match engine.ipv6().and_then(|()| engine.supports(&v6)) {
                Ok(()) => {
                    parts.families.push(Family::V6);
                    match self.sets() {
                        Sets::Ipset => parts.programs.push(v6),
                        // The table is of both families.
                        Sets::Nftables => parts.programs = vec![all],
                    }
                }
                Err(e) if !self.said.swap(true, Ordering::Relaxed) => {
                    log::warn!(
                        "IPv6 is on, but this node cannot do it on the host's side; only IPv4 probes of pods get through: {e}"
                    );
                }
                Err(_) => {}
            }
        }
        Ok(parts)
    }

    /// In the calling thread's namespace.
    fn is_programmed(&self, family: Family) -> bool {
        family == Family::V4 || self.ipv6 && !self.said.load(Ordering::Relaxed) && matches!(Ipv6::here(), Ok(Ipv6::On))
    }

    fn missing_entries(&self, parts: &Parts) -> Result<Vec<String>> {
        let missing = self.netns.enter(|| self.missing(parts))??;
        let name = |address| self.sets().name(Family::of(address));
        let clause = |(address, uid)| format!("{address} of pod {uid} is not in {}", name(address));
        Ok(missing.into_iter().map(clause).collect())
    }

    /// In the calling thread's namespace.
    fn missing(&self, parts: &Parts) -> Result<Vec<(IpAddr, String)>> {
        let mut missing = Vec::new();
        for &family in &parts.families {
            let there = self.sets().entries(family)?;
            let wanted = self.entries();
            let lacks = |(address, uid): &(&IpAddr, &String)| {
                Family::of(**address) == family && there.get(*address) != Some(*uid)
            };
            missing.extend(wanted.iter().filter(lacks).map(|(address, uid)| (*address, uid.clone())));
        }
        Ok(missing)
    }

    fn put_missing(&self, parts: &Parts) -> Result<()> {
        self.netns.enter(|| {
            for (address, uid) in self.missing(parts)? {
                self.sets().add(address, &uid)?;
                // It may have been removed, or passed on, since we looked.
                let owner = self.entries().get(&address).cloned();
                match owner {
                    Some(owner) if owner == uid => {}
                    Some(owner) => self.sets().add(address, &owner)?,
                    None => drop(self.sets().remove(address, &uid)?),
                }
            }
            Ok(())
        })?
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<IpAddr, String>> {
        sync::lock(&self.entries)
    }
}

/// Enters what is in the set of the other backend, in the calling thread's namespace.
fn take_over(sets: Sets, family: Family) -> Result<()> {
    let left = sets.other().entries(family)?;
    if left.is_empty() {
        return Ok(());
    }
    let there = sets.entries(family)?;
    left.iter()
        .filter(|(address, _)| !there.contains_key(*address))
        .try_for_each(|(address, uid)| sets.add(*address, uid))
}

/// Removes the sets of ipset, in the calling thread's namespace; returns what was there.
fn destroy_ipsets(families: &[Family]) -> Result<Vec<String>> {
    let mut gone = Vec::new();
    for &family in families {
        if ipset::destroy(family)? {
            gone.push(format!("{} is a leftover", Sets::Ipset.name(family)));
        }
    }
    Ok(gone)
}
