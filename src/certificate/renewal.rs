//! When a certificate is renewed.

use std::time::{Duration, SystemTime};

/// Which part of a certificate's lifetime is kept in reserve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grace {
    /// Share of the lifetime, 0 to 1: 0 renews when it expires, 1 at once.
    pub ratio: f64,
    /// How far the ratio is moved at random either way, so that many workloads do not renew at the same moment.
    pub jitter: f64,
}

impl Default for Grace {
    fn default() -> Self {
        Grace { ratio: 0.5, jitter: 0.01 }
    }
}

impl Grace {
    /// When to renew a certificate that was received and expires at these local times. The lifetime is counted from
    /// the receipt, so that a clock that differs from the authority's, or a shorter lifetime than asked for, changes
    /// nothing. `random` is from -1 to 1. Never before the receipt.
    pub fn renewal(self, received: SystemTime, expires: SystemTime, random: f64) -> SystemTime {
        let lifetime = expires.duration_since(received).unwrap_or_default();
        let ratio = self.ratio + self.jitter * random;
        // NaN, too, is 0 then.
        let ratio = if ratio > 0.0 { ratio.min(1.0) } else { 0.0 };
        received + lifetime.saturating_sub(lifetime.mul_f64(ratio))
    }
}

/// How long to wait after a renewal failed for the `failures`-th time in a row (from 1), when the old certificate is
/// still valid for `left`: from a second, doubled each time, to five minutes; but never so long that fewer than some
/// ten tries are left before it expires, and never less than a second.
pub fn retry_delay(failures: u32, left: Duration) -> Duration {
    const SHORTEST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(300);
    let doubled = SHORTEST.saturating_mul(1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
    doubled.min(LONGEST).min(left / 10).max(SHORTEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn renewals() {
        let received = SystemTime::UNIX_EPOCH + HOUR * 1000;
        let check = |ratio: f64, jitter: f64, random: f64, lifetime: Duration, expected: Duration| {
            let at = Grace { ratio, jitter }.renewal(received, received + lifetime, random);
            assert_eq!(at.duration_since(received).unwrap(), expected, "{ratio} {jitter} {random} {lifetime:?}");
        };
        check(0.5, 0.0, 1.0, HOUR * 24, HOUR * 12);
        check(0.0, 0.0, 1.0, HOUR, HOUR);
        check(1.0, 0.0, 0.0, HOUR, Duration::ZERO);
        check(0.5, 0.25, 1.0, HOUR * 24, HOUR * 6);
        check(0.5, 0.25, -1.0, HOUR * 24, HOUR * 18);
        check(0.5, 0.9, 1.0, HOUR, Duration::ZERO);
        check(0.5, 0.9, -1.0, HOUR, HOUR);
        check(f64::NAN, 0.0, 0.0, HOUR, HOUR);
        // Expired before it came.
        let at = Grace::default().renewal(received, received - HOUR, 0.0);
        assert_eq!(at, received);
    }

    #[test]
    fn retries() {
        let seconds = Duration::from_secs;
        let check = |failures, left, expected| assert_eq!(retry_delay(failures, left), expected, "{failures} {left:?}");
        check(0, HOUR * 12, seconds(1));
        check(1, HOUR * 12, seconds(1));
        check(2, HOUR * 12, seconds(2));
        check(9, HOUR * 12, seconds(256));
        check(10, HOUR * 12, seconds(300));
        check(u32::MAX, HOUR * 12, seconds(300));
        check(10, seconds(600), seconds(60));
        check(10, seconds(5), seconds(1));
        check(10, seconds(0), seconds(1));
    }
}
