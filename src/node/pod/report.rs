//! What people are told of a pod: in the log, in Events, and in the status.

use crate::pod::types::PodName;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// How a pod stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PodState {
    /// It is not in the mesh, as decided.
    None,
    /// Should be in the mesh; has no sandbox that we know of.
    Waiting,
    /// Rules are being put in place.
    Applying,
    /// Rules are in place, ztunnel has not acknowledged.
    Pending,
    /// In the mesh.
    Enrolled,
    /// Being taken out.
    Removing,
    /// Should be in the mesh, and is not.
    Lost,
}

/// What was told last.
#[derive(Debug, Default)]
pub(in crate::node) struct Report {
    /// What is wrong, as last logged.
    trouble: Option<String>,
    /// People who look at the pod are to be told of the trouble.
    event_due: bool,
    /// How the pod stands, and since when.
    stands: Option<(PodState, Instant)>,
}

impl Report {
    /// What is wrong.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Says what is wrong: loudly once, quietly as often as it repeats.
    pub fn log(&mut self, uid: &str, name: &PodName, trouble: String) {
        if self.trouble.as_ref() == Some(&trouble) {
            log::debug!(uid = uid, pod:% = name; "{trouble}");
        } else {
            log::warn!(uid = uid, pod:% = name; "{trouble}");
            self.trouble = Some(trouble);
        }
    }

    /// Says what is wrong, also by an Event when it is new.
    pub fn announce(&mut self, uid: &str, name: &PodName, trouble: String) {
        self.event_due |= self.trouble.as_ref() != Some(&trouble);
        self.log(uid, name, trouble);
    }

    /// The text of an Event that is due; it then counts as written.
    pub fn take_event(&mut self) -> Option<String> {
        std::mem::take(&mut self.event_due).then(|| self.trouble.clone()).flatten()
    }

    /// Nothing is wrong any more; returns what was.
    pub fn over(&mut self) -> Option<String> {
        self.trouble.take()
    }

    /// Notes how the pod stands now.
    pub fn stands(&mut self, state: PodState, now: Instant) {
        if self.stands.is_none_or(|(before, _)| before != state) {
            self.stands = Some((state, now));
        }
    }

    /// The time for which it has stood as it does.
    pub fn age(&self, now: Instant) -> Duration {
        self.stands.map_or(Duration::ZERO, |(_, since)| now.saturating_duration_since(since))
    }
}
