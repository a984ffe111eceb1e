//! A flag that any number of threads can wait for together with a socket.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Clone)]
pub struct Stop(Arc<EventFd>);

impl Stop {
    pub fn new() -> Self {
        Stop(Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap()))
    }

    pub fn now(&self) {
        let _ = self.0.write(1);
    }

    pub fn stopped(&self) -> bool {
        self.wait(&[], Some(Duration::ZERO)).is_none()
    }

    /// Waits until one of the sockets is readable. `None`: stopped. An empty list: the time is over.
    pub fn wait(&self, sockets: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Option<Vec<usize>> {
        let end = timeout.map(|t| Instant::now() + t);
        loop {
            let left = end.map_or(PollTimeout::NONE, |end| {
                let left = end.saturating_duration_since(Instant::now());
                let round_up = if left.is_zero() { left } else { left + Duration::from_millis(1) };
                PollTimeout::try_from(round_up).unwrap_or(PollTimeout::MAX)
            });
            let mut fds = vec![PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            fds.extend(sockets.iter().map(|s| PollFd::new(*s, PollFlags::POLLIN)));
            match poll(&mut fds, left) {
                Err(Errno::EINTR) => continue,
                result => result.unwrap(),
            };
            let ready: Vec<usize> = (0..fds.len()).filter(|i| fds[*i].any().unwrap_or(true)).collect();
            match ready.first() {
                Some(0) => return None,
                Some(_) => return Some(ready.iter().map(|i| i - 1).collect()),
                None if end.is_some_and(|end| Instant::now() >= end) => return Some(Vec::new()),
                None => {}
            }
        }
    }

    /// Sleeps; `false` when stopped.
    pub fn sleep(&self, time: Duration) -> bool {
        self.wait(&[], Some(time)).is_some()
    }
}
