//! Locks without poison. A panic ends the process (`panic = "abort"`), so only a test meets a lock that a panic left
//! behind, and what such a lock guards is still whole: nothing here panics half way through a change.

#![expect(clippy::disallowed_methods, reason = "this is the door")]

use super::clock;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Takes a lock.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a notification; with a deadline not past it.
pub fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>, deadline: Option<Instant>) -> MutexGuard<'a, T> {
    match deadline {
        None => condition.wait(guard).unwrap_or_else(PoisonError::into_inner),
        Some(at) => condition.wait_timeout(guard, clock::until(at)).unwrap_or_else(PoisonError::into_inner).0,
    }
}

/// Waits while `busy` holds, at most `time`. Whether it still holds then shows in the value that is guarded.
pub fn wait_while<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    time: Duration,
    busy: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    condition.wait_timeout_while(guard, time, busy).unwrap_or_else(PoisonError::into_inner).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::thread;
    use std::sync::Arc;

    #[test]
    fn waits_end_with_the_deadline_and_with_a_notification() {
        let shared = Arc::new((Mutex::new(0), Condvar::new()));
        let begin = clock::now();
        drop(wait(&shared.1, lock(&shared.0), Some(begin + Duration::from_millis(20))));
        assert_eq!(*wait_while(&shared.1, lock(&shared.0), Duration::from_millis(20), |n| *n == 0), 0);
        assert!(clock::now() - begin >= Duration::from_millis(30));
        let teller = Arc::clone(&shared);
        let telling = thread::spawn("teller", move || {
            *lock(&teller.0) = 1;
            teller.1.notify_all();
        });
        assert_eq!(*wait_while(&shared.1, lock(&shared.0), Duration::from_secs(10), |n| *n == 0), 1);
        telling.unwrap().join().unwrap();
    }

    #[test]
    fn a_panic_leaves_no_poison() {
        let shared = Arc::new(Mutex::new(7));
        let theirs = Arc::clone(&shared);
        let panicking = thread::spawn("panics", move || {
            let _held = lock(&theirs);
            panic!("on purpose");
        });
        assert!(panicking.unwrap().join().is_err());
        assert_eq!(*lock(&shared), 7);
    }
}
