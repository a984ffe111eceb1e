//! How a pod stands with the host's probe sets, which hold the addresses of pods in the mesh.

use crate::sys::backoff::Backoff;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Between tries of work on a pod that failed.
pub(super) const BACKOFF: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(5));

/// What the sets have of a pod.
#[derive(Debug)]
pub(in crate::node) struct Probes {
    /// The addresses that were looked at when it was last entered.
    entered: Option<Vec<IpAddr>>,
    /// The sets may have something of it.
    maybe: bool,
    retry: Backoff,
}

impl Default for Probes {
    fn default() -> Self {
        Probes { entered: None, maybe: false, retry: BACKOFF }
    }
}

impl Probes {
    /// The addresses that were looked at when it was last entered, if it is.
    pub fn entered(&self) -> Option<&[IpAddr]> {
        self.entered.as_deref()
    }

    /// Whether the sets may have something of it.
    pub fn may_have(&self) -> bool {
        self.maybe
    }

    /// When entering it may be tried again, if that time has not come.
    pub fn blocked(&self, now: Instant) -> Option<Instant> {
        self.retry.blocked(now)
    }

    /// An earlier run may have entered it.
    pub fn believe_entered(&mut self) {
        self.maybe = true;
    }

    /// It is about to be entered; returns whether the sets have nothing of it.
    pub fn entering(&mut self) -> bool {
        !std::mem::replace(&mut self.maybe, true)
    }

    /// It was entered, after a look at these addresses.
    pub fn done(&mut self, ips: Vec<IpAddr>) {
        self.entered = Some(ips);
        self.retry.reset();
    }

    /// It could not be entered; returns whether that is the first failure in a row.
    pub fn failed(&mut self, now: Instant, jitter: f64) -> bool {
        self.retry.failed(now, jitter);
        self.retry.failures() == 1
    }

    /// It is to be entered anew: other addresses may be right for another sandbox.
    pub fn outdated(&mut self) {
        self.entered = None;
        self.retry.reset();
    }

    /// It was taken out.
    pub fn left(&mut self) {
        *self = Probes::default();
    }
}
