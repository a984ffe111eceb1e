//! Waiting for a socket and for other threads at once: poll on the socket and an eventfd.

use crate::error::{Context, Result};
use crate::sys::fd;
use nix::poll::{PollFd, PollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// A wakeup one thread waits for together with a socket, and others ring.
#[derive(Debug)]
pub(super) struct Wakeup(EventFd);

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Woken {
    /// Somebody rang.
    Wakeup,
    /// The socket can be read; its end can be read too.
    Socket,
    /// The time is over.
    Time,
}

impl Wakeup {
    pub(super) fn new() -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Wakeup(EventFd::from_flags(flags).context("make an eventfd for the ztunnel socket")?))
    }

    pub(super) fn ring(&self) {
        // Only fails when the counter is full, and then the wakeup is ringing.
        let _ = self.0.write(1);
    }

    /// Waits until `socket` (when given) is readable or closed, the wakeup rang, or the time is over. A ring that
    /// happened before is not lost: it ends the next wait.
    pub(super) fn wait(&self, socket: Option<BorrowedFd<'_>>, timeout: Duration) -> Result<Woken> {
        let mut fds = vec![PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        fds.extend(socket.map(|socket| PollFd::new(socket, PollFlags::POLLIN)));
        if !fd::wait_any(&mut fds, timeout).context("wait for ztunnel")? {
            return Ok(Woken::Time);
        }
        let rang = fds.first().and_then(PollFd::any).unwrap_or(false);
        if rang {
            let _ = self.0.read();
        }
        Ok(if rang { Woken::Wakeup } else { Woken::Socket })
    }
}

/// Whether the socket has something to read now, its end included.
pub(super) fn readable(socket: BorrowedFd<'_>) -> Result<bool> {
    fd::wait(socket, PollFlags::POLLIN, Duration::ZERO)
}
