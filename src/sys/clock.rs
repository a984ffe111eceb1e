//! The clock. The pure core is handed `now`; only effects ask here.

use std::time::{Instant, SystemTime};

/// Monotonic time, for deadlines and intervals; does not jump when the wall clock is set.
pub fn now() -> Instant {
    todo!()
}

/// Wall time, for log lines and timestamps shown to people.
pub fn wall() -> SystemTime {
    todo!()
}

/// Blocks the thread. Only for back-off in a thread of its own: everything else waits for a condition.
pub fn sleep(_time: std::time::Duration) {
    todo!()
}
