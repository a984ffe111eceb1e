//! Waiting for a socket and for other threads at once: poll on the socket and an eventfd.

use crate::error::{Context, Result};
use crate::sys::clock;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// What the owner of a socket waits for: data, and the end, which can be read too.
const INPUT: PollFlags = PollFlags::POLLIN;

/// A bell one thread waits for together with a socket, and others ring.
#[derive(Debug)]
pub(super) struct Bell(EventFd);

impl Bell {
    pub(super) fn new() -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Bell(EventFd::from_flags(flags).context("make an eventfd for the ztunnel socket")?))
    }

    pub(super) fn ring(&self) {
        // Only fails when the counter is full, and then the bell is ringing.
        let _ = self.0.write(1);
    }

    /// Waits until `socket` (when given) is readable or closed, the bell rang, or the time is over. A ring that
    /// happened before is not lost: it ends the next wait.
    pub(super) fn wait(&self, socket: Option<BorrowedFd<'_>>, timeout: Duration) -> Result<Woken> {
        let deadline = clock::now() + timeout;
        loop {
            // One millisecond more: rounded down, the last one would be a busy loop.
            let left = deadline.saturating_duration_since(clock::now()) + Duration::from_millis(1);
            let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let bell = PollFd::new(self.0.as_fd(), PollFlags::POLLIN);
            let mut fds = match socket {
                Some(socket) => vec![bell, PollFd::new(socket, INPUT)],
                None => vec![bell],
            };
            match poll(&mut fds, left) {
                Err(Errno::EINTR) => continue,
                result => result.context("poll the ztunnel socket")?,
            };
            let happened = |i: usize| fds.get(i).and_then(PollFd::any).unwrap_or(false);
            if happened(0) {
                let _ = self.0.read();
                return Ok(Woken::Bell);
            }
            if happened(1) {
                return Ok(Woken::Socket);
            }
            if clock::now() >= deadline {
                return Ok(Woken::Time);
            }
        }
    }
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Woken {
    /// Somebody rang.
    Bell,
    /// The socket can be read, or its peer is gone.
    Socket,
    /// The time is over.
    Time,
}

/// Whether the socket has something to read now, its end included.
pub(super) fn readable(socket: BorrowedFd<'_>) -> Result<bool> {
    loop {
        match poll(&mut [PollFd::new(socket, INPUT)], PollTimeout::ZERO) {
            Err(Errno::EINTR) => continue,
            result => return Ok(result.context("poll the ztunnel socket")? > 0),
        }
    }
}
