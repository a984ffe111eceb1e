//! The host's side: the rule that marks the kubelet's probes, and the sets with the addresses of pods in the mesh.
//!
//! The rule and the sets are put in place at the start and looked after at every verify interval. A pod's addresses are
//! entered once its rules are in place, whether there is a ztunnel or not, and leave before its rules do; those of an
//! ADD once ztunnel has acknowledged it. What others have left there is thrown out as soon as it is known which pods there are. A node whose host side cannot be had still
//! gets its pods enrolled: what fails then is the probes of those pods, and the agent says that it is not ready.

use super::{Node, Phase, State};
use crate::error::Result;
use crate::metrics;
use crate::node::event::{HostLook, Keep, Work};
use crate::node::host_side::Before;
use crate::node::pod::{Job, Pod};
use crate::node::tasks::Task;
use crate::sys::netns::Netns;
use std::net::IpAddr;
use std::sync::Arc;

/// Its name in readiness.
const CONDITION: &str = "host rules";

impl State {
    /// Starts to look at the host's side if that is due.
    pub(super) fn look_at_host(&mut self) {
        if self.node.is_stopping() || self.node.host.due().is_none_or(|at| at > self.node.now) {
            return;
        }
        self.node.host.look();
        let work = Work::Host { keep: self.to_keep() };
        self.node.start_task(work, Task::Host);
    }

    /// What is not thrown out although nobody has entered it: what belongs to a pod that is to be entered. `None` while
    /// anything may: it is not known which pods there are, or an address of one that was in the mesh.
    fn to_keep(&self) -> Option<Keep> {
        if self.node.phase != Phase::Running {
            return None;
        }
        let mut keep = Keep::default();
        for pod in self.pods.iter().filter(|pod| pod.entered().is_none()) {
            if self.node.goal(pod).is_none() && !self.node.is_unread(pod) {
                continue;
            }
            let ips = pod.ips();
            if ips.is_empty() && (pod.sandbox().is_recalled() || pod.published().is_some()) {
                return None;
            }
            keep.uids.insert(pod.uid().to_owned());
            keep.addresses.extend(ips);
        }
        Some(keep)
    }
}

impl Node {
    /// Why the agent is not ready before the first look at the host's side is over.
    pub(super) fn host_not_ready(&self) -> Option<String> {
        let waiting = self.config.host_side && self.host.is_new();
        waiting.then(|| format!("{CONDITION}: not in place yet"))
    }

    /// The host's side was looked at, and put right where that was needed.
    pub(super) fn host_done(&mut self, result: Result<HostLook>) {
        match result {
            Ok(HostLook { differences, probers }) => {
                match self.host.right(self.now, self.config.verify_interval) {
                    Before::Never => log::info!("the host's rules and probe sets are in place"),
                    _ if !differences.is_empty() => {
                        metrics::VERIFICATION_REPAIRS.inc(["host"]);
                        log::warn!("the host's side was not as it should be; repaired: {}", differences.join("; "));
                    }
                    Before::Failed(failures) => log::warn!(failures = failures; "the host's side is in place again"),
                    Before::Right => {}
                }
                self.host.tell_by(probers);
                self.condition(CONDITION, None);
            }
            Err(e) => {
                self.host.failed(self.now);
                let problem = e.to_string();
                if self.conditions.get(CONDITION) != Some(&problem) {
                    log::error!(
                        "the host's side cannot be put in place, probes of pods in the mesh will fail; trying again: {problem}"
                    );
                }
                self.condition(CONDITION, Some(problem));
            }
        }
    }

    /// Enters a pod's addresses unless that is done; returns whether it has begun. A failure holds nothing up: it is
    /// tried again in the background.
    pub(super) fn enter(&mut self, pod: &mut Pod, netns: &Arc<Netns>) -> bool {
        let ips = pod.addresses();
        if !self.config.host_side || ips.is_empty() || pod.entered() == Some(&ips) {
            return false;
        }
        if let Some(at) = pod.probes().blocked(self.now) {
            pod.wake_at(at);
            return false;
        }
        // What a plugin has just told is the sandbox's. Others may be out of date, and another pod's.
        let told =
            pod.observed_ips().is_empty() && pod.sandbox().location().is_some_and(|place| !place.told.is_empty());
        let inside = (!told || !pod.waits().has_adds()).then(|| Arc::clone(netns));
        let addresses = ips.clone();
        let alone = pod.probes().entering();
        let task = self.start(Work::Enter { uid: pod.uid().to_owned(), addresses, inside, alone });
        pod.begin(task, Job::Entering(ips));
        true
    }

    /// A pod's addresses were entered, or not.
    pub(super) fn entered(&mut self, pod: &mut Pod, ips: Vec<IpAddr>, result: Result<()>) {
        match result {
            Ok(()) => pod.probes().done(ips),
            Err(e) => {
                if pod.probes().failed(self.now, (self.jitter)()) {
                    log::warn!(uid = pod.uid(), pod:% = pod.name();
                        "its addresses cannot be entered into the probe set, its probes will fail; trying again: {e}");
                }
            }
        }
    }

    /// Takes a pod's addresses out if there may be any; returns whether that has begun.
    pub(super) fn leave(&mut self, pod: &mut Pod) -> bool {
        if !self.config.host_side || !pod.probes().may_have() {
            return false;
        }
        let task = self.start(Work::Leave(pod.uid().to_owned()));
        pod.begin(task, Job::Leaving);
        true
    }

    /// What stays after a failure is thrown out with the next look at the host's side.
    pub(super) fn left(&mut self, pod: &mut Pod, result: Result<()>) {
        pod.probes().left();
        if let Err(e) = result {
            log::warn!(uid = pod.uid(), pod:% = pod.name(); "its addresses stay in the probe set for now: {e}");
        }
    }
}
