//! Threads: named, with a small stack, and an error instead of a panic when one cannot be made (pids limit).

use crate::error::Result;
use std::thread::JoinHandle;

/// Starts a named thread (at most 15 bytes are shown by the kernel). Fails when the kernel has no thread left.
pub fn spawn<T: Send + 'static>(_name: &str, _f: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    todo!()
}

/// Runs `f` on a thread that is thrown away and waits for it; the closure may borrow.
pub fn run_scoped<T: Send>(_name: &str, _f: impl FnOnce() -> T + Send) -> Result<T> {
    todo!()
}
