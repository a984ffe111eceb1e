//! Passing descriptors over Unix sockets (SCM_RIGHTS), and counting our own.

use crate::error::Result;
use std::os::fd::{BorrowedFd, OwnedFd};

/// A packet or a stream chunk as received, with every descriptor that came along.
#[derive(Debug, Default)]
pub struct Received {
    /// Bytes read; 0 means the peer closed.
    pub len: usize,
    /// The packet was longer than the buffer (`MSG_TRUNC`).
    pub truncated: bool,
    /// Descriptors, close-on-exec. Dropping closes them, so a surplus never leaks.
    pub fds: Vec<OwnedFd>,
}

/// `recvmsg` with `MSG_CMSG_CLOEXEC`; room for one descriptor may deliver two, all are taken over.
pub fn recv_with_fds(_socket: BorrowedFd<'_>, _buf: &mut [u8]) -> Result<Received> {
    todo!()
}

/// `sendmsg` with `MSG_NOSIGNAL` and at most one descriptor; returns the number of bytes sent.
pub fn send_with_fd(_socket: BorrowedFd<'_>, _bytes: &[u8], _fd: Option<BorrowedFd<'_>>) -> Result<usize> {
    todo!()
}
