//! The host's side: the rule that marks the kubelet's probes, and the sets with the addresses of pods in the mesh.
//!
//! The rule and the sets are put in place at the start and looked after at every verify interval. A pod's addresses are
//! entered once ztunnel has acknowledged it, and leave before its rules do. A node whose host side cannot be had still
//! gets its pods enrolled: what fails then is the probes of those pods, and the agent says that it is not ready.

use super::pods::{Doing, Entry, Retry};
use super::{Phase, State, Task};
use crate::error::Result;
use crate::metrics;
use crate::node::event::Work;
use crate::sys::netns::Netns;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between the first tries to put the host's side in place.
const RETRY: Duration = Duration::from_secs(2);
/// So many of them.
const TRIES: u32 = 10;
/// Between tries after those, and between looks where verification is off.
const PAUSE: Duration = Duration::from_secs(30);
/// Its name in readiness.
const CONDITION: &str = "host rules";

/// How the host's side stands.
#[derive(Debug, Default)]
pub(super) struct HostSide {
    /// When it is looked at again; `None` while that happens, and where there is nothing to look at.
    pub at: Option<Instant>,
    /// It was right once.
    done: bool,
    failures: u32,
}

/// How a pod stands with the probe sets.
#[derive(Debug, Default)]
pub(super) struct Entered {
    /// The addresses that were looked at when it was last entered.
    of: Option<Vec<IpAddr>>,
    /// The sets may have something of it.
    pub maybe: bool,
    retry: Retry,
}

impl Entered {
    /// The addresses that were looked at when it was last entered, if it is.
    pub(super) fn of(&self) -> Option<&[IpAddr]> {
        self.of.as_deref()
    }

    /// It is to be entered anew: other addresses may be right for another sandbox.
    pub(super) fn outdated(&mut self) {
        self.of = None;
        self.retry.reset();
    }
}

impl State {
    /// Starts to look at the host's side if that is due.
    pub(super) fn look_at_host(&mut self) {
        if self.is_stopping() || self.host.at.is_none_or(|at| at > self.now) {
            return;
        }
        self.host.at = None;
        let work = Work::Host { prune: self.knows_every_address() };
        let task = self.start(work);
        self.tasks.insert(task, Task::Host);
    }

    /// Entries that are not known to belong to a pod are only thrown out when no pod lacks its own: they may be its.
    fn knows_every_address(&self) -> bool {
        let knows = |entry: &Entry| !entry.recalled && (entry.entered.of.is_some() || self.goal(entry).is_none());
        self.phase == Phase::Running && self.pods.values().all(knows)
    }

    /// Why the agent is not ready before the first look at the host's side is over.
    pub(super) fn host_not_ready(&self) -> Option<String> {
        let waiting = self.config.host_side && !self.host.done && self.host.failures == 0;
        waiting.then(|| format!("{CONDITION}: not in place yet"))
    }

    pub(super) fn host_done(&mut self, result: Result<Vec<String>>) {
        let interval = self.config.verify_interval;
        match result {
            Ok(differences) => {
                if !self.host.done {
                    log::info!("the host's rules and probe sets are in place");
                } else if !differences.is_empty() {
                    metrics::VERIFICATION_REPAIRS.inc(["host"]);
                    log::warn!("the host's side was not as it should be; repaired: {}", differences.join("; "));
                } else if self.host.failures > 0 {
                    log::warn!(failures = self.host.failures; "the host's side is in place again");
                }
                self.host.done = true;
                self.host.failures = 0;
                self.conditions.remove(CONDITION);
                self.host.at = (!interval.is_zero()).then(|| self.now + interval);
            }
            Err(e) => {
                self.host.failures = self.host.failures.saturating_add(1);
                let pause = if self.host.failures < TRIES { RETRY } else { PAUSE };
                self.host.at = Some(self.now + pause);
                let problem = e.to_string();
                if self.conditions.get(CONDITION) != Some(&problem) {
                    log::error!(
                        "the host's side cannot be put in place, probes of pods in the mesh will fail; trying again: {problem}"
                    );
                }
                self.conditions.insert(CONDITION, problem);
            }
        }
    }

    /// Enters a pod's addresses unless that is done; returns whether it has begun. A failure holds nothing up: it is
    /// tried again in the background.
    pub(super) fn enter(&mut self, entry: &mut Entry, netns: &Arc<Netns>) -> bool {
        let ips = entry.ips();
        if !self.config.host_side || ips.is_empty() || entry.entered.of.as_ref() == Some(&ips) {
            return false;
        }
        if let Some(at) = entry.entered.retry.blocked(self.now) {
            entry.wake_at(at);
            return false;
        }
        // The address a plugin gives with its request is the sandbox's. Others may be out of date, and another pod's.
        let told = entry.place.as_ref().map(|place| &place.told).filter(|told| !told.is_empty());
        let told = told.filter(|_| !entry.adds.is_empty());
        let (addresses, inside) = match told {
            Some(told) => (told.clone(), None),
            None => (ips.clone(), Some(Arc::clone(netns))),
        };
        let alone = !std::mem::replace(&mut entry.entered.maybe, true);
        let work = Work::Enter { uid: entry.uid.clone(), addresses, inside, alone };
        entry.task = Some((self.start(work), Doing::Entering(ips)));
        true
    }

    pub(super) fn entered(&mut self, entry: &mut Entry, ips: Vec<IpAddr>, result: Result<()>) {
        match result {
            Ok(()) => {
                entry.entered.of = Some(ips);
                entry.entered.retry.reset();
            }
            Err(e) => {
                entry.entered.retry.failed(self.now, (self.jitter)());
                if entry.entered.retry.failures == 1 {
                    log::warn!(uid = entry.uid.as_str(), pod:% = entry.name;
                        "its addresses cannot be entered into the probe set, its probes will fail; trying again: {e}");
                }
            }
        }
    }

    /// Takes a pod's addresses out if there may be any; returns whether that has begun.
    pub(super) fn leave(&mut self, entry: &mut Entry) -> bool {
        if !self.config.host_side || !entry.entered.maybe {
            return false;
        }
        entry.task = Some((self.start(Work::Leave(entry.uid.clone())), Doing::Leaving));
        true
    }

    /// What stays after a failure is thrown out with the next look at the host's side.
    pub(super) fn left(&mut self, entry: &mut Entry, result: Result<()>) {
        entry.entered = Entered::default();
        if let Err(e) = result {
            log::warn!(uid = entry.uid.as_str(), pod:% = entry.name;
                "its addresses stay in the probe set for now: {e}");
        }
    }
}
