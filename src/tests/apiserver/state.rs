//! What the connections of the server share: the objects, and how it behaves.

use super::fault::{Fault, Planned};
use super::store::Store;
use super::tls::Certificates;
use super::wire;
use serde_json::Value;
use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A patch as it came.
#[derive(Debug, Clone, PartialEq)]
pub struct Patch {
    pub namespace: String,
    pub name: String,
    pub body: Value,
}

/// What the threads share.
pub struct Inner {
    pub(super) store: Mutex<Store>,
    pub(super) changed: Condvar,
    pub(super) state: Mutex<State>,
    pub(super) number: AtomicU64,
    pub(super) cuts: AtomicU64,
    pub(super) bookmarks: AtomicU64,
    pub(super) accepted: AtomicU64,
}

pub(super) struct State {
    pub(super) certificates: Arc<Certificates>,
    pub(super) tokens: Vec<String>,
    pub(super) faults: Vec<Planned>,
    pub(super) requests: VecDeque<wire::Request>,
    pub(super) patches: Vec<Patch>,
    pub(super) connections: Vec<TcpStream>,
    pub(super) bookmark_every: Duration,
    pub(super) stopping: bool,
}

/// Requests that are remembered.
const REMEMBERED: usize = 10_000;

impl Inner {
    /// Nothing is there yet.
    pub(super) fn new(certificates: Arc<Certificates>) -> Self {
        Inner {
            store: Mutex::default(),
            changed: Condvar::new(),
            state: Mutex::new(State {
                certificates,
                tokens: vec!["token-1".into()],
                faults: Vec::new(),
                requests: VecDeque::new(),
                patches: Vec::new(),
                connections: Vec::new(),
                bookmark_every: Duration::from_secs(60),
                stopping: false,
            }),
            number: AtomicU64::new(1),
            cuts: AtomicU64::new(0),
            bookmarks: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
        }
    }

    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(super) fn changed(&self) {
        // Whoever checks holds the lock until it waits, so no change is missed.
        drop(self.store());
        self.changed.notify_all();
    }

    /// Waits for a condition or a time.
    pub(super) fn wait_until(&self, time: Option<Instant>, condition: impl Fn(&Inner) -> bool) {
        // A condition that is noticed late, at the next tick, is noticed all the same.
        const TICK: Duration = Duration::from_millis(50);
        while !condition(self) {
            let left = time.map_or(TICK, |t| t.saturating_duration_since(Instant::now()).min(TICK));
            if left.is_zero() {
                return;
            }
            let guard = self.store();
            let version = guard.version;
            let _ = self.changed.wait_timeout_while(guard, left, |store| store.version == version).unwrap();
        }
    }

    pub(super) fn note(&self, request: &wire::Request) {
        let mut state = self.state();
        if state.requests.len() == REMEMBERED {
            state.requests.pop_front();
        }
        state.requests.push_back(request.clone());
    }

    pub(super) fn patched(&self, patch: Patch) {
        self.state().patches.push(patch);
        self.changed();
    }

    pub(super) fn fault(&self, verb: &str, plural: &str) -> Option<Fault> {
        let mut state = self.state();
        let at = state.faults.iter().position(|f| f.concerns(verb, plural))?;
        let planned = &mut state.faults[at];
        let fault = planned.fault.clone();
        match &mut planned.times {
            None => {}
            Some(1) => drop(state.faults.remove(at)),
            Some(times) => *times -= 1,
        }
        Some(fault)
    }

    pub(super) fn lets_in(&self, request: &wire::Request, certified: bool) -> bool {
        match request.header("authorization").and_then(|h| h.strip_prefix("Bearer ")) {
            Some(token) => self.state().tokens.iter().any(|t| t == token),
            None => certified,
        }
    }

    pub(super) fn bookmark_every(&self) -> Duration {
        self.state().bookmark_every
    }

    pub(super) fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::SeqCst)
    }

    pub(super) fn next_number(&self) -> u64 {
        self.number.fetch_add(1, Ordering::SeqCst)
    }
}
