//! The host's side: the probe sets with the addresses of enrolled pods, and the rule that gives the kubelet's probes to
//! them their well-known source address.
//!
//! Others change the host's packet filter too, and a firewall that is reloaded throws everything away: [`Host::ensure`]
//! puts back what is missing, as often as it is called. What should be in the sets is remembered here; entries of the
//! kernel that are not remembered are only removed by [`Host::prune`].

use super::engine::Engine;
use super::probe_set;
use super::visit::Ipv6;
use crate::error::{Context, Result};
use crate::rules::diff::Leftovers;
use crate::rules::host::{Settings, probe_set as set_name, program};
use crate::rules::program::Program;
use crate::sys::netlink::Family;
use crate::sys::netns::Netns;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module. Every function may be called from several threads.
#[derive(Debug)]
pub struct Host {
    netns: Netns,
    settings: Settings,
    ipv6: bool,
    /// It has been said that IPv6 is wanted and cannot be had.
    said: AtomicBool,
    /// What should be in the sets: the pod's uid by address.
    entries: Mutex<BTreeMap<IpAddr, String>>,
}

/// A family as far as the host's side of it goes.
struct Part {
    family: Family,
    program: Program,
}

impl Host {
    /// Of the host whose namespace is `netns`. Does nothing yet.
    pub fn new(netns: Netns, settings: Settings, ipv6: bool) -> Self {
        Host { netns, settings, ipv6, said: AtomicBool::new(false), entries: Mutex::default() }
    }

    /// Makes the sets with their entries and puts the rule first in POSTROUTING, where that is not so already. Returns
    /// what was not as it should be, one clause each.
    pub fn ensure(&self, engine: &Engine) -> Result<Vec<String>> {
        let parts = self.parts(engine)?;
        let mut differences = self.missing_entries(&parts)?;
        self.netns.enter(|| parts.iter().try_for_each(|part| probe_set::create(part.family)))??;
        self.put_missing(&parts)?;
        for part in &parts {
            let wrong = engine.check(&self.netns, &part.program, Leftovers::Remove)?;
            if !wrong.is_empty() {
                engine.apply(&self.netns, &part.program, Leftovers::Remove).context("rules of the host")?;
            }
            differences.extend(wrong);
        }
        Ok(differences)
    }

    /// What is not as it should be, one clause each. Starts no process.
    pub fn check(&self, engine: &Engine) -> Result<Vec<String>> {
        let parts = self.parts(engine)?;
        let mut differences = self.missing_entries(&parts)?;
        for part in &parts {
            differences.extend(engine.check(&self.netns, &part.program, Leftovers::Remove)?);
        }
        Ok(differences)
    }

    /// Enters the addresses of a pod, in place of whoever had them.
    pub fn add(&self, uid: &str, addresses: &[IpAddr]) -> Result<()> {
        let mine: Vec<IpAddr> = addresses.iter().map(IpAddr::to_canonical).collect();
        self.entries().extend(mine.iter().map(|address| (*address, uid.to_owned())));
        self.netns.enter(|| {
            for address in mine.into_iter().filter(|address| self.is_programmed(Family::of(*address))) {
                // Somebody may have destroyed it.
                probe_set::create(Family::of(address))?;
                probe_set::add(address, uid)?;
            }
            Ok(())
        })?
    }

    /// Takes the addresses of a pod out, where they are still entered for it. What is gone is fine.
    pub fn remove(&self, uid: &str, addresses: &[IpAddr]) -> Result<()> {
        let mine: Vec<IpAddr> = addresses.iter().map(IpAddr::to_canonical).collect();
        self.entries().retain(|address, owner| owner != uid || !mine.contains(address));
        self.netns.enter(|| mine.into_iter().try_for_each(|address| probe_set::remove(address, uid).map(drop)))?
    }

    /// Removes every entry that was not added here. Only for a caller that has added all that should be there: with a
    /// pod whose address is not known yet, that would cut the kubelet's probes to it off.
    pub fn prune(&self) -> Result<Vec<String>> {
        self.netns.enter(|| {
            let mut pruned = Vec::new();
            for family in [Family::V4, Family::V6] {
                for (address, uid) in probe_set::entries(family)? {
                    if !self.entries().contains_key(&address) && probe_set::remove(address, &uid)? {
                        pruned.push(format!("{address} was in ipset {} for pod {uid}", set_name(family)));
                    }
                }
            }
            Ok(pruned)
        })?
    }

    /// What the sets hold: the pod's uid by address.
    pub fn in_kernel(&self) -> Result<BTreeMap<IpAddr, String>> {
        self.netns.enter(|| {
            let mut all = probe_set::entries(Family::V4)?;
            all.extend(probe_set::entries(Family::V6)?);
            Ok(all)
        })?
    }

    /// Takes rule and sets out, whatever an earlier run was told.
    pub fn remove_all(&self, engine: &Engine) -> Result<()> {
        let all = program(&self.settings, true);
        let removed = engine.remove(&self.netns, &all).context("take our rules out of the host's network namespace");
        self.entries().clear();
        let destroyed = self
            .netns
            .enter(|| [Family::V4, Family::V6].into_iter().try_for_each(|family| probe_set::destroy(family).map(drop)));
        removed.and(destroyed?)
    }

    /// The families that are programmed.
    fn parts(&self, engine: &Engine) -> Result<Vec<Part>> {
        let all = program(&self.settings, self.ipv6);
        let v4 = Part { family: Family::V4, program: all.clone().without(Family::V6) };
        let mut parts = vec![v4];
        if self.ipv6 && self.netns.enter(Ipv6::here)?? == Ipv6::On {
            let v6 = Part { family: Family::V6, program: all.without(Family::V4) };
            match engine.ipv6().and_then(|()| engine.supports(&v6.program)) {
                Ok(()) => parts.push(v6),
                Err(e) if !self.said.swap(true, Ordering::Relaxed) => {
                    log::warn!(target: "cni-agent",
                        "IPv6 is on, but this node cannot do it on the host's side; only IPv4 probes of pods get through: {e}");
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

    fn missing_entries(&self, parts: &[Part]) -> Result<Vec<String>> {
        let missing = self.netns.enter(|| self.missing(parts))??;
        let clause =
            |(address, uid)| format!("{address} of pod {uid} is not in ipset {}", set_name(Family::of(address)));
        Ok(missing.into_iter().map(clause).collect())
    }

    /// In the calling thread's namespace.
    fn missing(&self, parts: &[Part]) -> Result<Vec<(IpAddr, String)>> {
        let mut missing = Vec::new();
        for part in parts {
            let there = probe_set::entries(part.family)?;
            let wanted = self.entries();
            let lacks = |(address, uid): &(&IpAddr, &String)| {
                Family::of(**address) == part.family && there.get(*address) != Some(*uid)
            };
            missing.extend(wanted.iter().filter(lacks).map(|(address, uid)| (*address, uid.clone())));
        }
        Ok(missing)
    }

    fn put_missing(&self, parts: &[Part]) -> Result<()> {
        self.netns.enter(|| {
            for (address, uid) in self.missing(parts)? {
                probe_set::add(address, &uid)?;
                // It may have been removed, or passed on, since we looked.
                let owner = self.entries().get(&address).cloned();
                match owner {
                    Some(owner) if owner == uid => {}
                    Some(owner) => probe_set::add(address, &owner)?,
                    None => drop(probe_set::remove(address, &uid)?),
                }
            }
            Ok(())
        })?
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<IpAddr, String>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
