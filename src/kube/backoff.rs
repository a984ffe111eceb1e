//! Waiting longer after each failure.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Doubling delays with jitter.
#[derive(Debug, Clone)]
pub struct Backoff {
    shortest: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Starts with about `shortest` and never exceeds `longest`.
    pub fn new(shortest: Duration, longest: Duration) -> Self {
        Backoff { shortest, longest, next: shortest }
    }

    /// The next delay: between the doubled one and half again as much, so that clients that failed together do not
    /// come back together.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.next + self.next.mul_f64(f64::from(random(1024)) / 2048.0);
        self.next = (self.next * 2).min(self.longest);
        delay.min(self.longest)
    }

    /// After a success: short delays again.
    pub fn reset(&mut self) {
        self.next = self.shortest;
    }
}

/// A number from 0 to below `end`, good enough to spread load.
pub(super) fn random(end: u32) -> u32 {
    let bits = RandomState::new().hash_one(()) >> 32;
    u32::try_from(bits % u64::from(end.max(1))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_the_longest_and_starts_over() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(800), ms(30_000));
        let mut floor = ms(800);
        for _ in 0..10 {
            let delay = backoff.next_delay();
            assert!(delay >= floor && delay <= (floor + floor / 2).min(ms(30_000)), "{delay:?} {floor:?}");
            floor = (floor * 2).min(ms(30_000));
        }
        backoff.reset();
        assert!(backoff.next_delay() < ms(1201));
        let spread: std::collections::HashSet<u32> = (0..100).map(|_| random(1 << 20)).collect();
        assert!(spread.len() > 90, "{}", spread.len());
    }
}
