//! Taking a pod out: its addresses leave the probe sets, then ztunnel and the annotation, then rules, and last the
//! namespace is let go. ztunnel comes before the rules: while these translate addresses, it can still end the connections
//! that it carries, so that nobody waits for a peer that is gone. New connections are refused until the rules are out.
//! Rules are only taken out of a pod that leaves the mesh, or whose ADD has failed. Those of a pod that has ended go with
//! its namespace.

use super::Node;
use crate::error::Result;
use crate::node::event::Work;
use crate::node::pod::{Job, Pod, Rules};
use crate::node::records::Record;
use crate::sys::netns::{Netns, NetnsId};
use std::sync::Arc;
use std::time::Duration;

/// The namespace of a sandbox that the runtime tears down is not worth more tries than this.
const TRIES: u32 = 5;

/// The longest wait for a ztunnel's word that it has let go of a pod, before the rules go all the same: the pod is cut off
/// meanwhile.
const LET_GO: Duration = Duration::from_secs(1);

impl Node {
    /// The next step of a pod that should not be in the mesh, or whose sandbox is given up. Returns whether nothing is
    /// left to undo.
    pub(super) fn withdraw(&mut self, pod: &mut Pod) -> bool {
        if pod.job().is_some() || self.leave(pod) {
            return false;
        }
        self.ztunnels.withdraw(pod.uid(), &mut self.out);
        if pod.published().is_some() {
            self.publish(pod, None);
        }
        if let Some(netns) = pod.held().filter(|held| *held.rules() != Rules::None).map(|held| held.netns().clone()) {
            if !self.waits_for_end(pod) {
                self.clean(pod, netns);
            }
            return false;
        }
        if self.sweep(pod) {
            return false;
        }
        if pod.undone() {
            let why = if self.has_ended(pod) { ": it has ended, and its rules go with its namespace" } else { "" };
            log::info!(uid = pod.uid(), pod:% = pod.name(); "taken out of the mesh{why}");
        }
        if self.note(pod) {
            return false;
        }
        pod.waiting().undone(&mut self.out);
        true
    }

    /// A ztunnel that had acknowledged the pod is still ending the pod's connections.
    fn waits_for_end(&mut self, pod: &mut Pod) -> bool {
        let now = self.now;
        let Some(since) = pod.held_mut().and_then(|held| held.leaves(now)) else { return false };
        let until = since + LET_GO;
        let waits = until > now && !self.ztunnels.have_let_go(pod.uid());
        if waits {
            pod.wake_at(until);
        }
        waits
    }

    /// Cleans a namespace of an older sandbox, if there is one; returns whether there was something to do.
    pub(super) fn sweep(&mut self, pod: &mut Pod) -> bool {
        let Some(netns) = pod.sandbox().leftover().cloned() else { return false };
        self.clean(pod, netns);
        true
    }

    fn clean(&mut self, pod: &mut Pod, netns: Arc<Netns>) {
        if pod.may_try(self.now) {
            let id = netns.id();
            let task = self.start(Work::Remove(netns));
            pod.begin(task, Job::Removing(id));
        }
    }

    /// Rules were taken out of a namespace, or not.
    pub(super) fn removed(&mut self, pod: &mut Pod, netns: NetnsId, result: Result<()>) {
        if let Err(e) = result {
            let failures = pod.not_cleaned(self.now, (self.jitter)());
            pod.warn(format!("the traffic rules could not be taken out: {e}"));
            let held = pod.held().is_some_and(|held| held.netns().id() == netns);
            if held || failures < TRIES {
                return;
            }
        }
        pod.cleaned(netns);
    }

    /// Brings what is on disk about a pod without rules up to date; returns whether that has begun. While it fails,
    /// nobody waits for it.
    fn note(&mut self, pod: &mut Pod) -> bool {
        let record = pod.to_record(false).filter(|record| !record.ips.is_empty());
        if pod.recorded() == record.as_ref() || !pod.may_try(self.now) {
            return false;
        }
        let netns = pod.sandbox().unmarked().filter(|_| record.is_some()).cloned();
        let task = self.start(Work::Note(pod.uid().to_owned(), record, netns));
        pod.begin(task, Job::Recording);
        true
    }

    /// It was written down or forgotten, or not.
    pub(super) fn noted(&mut self, pod: &mut Pod, result: Result<Option<Record>>) {
        match result {
            Ok(record) => {
                pod.recorded_as(record);
                pod.succeeded();
            }
            Err(_) => pod.failed(self.now, (self.jitter)()),
        }
    }
}
