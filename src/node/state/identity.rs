//! Is the namespace that was enrolled still the one its pod lives in?
//!
//! A sandbox can be replaced behind our back, under the same pod. Once an interval one walk over `/proc` compares what
//! is held with where the processes are. Only processes that are all elsewhere say something: a pod may have none yet,
//! and some runtimes keep a few outside.

use super::{Node, Phase, State};
use crate::error::Result;
use crate::metrics;
use crate::node::event::Work;
use crate::node::pod::Pod;
use crate::node::tasks::Task;
use crate::sys::netns::Netns;
use std::collections::BTreeMap;
use std::sync::Arc;

impl State {
    /// Starts a comparison if that is due.
    pub(super) fn compare(&mut self) {
        let (interval, now) = (self.node.config.verify_interval, self.node.now);
        if interval.is_zero() || self.node.phase != Phase::Running {
            return;
        }
        let at = *self.compare_at.get_or_insert(now + interval);
        if at > now {
            return;
        }
        self.compare_at = Some(now + interval);
        if self.node.tasks.values().any(|task| matches!(task, Task::Compare(_))) {
            return;
        }
        let mut held = Vec::new();
        let mut generations = Vec::new();
        for pod in self.pods.iter() {
            if let Some(netns) = pod.sandbox().netns() {
                held.push((pod.sought(), netns.id()));
                generations.push((pod.uid().to_owned(), pod.sandbox().generation()));
            }
        }
        if !held.is_empty() {
            self.node.start_task(Work::Compare(held), Task::Compare(generations));
        }
    }

    /// `moved` are the pods whose processes are all elsewhere, with the namespace that proved to be the pod's.
    pub(super) fn compared(&mut self, asked: &[(String, u64)], moved: Result<BTreeMap<String, Option<Arc<Netns>>>>) {
        let mut moved = match moved {
            Ok(moved) => moved,
            Err(e) => {
                log::warn!("the namespaces of the pods' processes cannot be looked at: {e}");
                return;
            }
        };
        for (uid, generation) in asked {
            let found = moved.remove(uid);
            let free = |netns: &Arc<Netns>| self.pods.holder(netns.id()).is_none();
            let found = found.map(|netns| netns.filter(free));
            let Some(pod) = self.pods.get_mut(uid) else { continue };
            if pod.sandbox().generation() == *generation && pod.held().is_some() {
                match found {
                    None => {
                        pod.held_mut().map(|held| held.stray(false));
                    }
                    Some(Some(netns)) => {
                        metrics::VERIFICATION_REPAIRS.inc(["netns"]);
                        pod.warn(
                            "its processes live in another network namespace than the one that was enrolled".to_owned(),
                        );
                        pod.moved(netns);
                    }
                    Some(None) => self.node.stray(pod),
                }
            }
            self.advance(uid);
        }
    }
}

impl Node {
    fn stray(&self, pod: &mut Pod) {
        if pod.held_mut().is_some_and(|held| held.stray(true)) {
            let text = "lost: its processes are in another network namespace, which has none of its addresses";
            self.announce(pod, text.to_owned());
        }
    }
}
