//! Waiting for a socket and for other threads at once: poll on the socket and an eventfd.

use crate::error::{Context, Result};
use crate::sys::fd;
use nix::poll::{PollFd, PollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// What one thread waits for together with sockets, so that other threads can wake it.
#[derive(Debug)]
pub struct Wakeup(EventFd);

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// Another thread called [`Wakeup::wake`].
    Wakeup,
    /// The socket can be read; its end can be read too.
    Socket,
    /// The time is over.
    Time,
}

impl Wakeup {
    /// Makes one. It takes a descriptor.
    pub fn new() -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Wakeup(EventFd::from_flags(flags).context("make an eventfd")?))
    }

    /// Ends the wait that goes on, or else the next one.
    pub fn wake(&self) {
        // Only fails when the counter is full, and then the wait ends anyway.
        let _ = self.0.write(1);
    }

    /// Takes the wake-ups that came; returns whether there was one. Needed only by who polls the descriptor itself.
    pub fn take(&self) -> bool {
        self.0.read().is_ok()
    }

    /// Waits until `socket` (when given) is readable or closed, another thread wakes this one, or the time is over. A
    /// wake-up that came before is not lost: it ends the next wait.
    pub fn wait(&self, socket: Option<BorrowedFd<'_>>, timeout: Duration) -> Result<Woken> {
        let mut fds = vec![PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        fds.extend(socket.map(|socket| PollFd::new(socket, PollFlags::POLLIN)));
        if !fd::wait_any(&mut fds, timeout)? {
            return Ok(Woken::Time);
        }
        let woken = fds.first().and_then(PollFd::any).unwrap_or(false);
        if woken {
            self.take();
        }
        Ok(if woken { Woken::Wakeup } else { Woken::Socket })
    }
}

/// Readable once another thread has called [`Wakeup::wake`].
impl AsFd for Wakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
