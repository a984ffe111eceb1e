//! What is done about broken pods, and when. Pure: pods, the time, and what came of orders go in; orders and what people
//! should know come out.
//!
//! A pod is dealt with once for each run of its container that failed. One that fails again although it was repaired is
//! repaired again, with pauses, and then deleted where that is allowed. Deletions are limited in number, so that a
//! misconfiguration cannot sweep a node.

use super::Options;
use super::case::{Case, Seen};
use super::deletions::Deletions;
use super::order::{End, Notice, Order, Remedy};
use crate::pod::types::Pod;
use std::collections::BTreeMap;
use std::time::Instant;

/// All broken pods of the node, and what was deleted lately.
#[derive(Debug)]
pub struct Controller {
    options: Options,
    /// Open cases by uid: a pod of the same name is another one.
    cases: BTreeMap<String, Case>,
    deletions: Deletions,
}

impl Controller {
    /// Without any pod. `None` where nothing would be done about broken ones.
    pub fn new(options: Options) -> Option<Self> {
        let on = options.repair || options.delete || options.label.is_some();
        on.then(|| Controller { options, cases: BTreeMap::new(), deletions: Deletions::default() })
    }

    /// A pod is new or different.
    pub fn observe(&mut self, pod: &Pod, now: Instant) {
        let Some(failure) = self.options.filter.failure(pod) else {
            if self.close(&pod.uid) && !pod.being_deleted {
                log::info!(uid = pod.uid.as_str(), pod:% = pod.name; "the pod is not broken any more");
            }
            return;
        };
        let seen = Seen {
            version: pod.failed_init.as_ref().map(|failed| failed.version.clone()).unwrap_or_default(),
            labelled: self.options.label.as_ref().is_some_and(|(key, _)| pod.labels.contains_key(key)),
            run: failure.run.clone(),
        };
        if let Some(case) = self.cases.get_mut(&pod.uid) {
            case.see(seen, self.options.delete, now);
            return;
        }
        log::info!(uid = pod.uid.as_str(), pod:% = pod.name, container = failure.container.as_str();
            "the pod started without traffic redirection: its container failed with exit code {}", failure.exit_code);
        let case = Case::new(&pod.uid, &pod.name, seen, self.options.first(), now);
        self.cases.insert(pod.uid.clone(), case);
    }

    /// The pod of this uid is gone.
    pub fn gone(&mut self, uid: &str) {
        self.close(uid);
    }

    /// Forgets a case, after what is under way; whether it was there and open.
    fn close(&mut self, uid: &str) -> bool {
        let Some(case) = self.cases.get_mut(uid) else { return false };
        let known = case.close();
        self.sweep(uid);
        known
    }

    fn sweep(&mut self, uid: &str) {
        if self.cases.get(uid).is_some_and(Case::is_over) {
            self.cases.remove(uid);
        }
    }

    /// When something is to be done.
    pub fn deadline(&self) -> Option<Instant> {
        self.cases.values().filter_map(Case::deadline).min()
    }

    /// What is to be done now.
    pub fn due(&mut self, now: Instant) -> Vec<Order> {
        let mut orders = Vec::new();
        for case in self.cases.values_mut().filter(|case| case.deadline().is_some_and(|at| at <= now)) {
            if case.remedy() == Remedy::Delete
                && let Err(until) = self.deletions.allow(now)
            {
                case.hold(until);
                continue;
            }
            orders.extend(case.order(self.options.label.as_ref()));
        }
        orders
    }

    /// An order has ended. Returns what people should know.
    pub fn settled(&mut self, uid: &str, end: End, now: Instant) -> Option<Notice> {
        let notice = self.cases.get_mut(uid)?.settle(end, self.options.delete, now);
        self.sweep(uid);
        notice
    }
}

impl Options {
    /// The first that is on.
    fn first(&self) -> Remedy {
        match (self.repair, self.delete) {
            (true, _) => Remedy::Repair,
            (false, true) => Remedy::Delete,
            (false, false) => Remedy::Label,
        }
    }
}

#[cfg(test)]
mod tests;
