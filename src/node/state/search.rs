//! Looking for the namespaces of pods that run but did not come through the plugin, or came through an earlier agent.

use super::{Node, State, Task};
use crate::error::Result;
use crate::node::event::{TaskId, Walked, Work};
use crate::node::pod::Pod;
use crate::node::records::Record;
use crate::node::redirection::Redirection;
use crate::pod::types::PodName;
use std::collections::BTreeSet;
use std::time::Duration;

/// The longest pause between searches where verification is off.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl State {
    /// Takes over what an earlier run remembered of a sandbox.
    pub(super) fn recall(&mut self, record: Record) {
        let config = &self.node.config;
        let settings = if config.reconcile_on_startup { config.settings } else { record.settings };
        let name = PodName { namespace: record.namespace.clone(), name: record.name.clone() };
        self.pods.entry(&record.uid.clone(), &name).recall(record, settings);
    }

    /// At the start, everything an earlier run had enrolled is looked for at once.
    pub(super) fn seek_recalled(&mut self) {
        for pod in self.pods.iter_mut() {
            let enabled = pod.published() == Some(Redirection::Enabled);
            let wanted = pod.sandbox().is_recalled() || (enabled && self.node.goal(pod).is_some());
            if wanted && !pod.ips().is_empty() {
                pod.search().want();
            }
        }
    }

    /// Starts one walk for all that are looked for, unless one is under way.
    pub(super) fn start_search(&mut self) -> Option<TaskId> {
        let walking = |task: &Task| matches!(task, Task::Walk(_));
        if !self.node.synced || self.node.is_stopping() || self.node.tasks.values().any(walking) {
            return None;
        }
        let mut sought = Vec::new();
        let mut generations = Vec::new();
        for pod in self.pods.iter_mut() {
            if pod.search().begin() {
                generations.push((pod.uid().to_owned(), pod.sandbox().generation()));
                sought.push(pod.sought());
            }
        }
        if sought.is_empty() {
            return None;
        }
        let claimed: BTreeSet<_> = self.pods.claimed().collect();
        Some(self.node.start_task(Work::Walk(sought, claimed), Task::Walk(generations)))
    }

    /// A walk is over. What was found of a pod that has got another sandbox meanwhile does not count.
    pub(super) fn walked(&mut self, sought: &[(String, u64)], walked: Result<Walked>) {
        let (Walked { mut found, mut refused }, failure) = match walked {
            Ok(walked) => (walked, None),
            Err(e) => (Walked::default(), Some(format!("looking for its namespace failed: {e}"))),
        };
        for (uid, generation) in sought {
            let refused = refused.remove(uid).unwrap_or_default();
            let host = self.node.config.host;
            let netns = found.remove(uid).filter(|n| n.id() != host && self.pods.holder(n.id()).is_none());
            let Some(pod) = self.pods.get_mut(uid) else { continue };
            pod.search().over();
            if pod.sandbox().generation() == *generation && pod.held().is_none() {
                match netns {
                    Some(netns) => {
                        let level = if refused.is_empty() { log::Level::Info } else { log::Level::Warn };
                        log::log!(level, uid = uid.as_str(), pod:% = pod.name(); "running pod found{}", refusal(&refused));
                        let config = &self.node.config;
                        pod.found(netns, !config.reconcile_on_startup, config.settings);
                    }
                    None => self.node.not_found(pod, failure.clone(), &refused),
                }
            }
            self.advance(uid);
        }
    }
}

impl Node {
    /// The next step of a pod whose namespace is not known: it should be in the mesh (`wanted`), or something of ours
    /// is still in it.
    pub(super) fn seek(&mut self, pod: &mut Pod, wanted: bool) {
        let recalled = pod.sandbox().is_recalled();
        if self.is_stopping() || !(wanted || recalled) || pod.held().is_some() {
            return;
        }
        if pod.ips().is_empty() {
            if recalled && !wanted {
                self.give_up(pod);
            } else if pod.published().is_some() {
                pod.announce(format!("lost: {} knows no address of the pod yet", self.config.source));
            }
            return;
        }
        match pod.search().blocked(self.now) {
            Some(at) => pod.wake_at(at),
            None => pod.search().want(),
        }
    }

    fn not_found(&mut self, pod: &mut Pod, failure: Option<String>, refused: &[String]) {
        if pod.sandbox().is_recalled() && failure.is_none() && self.goal(pod).is_none() {
            self.give_up(pod);
            return;
        }
        let interval = self.config.verify_interval;
        let longest = if interval.is_zero() { LONGEST_PAUSE } else { interval };
        pod.search().failed(self.now, longest);
        if !pod.sandbox().is_torn_down() {
            let lost = || format!("lost: no running process of the pod has its address{}", refusal(refused));
            pod.announce(failure.unwrap_or_else(lost));
        }
    }

    /// The namespace an earlier run had put rules into is gone, and the pod is not wanted.
    fn give_up(&mut self, pod: &mut Pod) {
        pod.give_up();
        self.withdraw(pod);
    }
}

/// What was taken for a pod's and is none of its, if anything: told once, when the search has ended.
pub(super) fn refusal(refused: &[String]) -> String {
    if refused.is_empty() { String::new() } else { format!("; refused {}", refused.join("; and ")) }
}
