//! What people are told of a pod: in the log, in Events, and in the status.

use crate::pod::types::PodName;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Reason of Events on pods that are not, or not rightly, in the mesh.
pub(in crate::node) const FAILED: &str = "RedirectionFailed";
/// Reason of Events on pods in which somebody's rules see packets before ours do.
pub(in crate::node) const OVERTAKEN: &str = "RedirectionOvertaken";

/// Reason of Events on pods whose annotation cannot be written.
pub(in crate::node) const NOT_PUBLISHED: &str = "RedirectionNotPublished";

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
    /// What people who look at the pod are told by an Event if it is still so then, by its reason.
    due: BTreeMap<&'static str, (Instant, String)>,
    /// What the last Event of each reason said, while it is so.
    told: BTreeMap<&'static str, String>,
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

    /// Says what is wrong, also by an Event if it is still so at this time.
    pub fn announce(&mut self, uid: &str, name: &PodName, trouble: String, at: Instant) {
        self.tell(FAILED, trouble.clone(), at);
        self.log(uid, name, trouble);
    }

    /// An Event of this reason is due at this time, or when one of it is due already, unless it said so before.
    pub fn tell(&mut self, reason: &'static str, text: String, at: Instant) {
        if self.told.get(reason) == Some(&text) {
            self.due.remove(reason);
            return;
        }
        self.due.entry(reason).and_modify(|(_, due)| due.clone_from(&text)).or_insert((at, text));
    }

    /// What an Event of this reason says is over.
    pub fn tell_no_more(&mut self, reason: &'static str) {
        self.due.remove(reason);
        self.told.remove(reason);
    }

    /// When the next Event is due.
    pub fn next_event(&self) -> Option<Instant> {
        self.due.values().map(|(at, _)| *at).min()
    }

    /// Reason and text of an Event that is due; it then counts as written.
    pub fn take_event(&mut self, now: Instant) -> Option<(&'static str, String)> {
        let reason = self.due.iter().find(|(_, (at, _))| *at <= now).map(|(reason, _)| *reason)?;
        let (_, text) = self.due.remove(reason)?;
        self.told.insert(reason, text.clone());
        Some((reason, text))
    }

    /// Nothing is wrong any more; returns what was.
    pub fn over(&mut self) -> Option<String> {
        self.tell_no_more(FAILED);
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
