//! The clock. The pure core is handed `now`; only effects ask here.

use std::time::{Duration, Instant, SystemTime};

/// Monotonic time, for deadlines and intervals; does not jump when the wall clock is set.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub fn now() -> Instant {
    Instant::now()
}

/// Wall time, for log lines and timestamps shown to people.
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
