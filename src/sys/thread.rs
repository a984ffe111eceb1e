//! Threads: named, with a small stack, and an error instead of a panic when one cannot be made (pids limit).

use super::ffi;
use crate::error::{Context, Result};
use std::cell::Cell;
use std::thread::{Builder, JoinHandle};

/// Address space of a thread's stack; memory is only taken for what is touched. Deep enough for a TLS handshake and
/// for JSON nested as far as `serde_json` goes, in a debug build.
const STACK: usize = 1 << 20;

thread_local! {
    static NETNS: Cell<ThreadNetns> = const { Cell::new(ThreadNetns::Home) };
}

/// Which network namespace a thread is in, as far as [`super::netns`] has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThreadNetns {
    /// The process's own.
    Home,
    /// The process's own, on a thread that ends after its one piece of work: it may go to another and need not come back.
    Leaving,
    /// Another one, until it ends.
    Away,
}

impl ThreadNetns {
    /// Where the calling thread is.
    pub(super) fn get() -> Self {
        NETNS.get()
    }

    /// Notes it for the calling thread.
    pub(super) fn set(self) {
        NETNS.set(self);
    }

    /// Runs `f` on a new thread, which begins in the namespace of this one.
    fn hand_on<T>(self, f: impl FnOnce() -> T) -> T {
        if self == ThreadNetns::Away {
            self.set();
        }
        f()
    }
}

/// Starts a named thread (at most 15 bytes are shown by the kernel). Fails when the kernel has no thread left.
pub fn spawn<T: Send + 'static>(name: &str, f: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    let here = ThreadNetns::get();
    builder(name).spawn(move || here.hand_on(f)).with_context(|| format!("start thread {name}"))
}

/// Starts a named thread that does one piece of work and ends. The first network namespace that it enters
/// ([`super::netns::Netns::enter`]) it enters itself, since it is thrown away anyway.
pub fn spawn_for_one<T: Send + 'static>(name: &str, f: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    spawn(name, move || {
        if ThreadNetns::get() == ThreadNetns::Home {
            ThreadNetns::Leaving.set();
        }
        f()
    })
}

/// Runs `f` on a thread that is thrown away and waits for it; the closure may borrow. A panic in it goes on in the
/// caller.
#[expect(clippy::disallowed_methods, reason = "the scope's own spawn, which panics, is not used")]
pub fn run_scoped<T: Send>(name: &str, f: impl FnOnce() -> T + Send) -> Result<T> {
    let here = ThreadNetns::get();
    std::thread::scope(|scope| {
        let thread = builder(name)
            .spawn_scoped(scope, move || here.hand_on(f))
            .with_context(|| format!("start thread {name}"))?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Lets all threads share two heaps. The C library would give each of many short-lived threads one of its own, up to
/// eight for each processor, and every one keeps the memory it once needed: twice the footprint of a daemon whose
/// threads mostly wait. For the start of a long-running process.
pub fn share_heaps() {
    if !ffi::limit_heaps(2) {
        log::debug!("the C library has no limit for heaps");
    }
}

/// A name with a NUL byte would make [`Builder`] panic.
fn builder(name: &str) -> Builder {
    Builder::new().name(name.replace('\0', "")).stack_size(STACK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scoped_threads_borrow_and_are_named() {
        let mut seen = String::new();
        run_scoped("wor\0ker", || seen.push_str(std::thread::current().name().unwrap_or_default())).unwrap();
        assert_eq!(seen, "worker");
        assert_eq!(spawn("adder", || 1 + 1).unwrap().join().unwrap(), 2);
    }
}
