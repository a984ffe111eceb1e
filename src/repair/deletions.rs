//! How many pods may be deleted: a misconfiguration must not sweep a node.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Deletions within [`WINDOW`].
pub(super) const DELETIONS: usize = 5;
const WINDOW: Duration = Duration::from_secs(60);

/// When pods were deleted lately, oldest first.
#[derive(Debug, Default)]
pub(super) struct Deletions(VecDeque<Instant>);

impl Deletions {
    /// Notes a deletion if it is allowed now; else fails with the time of the next one that is.
    pub(super) fn allow(&mut self, now: Instant) -> Result<(), Instant> {
        self.0.retain(|at| now.saturating_duration_since(*at) < WINDOW);
        match self.0.front() {
            Some(oldest) if self.0.len() >= DELETIONS => Err(*oldest + WINDOW),
            _ => {
                self.0.push_back(now);
                Ok(())
            }
        }
    }
}
