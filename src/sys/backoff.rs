//! Exponential back-off: each failure in a row makes the pause before the next try longer. Pure: time and chance are
//! handed in.

use std::time::{Duration, Instant};

/// How often something failed in a row, and when it may be tried again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    shortest: Duration,
    longest: Duration,
    /// The factor between one pause and the next.
    growth: f64,
    failures: u32,
    until: Option<Instant>,
}

impl Backoff {
    /// Pauses that begin with `shortest`, double with each failure, and end at `longest`.
    pub const fn new(shortest: Duration, longest: Duration) -> Self {
        Backoff { shortest, longest, growth: 2.0, failures: 0, until: None }
    }

    /// Lets pauses grow by another factor than 2.
    #[must_use]
    pub const fn growing_by(self, growth: f64) -> Self {
        Backoff { growth, ..self }
    }

    /// Notes a failure; returns when the next try is due. `jitter` (0.0 to 1.0) makes the pause longer by up to a
    /// half, so that those who failed together do not come back together; none is longer than the longest.
    pub fn failed(&mut self, now: Instant, jitter: f64) -> Instant {
        // Past the longest pause more doubling changes nothing; the limit keeps the power finite.
        let exponent = i32::try_from(self.failures.min(64)).unwrap_or(0);
        let seconds = self.shortest.as_secs_f64() * self.growth.powi(exponent) * (1.0 + jitter.clamp(0.0, 1.0) / 2.0);
        let pause = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        let until = now + pause;
        self.until = Some(until);
        until
    }

    /// When the next try is due, if that time has not come.
    pub fn blocked(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| *until > now)
    }

    /// Failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Notes a success: the next failure counts as the first.
    pub fn reset(&mut self) {
        *self = Backoff { failures: 0, until: None, ..*self };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::clock;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// The pauses after this many failures in a row, milliseconds.
    fn pauses(mut backoff: Backoff, count: usize, jitter: f64) -> Vec<u128> {
        let now = clock::now();
        (0..count).map(|_| (backoff.failed(now, jitter) - now).as_millis()).collect()
    }

    #[test]
    fn pauses_grow_to_the_longest() {
        assert_eq!(pauses(Backoff::new(MS(800), MS(5000)), 5, 0.0), [800, 1600, 3200, 5000, 5000]);
        assert_eq!(pauses(Backoff::new(MS(800), MS(5000)), 5, 1.0), [1200, 2400, 4800, 5000, 5000]);
        assert_eq!(pauses(Backoff::new(MS(1000), MS(3000)).growing_by(1.5), 4, 0.0), [1000, 1500, 2250, 3000]);
        assert_eq!(pauses(Backoff::new(MS(1), MS(9)), 200, 7.0).last(), Some(&9));
    }

    #[test]
    fn a_failure_blocks_until_its_pause_is_over_and_a_success_ends_it() {
        let now = clock::now();
        let mut backoff = Backoff::new(MS(10), MS(100));
        assert_eq!((backoff.blocked(now), backoff.failures()), (None, 0));
        let until = backoff.failed(now, 0.0);
        assert_eq!((backoff.blocked(now), backoff.blocked(until)), (Some(now + MS(10)), None));
        backoff.failed(until, 0.0);
        assert_eq!((backoff.failures(), backoff.blocked(until)), (2, Some(until + MS(20))));
        backoff.reset();
        assert_eq!(backoff, Backoff::new(MS(10), MS(100)));
    }
}
