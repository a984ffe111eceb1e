//! Looking for the namespaces of pods that run but did not come through the plugin, or came through an earlier agent.

use super::seeking::refusal;
use super::{Node, State};
use crate::error::Result;
use crate::node::event::{Sought, TaskId, Walked, Work};
use crate::node::records::Record;
use crate::node::redirection::Redirection;
use crate::node::tasks::Task;
use crate::pod::types::PodName;
use std::collections::BTreeSet;

impl Node {
    /// Says that pods of an earlier run keep their IPv6 rules though IPv6 is off now. Nothing of IPv6 is touched then: to
    /// take these rules out would let running pods talk past the mesh.
    pub(super) fn tell_ipv6_stays(&self, records: &[Record]) {
        let with_rules = records.iter().filter(|record| record.enrolled && record.settings.ipv6).count();
        if with_rules > 0 && !self.config.settings.ipv6 {
            log::info!(
                pods = with_rules;
                "IPv6 is off (--ambient-ipv6): pods in the mesh that have IPv6 rules keep them until they are made anew"
            );
        }
    }
}

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
            let recalled = pod.sandbox().is_recalled() && !self.node.has_ended(pod);
            let wanted = recalled || (enabled && self.node.goal(pod).is_some());
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
        // Who is known claims before who is not.
        sought.sort_by_key(|pod: &Sought| self.pods.get(&pod.uid).is_none_or(|pod| pod.object().is_none()));
        let claimed: BTreeSet<_> = self.pods.claimed().collect();
        Some(self.node.start_task(Work::Walk(sought, claimed), Task::Walk(generations)))
    }

    /// A walk is over. What was found of a pod that has got another sandbox meanwhile does not count.
    pub(super) fn walked(&mut self, sought: &[(String, u64)], walked: Result<Walked>) {
        let (Walked { mut found, mut refused, bypassed }, failure) = match walked {
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
                    None => {
                        self.node.not_found(pod, failure.clone(), &refused);
                        // Peers would send HBONE to a pod where nobody takes it.
                        if bypassed.contains(uid) {
                            self.node.publish(pod, None);
                        }
                    }
                }
            }
            self.advance(uid);
        }
    }
}
