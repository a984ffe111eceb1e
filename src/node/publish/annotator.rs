//! Writing the redirection annotation of pods through the API server.
//!
//! A few threads, off the path of everything. What is to be written is kept per pod, and only the newest: a value that
//! cannot be written now is tried again with growing pauses until it is written, replaced, or the pod is gone.

use super::state_file::Change;
use crate::error::{Error, Kind, Result};
use crate::kube::api::PodPatch;
use crate::kube::client::{Client, Patience};
use crate::logging::Repeat;
use crate::node::event::Event;
use crate::node::redirection::{ANNOTATION, Redirection};
use crate::pod::types::PodName;
use crate::sys::backoff::Backoff;
use crate::sys::{clock, random, sync, thread};
use std::collections::BTreeMap;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Patches on the way at the same time.
const WRITERS: usize = 2;
/// Patience of one request; what fails is tried again from here.
const ASK: Patience = Patience::once(Duration::from_secs(10));
/// Shortest and longest pause between two tries for one pod.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// How long what is waiting at the end may still take.
const FAREWELL: Duration = Duration::from_millis(500);

/// The running writers. Dropped, they write what can be written at once, and end.
#[derive(Debug)]
pub struct Annotator {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    queue: Mutex<Queue>,
    /// Something is waiting, has been written, or it is over.
    wakeup: Condvar,
    inbox: Sender<Event>,
}

#[derive(Debug)]
struct Queue {
    /// What waits, by uid.
    pods: BTreeMap<String, Waiting>,
    trouble: Repeat,
    over: bool,
}

/// What a pod's annotation shall be.
#[derive(Debug)]
struct Waiting {
    name: PodName,
    wanted: Option<Redirection>,
    /// Changes with every new wish.
    edition: u64,
    /// A writer has it.
    taken: bool,
    backoff: Backoff,
    /// The time before which it is not tried.
    at: Instant,
}

impl Annotator {
    /// Starts the writers; what came of each try goes to `inbox` as [`Event::Published`].
    pub fn start(client: &Client, inbox: Sender<Event>) -> Result<Self> {
        let queue = Queue { pods: BTreeMap::new(), trouble: Repeat::once(), over: false };
        let (client, queue) = (client.sibling(), Mutex::new(queue));
        let shared = Arc::new(Shared { client, queue, wakeup: Condvar::new(), inbox });
        let mut annotator = Annotator { shared, threads: Vec::new() };
        for number in 0..WRITERS {
            let shared = Arc::clone(&annotator.shared);
            annotator.threads.push(thread::spawn(&format!("annotate-{number}"), move || shared.write())?);
        }
        Ok(annotator)
    }

    /// Takes a change; never blocks for long.
    pub fn publish(&self, (uid, name, wanted): Change) {
        let mut queue = self.shared.lock();
        let old = queue.pods.remove(&uid);
        let (edition, taken) = old.map_or((0, false), |old| (old.edition + 1, old.taken));
        let backoff = Backoff::new(RETRY.0, RETRY.1);
        queue.pods.insert(uid, Waiting { name, wanted, edition, taken, backoff, at: clock::now() });
        drop(queue);
        self.shared.wakeup.notify_one();
    }
}

impl Drop for Annotator {
    fn drop(&mut self) {
        let until = clock::now() + FAREWELL;
        let mut queue = self.shared.lock();
        queue.over = true;
        self.shared.wakeup.notify_all();
        let due = |pod: &Waiting| pod.taken || pod.at <= clock::now();
        while queue.pods.values().any(due) && clock::now() < until {
            queue = self.shared.wait(queue, Some(until));
        }
        drop(queue);
        self.shared.client.close();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        sync::lock(&self.queue)
    }

    fn wait<'a>(&'a self, queue: MutexGuard<'a, Queue>, until: Option<Instant>) -> MutexGuard<'a, Queue> {
        sync::wait(&self.wakeup, queue, until)
    }

    fn write(&self) {
        while let Some((uid, name, wanted, edition)) = self.next() {
            let written = self.patch(&uid, &name, wanted);
            let told = written.as_ref().copied().map_err(ToString::to_string);
            if self.written(&uid, edition, written) {
                // Nobody listens any more when the agent ends.
                let _ = self.inbox.send(Event::Published(uid, wanted, told));
            }
            self.wakeup.notify_all();
        }
    }

    /// The next pod whose time has come.
    fn next(&self) -> Option<(String, PodName, Option<Redirection>, u64)> {
        let mut queue = self.lock();
        loop {
            let now = clock::now();
            let free = queue.pods.iter_mut().filter(|(_, pod)| !pod.taken);
            let first = free.min_by_key(|(_, pod)| pod.at);
            let until = match first {
                Some((uid, pod)) if pod.at <= now => {
                    pod.taken = true;
                    return Some((uid.clone(), pod.name.clone(), pod.wanted, pod.edition));
                }
                first => first.map(|(_, pod)| pod.at),
            };
            // What failed just now is not worth waiting for: the next agent finds it out of what is.
            if queue.over {
                return None;
            }
            queue = self.wait(queue, until);
        }
    }

    fn patch(&self, uid: &str, name: &PodName, wanted: Option<Redirection>) -> Result<()> {
        let value = wanted.map(Redirection::value);
        let patch = PodPatch { annotations: &[(ANNOTATION, value)], ..PodPatch::default() };
        match self.client.patch_pod(name, Some(uid), patch, ASK) {
            Err(e) if e.kind() == Kind::NotFound || (e.kind() == Kind::Conflict && self.is_gone(uid, name)?) => {
                log::debug!(uid = uid, pod:% = name; "not annotated: {e}");
                Ok(())
            }
            written => written,
        }
    }

    /// Whether a conflict means that another pod has the name. Somebody else may just have written at the same time.
    fn is_gone(&self, uid: &str, name: &PodName) -> Result<bool> {
        match self.client.get_pod(name, ASK) {
            Ok(pod) => Ok(pod.object.uid != uid),
            Err(e) if e.kind() == Kind::NotFound => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Returns whether that is what is wanted now.
    fn written(&self, uid: &str, edition: u64, written: Result<()>) -> bool {
        let mut queue = self.lock();
        let now = clock::now();
        report(&mut queue, written.as_ref().err());
        let Some(pod) = queue.pods.get_mut(uid) else { return false };
        pod.taken = false;
        let current = pod.edition == edition;
        match written {
            Ok(()) if current => drop(queue.pods.remove(uid)),
            Ok(()) => {}
            Err(_) if current => pod.at = pod.backoff.failed(now, random::fraction()),
            Err(_) => {}
        }
        current
    }
}

/// Says it once when writing fails, and once when it works again.
fn report(queue: &mut Queue, failure: Option<&Error>) {
    let now = clock::now();
    match failure {
        Some(_) if queue.over => {}
        // Pods' names are in the text: the kind of the failure tells one cause from another.
        Some(e) => {
            if queue.trouble.failed(&format!("{:?}", e.kind()), now).is_some() {
                log::warn!("a pod's annotation cannot be written; trying again: {e}");
            }
        }
        None => {
            if let Some(past) = queue.trouble.worked(now) {
                log::warn!(failures = past.times; "pods' annotations can be written again");
            }
        }
    }
}
