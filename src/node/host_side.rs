//! How the host's side stands: the rule that marks the kubelet's probes, and the probe sets.

use crate::dataplane::kubelet::Probers;
use std::time::{Duration, Instant};

/// Between the first tries to put the host's side in place.
const RETRY: Duration = Duration::from_secs(2);
/// The number of tries that come quickly.
const TRIES: u32 = 10;
/// Between tries after those, and between looks where verification is off.
const PAUSE: Duration = Duration::from_secs(30);

/// What is known of the host's side, and when it is looked at.
#[derive(Debug, Default)]
pub(super) struct HostSide {
    /// When it is looked at again; `None` while that happens, and where there is nothing to look at.
    at: Option<Instant>,
    /// It was right once.
    done: bool,
    failures: u32,
    /// It is looked at again as soon as the look under way is over.
    again: bool,
    /// The processes whose connections to pods count as the kubelet's probes, where native rules say which.
    probers: Option<Probers>,
}

/// How the host's side stood before it was right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// It was never right.
    Never,
    /// It could not be put in place, so often in a row.
    Failed(u32),
    /// It was right.
    Right,
}

impl HostSide {
    /// It is looked at for the first time at this time, if at all.
    pub fn new(at: Option<Instant>) -> Self {
        HostSide { at, ..HostSide::default() }
    }

    /// When it is looked at again.
    pub fn due(&self) -> Option<Instant> {
        self.at
    }

    /// Whether it has not been looked at to the end yet.
    pub fn is_new(&self) -> bool {
        !self.done && self.failures == 0
    }

    /// It is looked at now; after the look that is under way (`busy`), if one is.
    pub fn look_again(&mut self, now: Instant, busy: bool) {
        if busy {
            self.again = true;
        } else {
            self.at = Some(now);
        }
    }

    /// A look at it begins.
    pub fn look(&mut self) {
        self.at = None;
    }

    /// It is right, or has been put right; the next look is due after the interval, if that is not zero.
    pub fn right(&mut self, now: Instant, interval: Duration) -> Before {
        let before = match (self.done, self.failures) {
            (false, _) => Before::Never,
            (true, 0) => Before::Right,
            (true, failures) => Before::Failed(failures),
        };
        (self.done, self.failures) = (true, 0);
        let again = std::mem::take(&mut self.again);
        self.at = if again { Some(now) } else { (!interval.is_zero()).then(|| now + interval) };
        before
    }

    /// These processes count as the kubelet from now on.
    pub fn tell_by(&mut self, probers: Option<Probers>) {
        self.probers = probers;
    }

    /// The processes that count as the kubelet, where native rules say which.
    pub fn probers(&self) -> Option<Probers> {
        self.probers
    }

    /// It cannot be put in place for now.
    pub fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.at = Some(now + if self.failures < TRIES { RETRY } else { PAUSE });
    }
}
