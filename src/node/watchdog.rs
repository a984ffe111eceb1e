//! Whether the main threads make progress: each notes when it begins a piece of work and when it is done with it.

use crate::sys::{clock, sync};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The threads that are watched. Clones are the same.
#[derive(Debug, Clone)]
pub struct Watchdog {
    begin: Instant,
    threads: Arc<Mutex<Vec<Arc<Watched>>>>,
}

#[derive(Debug)]
struct Watched {
    name: String,
    limit: Duration,
    /// Milliseconds from the beginning to the start of the work, and one; 0 when there is none.
    since: AtomicU64,
}

/// A thread's own hand.
#[derive(Debug)]
pub struct Heartbeat {
    begin: Instant,
    watched: Arc<Watched>,
}

impl Watchdog {
    /// Nobody is watched yet.
    pub fn new() -> Self {
        Watchdog { begin: clock::now(), threads: Arc::default() }
    }

    /// Watches a thread: no piece of its work takes longer than `limit`.
    pub fn watch(&self, name: &str, limit: Duration) -> Heartbeat {
        let watched = Arc::new(Watched { name: name.to_owned(), limit, since: AtomicU64::new(0) });
        sync::lock(&self.threads).push(Arc::clone(&watched));
        Heartbeat { begin: self.begin, watched }
    }

    /// The threads that are stuck, one clause each.
    pub fn stuck(&self) -> Vec<String> {
        let now = milliseconds(self.begin);
        let threads = sync::lock(&self.threads);
        let late = threads.iter().filter_map(|thread| {
            let since = thread.since.load(Ordering::Relaxed).checked_sub(1)?;
            let busy = Duration::from_millis(now.saturating_sub(since));
            (busy > thread.limit).then(|| format!("{} has made no progress for {} s", thread.name, busy.as_secs()))
        });
        late.collect()
    }
}

impl Heartbeat {
    /// Work begins.
    pub fn begin(&self) {
        self.watched.since.store(milliseconds(self.begin) + 1, Ordering::Relaxed);
    }

    /// It is done.
    pub fn end(&self) {
        self.watched.since.store(0, Ordering::Relaxed);
    }
}

fn milliseconds(since: Instant) -> u64 {
    u64::try_from(clock::now().saturating_duration_since(since).as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_work_that_takes_too_long_counts() {
        let watchdog = Watchdog::new();
        let (quick, slow) = (watchdog.watch("quick", Duration::from_secs(60)), watchdog.watch("slow", Duration::ZERO));
        quick.begin();
        slow.begin();
        clock::sleep(Duration::from_millis(5));
        assert_eq!(watchdog.stuck(), ["slow has made no progress for 0 s"]);
        slow.end();
        assert!(watchdog.stuck().is_empty());
    }
}
