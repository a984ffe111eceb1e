//! The clock. The pure core is handed `now`; only effects ask here.

use std::time::{Duration, Instant, SystemTime};

/// Monotonic time, for deadlines and intervals; does not jump when the wall clock is set.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub fn now() -> Instant {
    Instant::now()
}

/// Wall time, which may jump either way: for log lines and timestamps shown to people, and for the age of files, whose
/// times are wall time too (one in the future says nothing). Nothing else is decided by it.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// Blocks the thread. Only for back-off in a thread of its own: everything else waits for a condition.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// What is left until `deadline`; zero when it has passed.
pub fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(now())
}

/// A time as text, RFC 3339 in UTC with microseconds: `2026-01-02T03:04:05.678901Z`. Times before 1970 count as 1970.
pub fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Days to date in the Gregorian calendar: eras of 400 years, years that begin in March.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z", since.subsec_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_in_utc() {
        let check = |micros: u64, expected: &str| {
            assert_eq!(rfc3339(SystemTime::UNIX_EPOCH + Duration::from_micros(micros)), expected);
        };
        check(0, "1970-01-01T00:00:00.000000Z");
        check(951_782_400_000_000, "2000-02-29T00:00:00.000000Z");
        check(951_868_799_999_999, "2000-02-29T23:59:59.999999Z");
        check(1_767_323_045_678_901, "2026-01-02T03:04:05.678901Z");
        check(4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z");
        assert_eq!(rfc3339(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00.000000Z");
    }
}
