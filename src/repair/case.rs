//! One broken pod, from the failure that shows it to its end.

use super::deletions::DELETIONS;
use super::order::{End, Notice, Order, Remedy};
use crate::logging::Repeat;
use crate::metrics;
use crate::pod::types::PodName;
use crate::sys::backoff::Backoff;
use std::time::{Duration, Instant};

/// Repairs of a pod before it is given up.
const TRIES: u32 = 4;
/// Shortest and longest pause between two tries of anything; doubled each time.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// A broken pod.
#[derive(Debug)]
pub(super) struct Case {
    uid: String,
    pod: PodName,
    seen: Seen,
    remedy: Remedy,
    next: Next,
    /// It is not broken any more, as far as we are told.
    over: bool,
    /// Each time that what was done did not help is a failure.
    pauses: Backoff,
    trouble: Repeat,
    /// It has waited for the next deletion that is allowed.
    held: bool,
}

/// How the pod was when it was seen last.
#[derive(Debug)]
pub(super) struct Seen {
    /// Its resourceVersion.
    pub(super) version: String,
    /// It carries the label.
    pub(super) labelled: bool,
    /// The run of its container that failed last.
    pub(super) run: String,
}

/// What happens next.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Nothing until it fails again.
    Nothing,
    /// Something is to be done at this time.
    Due(Instant),
    /// An order is under way; a deletion is for this version.
    UnderWay { deleting: Option<String> },
    /// It was to be deleted in this version and had changed: it is looked at again once it is known how it is now.
    Changed { from: String },
}

impl Case {
    /// A pod that has just been found to be broken: something is to be done at once.
    pub(super) fn new(uid: &str, pod: &PodName, seen: Seen, remedy: Remedy, now: Instant) -> Self {
        Case {
            uid: uid.to_owned(),
            pod: pod.clone(),
            seen,
            remedy,
            next: Next::Due(now),
            over: false,
            pauses: Backoff::new(PAUSE.0, PAUSE.1),
            trouble: Repeat::once(),
            held: false,
        }
    }

    /// It is still broken, and looks like this now. `delete`: it may be deleted in the end.
    pub(super) fn see(&mut self, seen: Seen, delete: bool, now: Instant) {
        self.over = false;
        let changed = matches!(&self.next, Next::Changed { from } if *from != seen.version);
        let failed_again = self.seen.run != seen.run;
        self.seen = seen;
        // What was done did not help; or what failed had begun before it was done.
        if failed_again && matches!(self.next, Next::Nothing | Next::Changed { .. }) {
            self.retry(delete, now);
        }
        if changed {
            self.next = Next::Due(now);
        }
    }

    /// It is not broken any more. Returns whether that is news.
    pub(super) fn close(&mut self) -> bool {
        !std::mem::replace(&mut self.over, true)
    }

    /// Nothing is left to do or to wait for.
    pub(super) fn is_over(&self) -> bool {
        self.over && !matches!(self.next, Next::UnderWay { .. })
    }

    /// When something is to be done.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.next {
            Next::Due(at) => Some(at),
            _ => None,
        }
    }

    /// What is to be done about it.
    pub(super) fn remedy(&self) -> Remedy {
        self.remedy
    }

    /// It must wait for the next deletion that is allowed.
    pub(super) fn hold(&mut self, until: Instant) {
        self.next = Next::Due(until);
        if !std::mem::replace(&mut self.held, true) {
            self.count("skip");
            log::warn!(uid = self.uid.as_str(), pod:% = self.pod;
                "not deleted yet: {DELETIONS} broken pods of this node were deleted within a minute");
        }
    }

    /// Gives the order that is due. `None`: there is nothing to do about it, it carries the label already. `label` is
    /// that label.
    pub(super) fn order(&mut self, label: Option<&(String, String)>) -> Option<Order> {
        let (uid, pod) = (self.uid.clone(), self.pod.clone());
        let mut deleting = None;
        let order = match self.remedy {
            Remedy::Repair => Order::Repair(uid),
            Remedy::Delete => {
                deleting = Some(self.seen.version.clone());
                Order::Delete { uid, pod, version: self.seen.version.clone() }
            }
            Remedy::Label => {
                let Some((key, value)) = label.cloned().filter(|_| !self.seen.labelled) else {
                    self.next = Next::Nothing;
                    self.count("skip");
                    return None;
                };
                Order::Label { uid, pod, key, value }
            }
        };
        self.next = Next::UnderWay { deleting };
        Some(order)
    }

    /// Its order has ended. Returns what people should know. `delete`: it may be deleted in the end.
    pub(super) fn settle(&mut self, end: End, delete: bool, now: Instant) -> Option<Notice> {
        let before = std::mem::replace(&mut self.next, Next::Nothing);
        match end {
            End::Done => {
                self.count("success");
                let done = self.remedy.done();
                let message = format!("pod detected as broken: it started without traffic redirection; {done}");
                log::info!(uid = self.uid.as_str(), pod:% = self.pod; "{message}");
                self.trouble.worked(now);
                Some(self.notice(self.remedy != Remedy::Repair, message))
            }
            End::Outdated => {
                self.count("skip");
                log::info!(uid = self.uid.as_str(), pod:% = self.pod; "not touched: it has changed meanwhile");
                if let Next::UnderWay { deleting: Some(from) } = before {
                    let known = from != self.seen.version;
                    self.next = if known { Next::Due(now) } else { Next::Changed { from } };
                }
                None
            }
            End::Failed(why) => {
                self.count("fail");
                let notice = self.fail(&why, now);
                self.retry(delete, now);
                notice
            }
            End::Hopeless(why) => {
                self.count("fail");
                let notice = self.fail(&why, now);
                if delete && self.remedy == Remedy::Repair {
                    self.remedy = Remedy::Delete;
                    self.next = Next::Due(now);
                }
                notice
            }
            End::Refused(why) => {
                self.count("skip");
                self.fail(&why, now)
            }
        }
    }

    /// Plans the next try, after a pause; of another kind where this one was tried often enough.
    fn retry(&mut self, delete: bool, now: Instant) {
        self.next = Next::Due(self.pauses.failed(now, 0.0));
        let tries = self.pauses.failures();
        if self.remedy == Remedy::Repair && tries >= TRIES && delete {
            log::warn!(pod:% = self.pod; "{tries} tries to repair it did not help; it is deleted");
            self.remedy = Remedy::Delete;
            self.next = Next::Due(now);
        }
    }

    /// Says what is wrong: once while it stays the same.
    fn fail(&mut self, why: &str, now: Instant) -> Option<Notice> {
        let message = format!("pod detected as broken, but failed to {}: {why}", self.remedy.infinitive());
        if self.trouble.failed(&message, now).is_none() {
            log::debug!(uid = self.uid.as_str(), pod:% = self.pod; "{message}");
            return None;
        }
        log::warn!(uid = self.uid.as_str(), pod:% = self.pod; "{message}");
        Some(self.notice(true, message))
    }

    fn notice(&self, warning: bool, message: String) -> Notice {
        Notice { pod: self.pod.clone(), warning, reason: self.remedy.reason(), message }
    }

    fn count(&self, result: &str) {
        metrics::REPAIRS.inc([self.remedy.label(), result]);
    }
}
