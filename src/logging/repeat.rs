//! What fails again and again is said once while it lasts.

use std::time::{Duration, Instant};

/// Causes of one trouble that are told apart; further ones count as the last of them.
const CAUSES: usize = 8;
/// The part of a cause that is compared, bytes.
const COMPARED: usize = 512;

/// Something that may fail repeatedly: each cause is said once while the trouble lasts, and again after a while.
///
/// Causes are compared without their numbers: process ids, ports and counts change from one failure to the next, and
/// a line for each would say nothing new.
#[derive(Debug)]
pub struct Repeat {
    remind: Duration,
    trouble: Option<Trouble>,
}

#[derive(Debug)]
struct Trouble {
    since: Instant,
    times: u64,
    causes: Vec<Cause>,
}

#[derive(Debug)]
struct Cause {
    key: String,
    said: Instant,
    /// Times since it was last said.
    unsaid: u64,
}

/// What is to be said after a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News<'a, E> {
    /// Nothing that was not said before.
    Nothing,
    /// It fails for this cause, so many times since that was last said; 1 for a new cause.
    Failing(&'a E, u64),
    /// It works again.
    Over(Recovered),
}

/// A trouble that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovered {
    /// How often it failed, whatever the cause.
    pub times: u64,
    /// From the first failure to the recovery.
    pub lasted: Duration,
}

impl Repeat {
    /// Nothing has failed yet. The same cause is said again every `remind`.
    pub const fn new(remind: Duration) -> Self {
        Repeat { remind, trouble: None }
    }

    /// Nothing has failed yet. No cause is said twice before it has worked again.
    pub const fn once() -> Self {
        Repeat::new(Duration::MAX)
    }

    /// Notes how a try went.
    pub fn note<'a, T, E: ToString>(&mut self, tried: &'a Result<T, E>, now: Instant) -> News<'a, E> {
        match tried {
            Err(e) => self.failed(&e.to_string(), now).map_or(News::Nothing, |times| News::Failing(e, times)),
            Ok(_) => self.worked(now).map_or(News::Nothing, News::Over),
        }
    }

    /// Notes a failure. `Some(times)` when it is to be said now: how often this cause came since it was last said, 1
    /// for a new one.
    pub fn failed(&mut self, cause: &str, now: Instant) -> Option<u64> {
        let trouble = self.trouble.get_or_insert_with(|| Trouble { since: now, times: 0, causes: Vec::new() });
        trouble.times += 1;
        let key = without_numbers(cause);
        let known = trouble.causes.iter().position(|cause| cause.key == key);
        let full = trouble.causes.len() == CAUSES;
        let Some(cause) = trouble.causes.get_mut(known.unwrap_or(if full { CAUSES - 1 } else { CAUSES })) else {
            trouble.causes.push(Cause { key, said: now, unsaid: 0 });
            return Some(1);
        };
        cause.unsaid += 1;
        if now.saturating_duration_since(cause.said) < self.remind {
            return None;
        }
        cause.said = now;
        Some(std::mem::take(&mut cause.unsaid))
    }

    /// Notes a success. What is over, when it had failed before.
    pub fn worked(&mut self, now: Instant) -> Option<Recovered> {
        let trouble = self.trouble.take()?;
        Some(Recovered { times: trouble.times, lasted: now.saturating_duration_since(trouble.since) })
    }
}

/// The text with each run of digits as one `#`.
fn without_numbers(text: &str) -> String {
    let mut key = String::new();
    for c in text.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }) {
        if c == '#' && key.ends_with('#') {
            continue;
        }
        if key.len() >= COMPARED {
            break;
        }
        key.push(c);
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::clock;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn each_cause_is_said_once_and_again_after_a_while() {
        let start = clock::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut repeat = Repeat::new(MINUTE);
        assert_eq!(repeat.worked(at(0)), None);
        assert_eq!(repeat.failed("a", at(0)), Some(1));
        assert_eq!(repeat.failed("a", at(1)), None);
        assert_eq!(repeat.failed("b", at(2)), Some(1));
        assert_eq!(repeat.failed("b", at(3)), None);
        assert_eq!(repeat.failed("a", at(4)), None, "causes that take turns are no news");
        assert_eq!(repeat.failed("b", at(62)), Some(2));
        assert_eq!(repeat.failed("b", at(63)), None);
        assert_eq!(repeat.worked(at(64)), Some(Recovered { times: 7, lasted: Duration::from_secs(64) }));
        assert_eq!(repeat.failed("b", at(65)), Some(1));
    }

    #[test]
    fn numbers_that_change_are_no_news() {
        let now = clock::now();
        let mut repeat = Repeat::once();
        let failed = |cause: &'static str| Err::<(), _>(cause);
        assert_eq!(repeat.note(&failed("uid 1000, pid 4711"), now), News::Failing(&"uid 1000, pid 4711", 1));
        assert_eq!(repeat.note(&failed("uid 1001, pid 81"), now + MINUTE), News::Nothing);
        assert_eq!(repeat.note(&failed("uid"), now), News::Failing(&"uid", 1));
        let over = Recovered { times: 3, lasted: 2 * MINUTE };
        assert_eq!(repeat.note(&Ok::<_, String>(()), now + 2 * MINUTE), News::Over(over));
        assert_eq!(repeat.note(&Ok::<_, String>(()), now), News::Nothing);
    }

    #[test]
    fn causes_without_end_end() {
        let now = clock::now();
        let mut repeat = Repeat::new(MINUTE);
        let cause = |n: usize| "x".repeat(n + 1);
        let said = (0..1000).filter(|n| repeat.failed(&cause(*n), now).is_some()).count();
        assert_eq!(said, CAUSES);
        assert_eq!(repeat.failed(&cause(0), now + MINUTE), Some(1));
        assert_eq!(repeat.failed("another", now + MINUTE), Some(1000 - CAUSES as u64 + 1));
        assert_eq!(repeat.trouble.as_ref().map(|trouble| trouble.causes.len()), Some(CAUSES));
        assert_eq!(without_numbers(&"1".repeat(1 << 20)), "#");
        assert_eq!(without_numbers(&"é".repeat(1 << 20)).len(), COMPARED);
    }
}
