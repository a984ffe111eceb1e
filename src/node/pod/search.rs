//! Whether a pod's namespace is looked for.

use std::time::{Duration, Instant};

/// Between the first searches for a pod; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// How the search for a pod stands.
#[derive(Debug, Default)]
pub(in crate::node) struct Search {
    step: Step,
    /// No search begins before this time.
    not_before: Option<Instant>,
    /// Searches in a row without result.
    failures: u32,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Step {
    #[default]
    Idle,
    /// It is part of the next walk.
    Wanted,
    /// A walk is under way.
    Walking,
}

impl Search {
    /// The time to wait for before a search, if it has not come.
    pub fn blocked(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|at| *at > now)
    }

    /// It is part of the next walk, unless one is under way.
    pub fn want(&mut self) {
        if self.step == Step::Idle {
            self.step = Step::Wanted;
        }
    }

    /// A walk begins; returns whether it is part of it.
    pub fn begin(&mut self) -> bool {
        let wanted = self.step == Step::Wanted;
        if wanted {
            self.step = Step::Walking;
        }
        wanted
    }

    /// The walk is over.
    pub fn over(&mut self) {
        if self.step == Step::Walking {
            self.step = Step::Idle;
        }
    }

    /// Nothing was found: the next search waits for a pause that doubles each time, up to `longest`.
    pub fn failed(&mut self, now: Instant, longest: Duration) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(8)).min(longest);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + pause);
    }

    /// There is new knowledge of the pod's addresses.
    pub fn encourage(&mut self) {
        self.failures = 0;
    }

    /// No ADD is to come that would tell: nothing is waited for.
    pub fn hurry(&mut self) {
        self.failures = 0;
        self.not_before = None;
    }

    /// The plugin is likely to tell: no search before this time.
    pub fn postpone(&mut self, until: Instant) {
        self.not_before = Some(until);
        if self.step == Step::Wanted {
            self.step = Step::Idle;
        }
    }

    /// The namespace is known.
    pub fn found(&mut self) {
        self.failures = 0;
        self.not_before = None;
        if self.step == Step::Wanted {
            self.step = Step::Idle;
        }
    }
}
