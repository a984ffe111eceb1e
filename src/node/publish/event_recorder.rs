//! Events on pods (core/v1): what is wrong with a pod in the mesh, where people look for it.
//!
//! They are for people, and everything they say is in the log and in the status as well: they are limited in number,
//! dropped when the API server does not take them, and turned off when it does not let us write them.

use crate::error::Kind;
use crate::kube::api::NewEvent;
use crate::kube::client::{Client, Patience};
use crate::pod::types::PodName;
use crate::sys::{clock, thread};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// What waits to be written; more is dropped.
const WAITING: usize = 256;
/// Between two Events on one pod for the same reason.
const PER_POD: Duration = Duration::from_secs(60);
/// Events at once, and the time after which there may be one more.
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(10);
const WRITE: Patience = Patience::once(Duration::from_secs(5));

/// What there is to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEvent {
    /// The pod's uid.
    pub uid: String,
    /// Its name.
    pub pod: PodName,
    /// Something is wrong (`Warning`), or was and is not any more (`Normal`).
    pub warning: bool,
    /// One word in CamelCase.
    pub reason: &'static str,
    /// Which part of us says it.
    pub component: &'static str,
    /// The rest.
    pub message: String,
}

/// The running recorder; it ends after this value is dropped.
#[derive(Debug)]
pub struct EventRecorder {
    pod_events: SyncSender<PodEvent>,
    client: Client,
}

impl EventRecorder {
    /// Starts the thread that writes Events in the name of this node.
    pub fn start(client: &Client, node: &str) -> crate::error::Result<Self> {
        let (pod_events, receiver) = sync_channel(WAITING);
        let client = client.sibling();
        let (writer, node) = (client.clone(), node.to_owned());
        thread::spawn("events", move || run(&writer, &node, &receiver))?;
        Ok(EventRecorder { pod_events, client })
    }

    /// Takes it; never blocks.
    pub fn announce(&self, pod_event: PodEvent) {
        if self.pod_events.try_send(pod_event).is_err() {
            log::debug!("too many Events wait to be written; one is left out");
        }
    }
}

impl Drop for EventRecorder {
    fn drop(&mut self) {
        self.client.close();
    }
}

fn run(client: &Client, node: &str, pod_events: &Receiver<PodEvent>) {
    let mut limit = Limit::new(clock::now());
    while let Ok(PodEvent { uid, pod, warning, reason, component, message }) = pod_events.recv() {
        if !limit.allows(&uid, reason, clock::now()) {
            log::debug!(uid = uid, pod:% = pod; "no Event, there were too many: {message}");
            continue;
        }
        let event = NewEvent {
            pod: &pod,
            uid: &uid,
            warning,
            reason,
            message: &message,
            component,
            host: node,
            time: clock::wall(),
        };
        match client.create_event(&event, WRITE) {
            Ok(()) => {}
            Err(e) if e.kind() == Kind::Forbidden => {
                log::warn!("Events on pods are off: {e}; the chart grants them with repair.enabled only");
                return;
            }
            Err(e) => log::debug!(uid = uid, pod:% = pod; "an Event could not be written: {e}"),
        }
    }
}

/// How many Events there may be. Pure.
#[derive(Debug)]
struct Limit {
    left: u32,
    refilled: Instant,
    /// When there was one, by uid and reason; only those that still matter.
    last: BTreeMap<(String, &'static str), Instant>,
}

impl Limit {
    fn new(now: Instant) -> Self {
        Limit { left: BURST, refilled: now, last: BTreeMap::new() }
    }

    fn allows(&mut self, uid: &str, reason: &'static str, now: Instant) -> bool {
        while self.left < BURST && now.saturating_duration_since(self.refilled) >= REFILL {
            self.left += 1;
            self.refilled += REFILL;
        }
        if self.left == BURST {
            self.refilled = now;
        }
        self.last.retain(|_, at| now.saturating_duration_since(*at) < PER_POD);
        let key = (uid.to_owned(), reason);
        if self.left == 0 || self.last.contains_key(&key) {
            return false;
        }
        self.left -= 1;
        self.last.insert(key, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_limited_per_pod_and_in_all() {
        let begin = clock::now();
        let mut limit = Limit::new(begin);
        assert!(limit.allows("a", "R", begin) && !limit.allows("a", "R", begin) && limit.allows("b", "R", begin));
        assert!(limit.allows("a", "S", begin), "another reason");
        assert!(!limit.allows("a", "R", begin + PER_POD / 2) && limit.allows("a", "R", begin + PER_POD));
        let later = begin + Duration::from_secs(3600);
        let allowed = (0..100).filter(|n| limit.allows(&n.to_string(), "R", later)).count();
        assert_eq!(allowed, 25);
        assert!(!limit.allows("x", "R", later + REFILL / 2) && limit.allows("x", "R", later + REFILL));
        assert!(!limit.allows("y", "R", later + REFILL));
    }
}
