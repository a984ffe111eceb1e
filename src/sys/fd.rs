//! Passing descriptors over Unix sockets (SCM_RIGHTS), and waiting for one with a deadline.

use crate::error::{Context, Error, Kind, Result};
use crate::sys::{clock, ffi};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use std::io::IoSlice;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// A packet or a stream chunk as received, with every descriptor that came along.
#[derive(Debug, Default)]
pub struct Received {
    /// Bytes read; 0 means the peer closed.
    pub len: usize,
    /// The packet was longer than the buffer (`MSG_TRUNC`).
    pub truncated: bool,
    /// Descriptors, close-on-exec. Dropping closes them, so a surplus never leaks.
    pub fds: Vec<OwnedFd>,
    /// Descriptors were lost on the way (`MSG_CTRUNC`): more came than anybody sends us, or this process has no
    /// descriptor left.
    pub fds_lost: bool,
}

/// `recvmsg` with `MSG_CMSG_CLOEXEC`; room for one descriptor may deliver two, all are taken over. A read time-out of
/// the socket is `TimedOut`.
pub fn recv_with_fds(socket: BorrowedFd<'_>, buf: &mut [u8]) -> Result<Received> {
    let message = ffi::recvmsg(socket, buf).map_err(Error::from)?;
    Ok(Received {
        len: message.len,
        truncated: message.flags & libc::MSG_TRUNC != 0,
        fds: message.fds,
        fds_lost: message.flags & libc::MSG_CTRUNC != 0,
    })
}

/// `sendmsg` with `MSG_NOSIGNAL` and at most one descriptor; returns the number of bytes sent. On a stream a
/// descriptor needs at least one byte to travel with.
pub fn send_with_fd(socket: BorrowedFd<'_>, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<usize> {
    let raw = fd.map(|fd| [fd.as_raw_fd()]);
    let rights = raw.as_ref().map(|raw| [ControlMessage::ScmRights(raw)]);
    let control = rights.as_ref().map_or(&[][..], |rights| &rights[..]);
    loop {
        match sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, MsgFlags::MSG_NOSIGNAL, None) {
            Err(Errno::EINTR) => {}
            other => return other.map_err(Error::from),
        }
    }
}

/// Waits until a descriptor has one of the events (or an error or hang-up), at most `timeout`; returns whether it has.
pub fn wait(fd: BorrowedFd<'_>, events: PollFlags, timeout: Duration) -> Result<bool> {
    let mut fds = [PollFd::new(fd, events)];
    wait_any(&mut fds, timeout)
}

/// [`wait`] for several: the `revents` say which.
pub fn wait_any(fds: &mut [PollFd<'_>], timeout: Duration) -> Result<bool> {
    let deadline = clock::now() + timeout;
    loop {
        // Rounded up: a wait of less than a millisecond must not turn into a busy loop.
        let left = clock::until(deadline).saturating_add(Duration::from_micros(999));
        let left = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(fds, left) {
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e).context("poll"),
            Ok(0) if clock::until(deadline).is_zero() => return Ok(false),
            Ok(0) => {}
            Ok(_) => return Ok(true),
        }
    }
}

/// How many descriptors this process has open (for the metrics, and for tests that look for leaks).
pub fn count_open() -> Result<usize> {
    // The listing itself holds one.
    let dir = std::fs::read_dir("/proc/self/fd").context("read /proc/self/fd")?;
    dir.count().checked_sub(1).ok_or_else(|| Error::of(Kind::Invalid, "read /proc/self/fd: empty"))
}
