//! Is the namespace that was enrolled still the one its pod lives in?
//!
//! A sandbox can be replaced behind our back, under the same pod. Once an interval one walk over `/proc` compares what
//! is held with where the processes are. Only processes that are all elsewhere say something: a pod may have none yet,
//! and some runtimes keep a few outside.

use super::pods::Entry;
use super::{Phase, State, Task};
use crate::error::Result;
use crate::metrics;
use crate::node::event::Work;
use crate::sys::netns::Netns;
use std::collections::BTreeMap;
use std::sync::Arc;

impl State {
    /// Starts a comparison if that is due.
    pub(super) fn compare(&mut self) {
        let interval = self.config.verify_interval;
        if interval.is_zero() || self.phase != Phase::Running {
            return;
        }
        let at = *self.compare_at.get_or_insert(self.now + interval);
        if at > self.now {
            return;
        }
        self.compare_at = Some(self.now + interval);
        let held = self.pods.values().filter_map(|entry| Some((entry.sought(), entry.netns.as_ref()?.id())));
        let held: Vec<_> = held.collect();
        if held.is_empty() || self.tasks.values().any(|task| matches!(task, Task::Compare(_))) {
            return;
        }
        let generations = held.iter().filter_map(|(sought, _)| {
            let entry = self.pods.get(&sought.uid)?;
            Some((entry.uid.clone(), entry.generation))
        });
        let generations = generations.collect();
        let task = self.start(Work::Compare(held));
        self.tasks.insert(task, Task::Compare(generations));
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
            let Some(mut entry) = self.pods.remove(uid) else { continue };
            if entry.generation == *generation && entry.netns.is_some() {
                match moved.remove(uid) {
                    None => entry.strayed = false,
                    Some(Some(netns)) if self.holder(netns.id()).is_none() => self.moved(&mut entry, netns),
                    Some(_) => stray(&mut entry),
                }
            }
            self.pods.insert(uid.clone(), entry);
            self.advance(uid);
        }
    }

    fn moved(&mut self, entry: &mut Entry, netns: Arc<Netns>) {
        metrics::VERIFICATION_REPAIRS.inc(["netns"]);
        entry.report("its processes live in another network namespace than the one that was enrolled".to_owned());
        entry.strayed = false;
        entry.generation += 1;
        entry.established = false;
        entry.acknowledged = false;
        entry.verify_at = None;
        entry.entered.outdated();
        entry.retry.reset();
        if let Some(place) = &mut entry.place {
            // They lead to the old one.
            place.path.clear();
            place.container_id.clear();
        }
        entry.netns = Some(netns);
    }
}

fn stray(entry: &mut Entry) {
    if !std::mem::replace(&mut entry.strayed, true) {
        entry.pod_event(
            "lost: its processes are in another network namespace, which has none of its addresses".to_owned(),
        );
    }
}
