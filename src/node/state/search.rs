//! Looking for the namespaces of pods that run but did not come through the plugin, or came through an earlier agent.

use super::pods::{Entry, Place, Rules};
use super::{State, Task};
use crate::error::Result;
use crate::node::event::{Redirection, TaskId, Walked, Work};
use crate::node::memory::Record;
use crate::pod::types::PodName;
use crate::sys::netns::Netns;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Between the first searches for a pod; doubled each time up to the verify interval.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause where verification is off.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl State {
    /// Takes over what an earlier run remembered of a sandbox.
    pub(super) fn recall(&mut self, record: Record) {
        let settings = if self.config.reconcile_on_startup { self.config.settings } else { record.settings };
        let name = PodName { namespace: record.namespace.clone(), name: record.name.clone() };
        let entry = self.entry(&record.uid, &name);
        entry.recalled = record.enrolled;
        entry.entered.maybe = record.enrolled;
        entry.place = Some(Place {
            container_id: record.container_id.clone(),
            path: record.path.clone(),
            alias: record.alias.clone(),
            ips: record.ips.clone(),
            told: Vec::new(),
            settings,
        });
        entry.remembered = Some(record);
    }

    /// At the start, everything an earlier run had enrolled is looked for at once.
    pub(super) fn seek_recalled(&mut self) {
        let wanted = |state: &State, entry: &Entry| {
            entry.recalled || (entry.published == Some(Redirection::Enabled) && state.goal(entry).is_some())
        };
        let uids: Vec<String> =
            self.pods.iter().filter(|(_, e)| wanted(self, e) && !e.ips().is_empty()).map(|(u, _)| u.clone()).collect();
        for uid in uids {
            if let Some(entry) = self.pods.get_mut(&uid) {
                entry.sought = true;
            }
        }
    }

    /// The next step of a pod whose namespace is not known: it should be in the mesh (`wanted`), or something of ours
    /// is still in it.
    pub(super) fn seek(&mut self, entry: &mut Entry, wanted: bool) {
        if self.is_stopping() || !(wanted || entry.recalled) || entry.netns.is_some() {
            return;
        }
        if entry.ips().is_empty() {
            if entry.recalled && !wanted {
                self.give_up(entry);
            } else if entry.published.is_some() {
                entry.pod_event(format!("lost: {} knows no address of the pod yet", self.config.source));
            }
            return;
        }
        match entry.seek_at.filter(|at| *at > self.now) {
            Some(at) => entry.wake_at(at),
            None => entry.sought = !entry.searching,
        }
    }

    /// Starts one walk for all that are looked for, unless one is under way.
    pub(super) fn start_search(&mut self) -> Option<TaskId> {
        if !self.synced || self.is_stopping() || self.tasks.values().any(|task| matches!(task, Task::Walk(_))) {
            return None;
        }
        let mut sought = Vec::new();
        let mut generations = Vec::new();
        for (uid, entry) in self.pods.iter_mut().filter(|(_, entry)| entry.sought) {
            entry.sought = false;
            entry.searching = true;
            generations.push((uid.clone(), entry.generation));
            sought.push(entry.sought());
        }
        if sought.is_empty() {
            return None;
        }
        let claimed: BTreeSet<_> =
            self.pods.values().filter_map(|entry| entry.netns.as_ref()).map(|netns| netns.id()).collect();
        let task = self.start(Work::Walk(sought, claimed));
        self.tasks.insert(task, Task::Walk(generations));
        Some(task)
    }

    pub(super) fn walked(&mut self, sought: &[(String, u64)], walked: Result<Walked>) {
        let (Walked { mut found, mut refused }, failure) = match walked {
            Ok(walked) => (walked, None),
            Err(e) => (Walked::default(), Some(format!("looking for its namespace failed: {e}"))),
        };
        for (uid, generation) in sought {
            let refused = refused.remove(uid).unwrap_or_default();
            let netns = found.remove(uid).filter(|n| n.id() != self.config.host && self.holder(n.id()).is_none());
            let Some(mut entry) = self.pods.remove(uid) else { continue };
            entry.searching = false;
            if entry.generation == *generation && entry.netns.is_none() {
                match netns {
                    Some(netns) => self.found(&mut entry, netns, &refused),
                    None => self.not_found(&mut entry, failure.clone(), &refused),
                }
            }
            self.pods.insert(uid.clone(), entry);
            self.advance(uid);
        }
    }

    fn found(&mut self, entry: &mut Entry, netns: Arc<Netns>, refused: &[String]) {
        let level = if refused.is_empty() { log::Level::Info } else { log::Level::Warn };
        log::log!(level, uid = entry.uid.as_str(), pod:% = entry.name; "running pod found{}", refusal(refused));
        entry.searches = 0;
        entry.seek_at = None;
        entry.retry.reset();
        entry.torn_down = false;
        if entry.recalled {
            entry.rules = Some(Rules { netns: Arc::clone(&netns), settings: None });
            entry.established = true;
            entry.recalled = false;
            // One with a record keeps what that says.
            entry.unrecognised = entry.remembered.is_none() && !self.config.reconcile_on_startup;
        }
        entry.place.get_or_insert_with(|| Place {
            container_id: String::new(),
            path: String::new(),
            alias: None,
            ips: Vec::new(),
            told: Vec::new(),
            settings: self.config.settings,
        });
        entry.netns = Some(netns);
    }

    fn not_found(&mut self, entry: &mut Entry, failure: Option<String>, refused: &[String]) {
        if entry.recalled && failure.is_none() && self.goal(entry).is_none() {
            self.give_up(entry);
            return;
        }
        let interval = self.config.verify_interval;
        let longest = if interval.is_zero() { LONGEST_PAUSE } else { interval };
        let pause = FIRST_PAUSE.saturating_mul(1 << entry.searches.min(8)).min(longest);
        entry.searches = entry.searches.saturating_add(1);
        entry.seek_at = Some(self.now + pause);
        if !entry.torn_down {
            let lost = || format!("lost: no running process of the pod has its address{}", refusal(refused));
            let why = failure.unwrap_or_else(lost);
            entry.pod_event(why);
        }
    }

    /// The namespace an earlier run had put rules into is gone, and the pod is not wanted.
    fn give_up(&mut self, entry: &mut Entry) {
        entry.recalled = false;
        entry.place = None;
        if entry.task.is_none() {
            self.withdraw(entry);
        }
    }
}

/// What was taken for a pod's and is none of its, if anything: told once, when the search has ended.
pub(super) fn refusal(refused: &[String]) -> String {
    if refused.is_empty() { String::new() } else { format!("; refused {}", refused.join("; and ")) }
}
