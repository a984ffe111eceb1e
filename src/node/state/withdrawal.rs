//! Taking a pod out: its addresses leave the probe sets, then rules, since a pod with rules and without a proxy is cut
//! off; then ztunnel, then the annotation, and last the namespace is let go.

use super::State;
use super::pods::{Doing, Entry};
use crate::error::Result;
use crate::node::event::{Action, Answer, Work};
use crate::node::memory::Record;

/// The namespace of a sandbox that the runtime tears down is not worth more tries than this.
const TRIES: u32 = 5;

impl State {
    /// The next step of a pod that should not be in the mesh, or whose sandbox is given up. Returns whether nothing is
    /// left to undo.
    pub(super) fn withdraw(&mut self, entry: &mut Entry) -> bool {
        if entry.task.is_some() {
            return false;
        }
        if self.leave(entry) {
            return false;
        }
        if let Some(rules) = &entry.rules {
            match entry.retry.blocked(self.now) {
                Some(at) => entry.wake_at(at),
                None => {
                    let work = Work::Remove(rules.netns.clone());
                    entry.task = Some((self.start(work), Doing::Removing));
                }
            }
            return false;
        }
        if self.sweep(entry) {
            return false;
        }
        self.ztunnels.withdraw(&entry.uid, &mut self.out);
        if entry.published.is_some() {
            self.publish(entry, None);
        }
        if entry.established {
            log::info!(uid = entry.uid.as_str(), pod:% = entry.name; "taken out of the mesh");
        }
        entry.netns = None;
        entry.established = false;
        entry.acknowledged = false;
        entry.verify_at = None;
        entry.trouble = None;
        if entry.object.is_none() {
            entry.place = None;
        }
        if self.note(entry) {
            return false;
        }
        self.answer_undone(entry);
        true
    }

    /// Brings what is on disk about a pod without rules up to date; returns whether that has begun. While it fails,
    /// nobody waits for it.
    fn note(&mut self, entry: &mut Entry) -> bool {
        let record = entry.record(false).filter(|record| !record.ips.is_empty());
        if entry.remembered == record {
            return false;
        }
        if let Some(at) = entry.retry.blocked(self.now) {
            entry.wake_at(at);
            return false;
        }
        entry.task = Some((self.start(Work::Note(entry.uid.clone(), record)), Doing::Noting));
        true
    }

    pub(super) fn noted(&mut self, entry: &mut Entry, result: Result<Option<Record>>) {
        match result {
            Ok(record) => {
                entry.remembered = record;
                entry.retry.reset();
            }
            Err(_) => entry.retry.failed(self.now, (self.jitter)()),
        }
    }

    /// Answers those who wait for everything to be undone.
    pub(super) fn answer_undone(&mut self, entry: &mut Entry) {
        let ending = std::mem::take(&mut entry.ending).into_iter();
        self.out.extend(ending.map(|ending| Action::Reply(ending.reply, ending.answer)));
        let checks = std::mem::take(&mut entry.checks).into_iter();
        self.out.extend(checks.map(|reply| Action::Reply(reply, Answer::Done)));
    }

    /// Cleans a namespace of an older sandbox, if there is one; returns whether there was something to do.
    pub(super) fn sweep(&mut self, entry: &mut Entry) -> bool {
        let Some(netns) = entry.leftovers.last().cloned() else { return false };
        match entry.retry.blocked(self.now) {
            Some(at) => entry.wake_at(at),
            None => {
                let work = Work::Remove(netns.clone());
                entry.task = Some((self.start(work), Doing::Sweeping(netns.id())));
            }
        }
        true
    }

    pub(super) fn removed(&mut self, entry: &mut Entry, doing: &Doing, result: Result<()>) {
        if let Err(e) = result {
            entry.retry.failed(self.now, (self.jitter)());
            entry.report(format!("the traffic rules could not be taken out: {e}"));
            let given_up = entry.torn_down || matches!(doing, Doing::Sweeping(_));
            if !(given_up && entry.retry.failures >= TRIES) {
                return;
            }
        }
        entry.retry.reset();
        match doing {
            Doing::Sweeping(id) => entry.leftovers.retain(|leftover| leftover.id() != *id),
            _ => entry.rules = None,
        }
    }
}
