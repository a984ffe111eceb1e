//! Unix sockets: listeners that take an address over without a gap, peers checked before a byte is parsed.

use crate::error::Result;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Stream or seqpacket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketType {
    /// `SOCK_STREAM`: HTTP.
    Stream,
    /// `SOCK_SEQPACKET`: ZDS, one message per packet.
    SeqPacket,
}

/// A listening socket that owns its path: bound under a temporary name, mode 0600, renamed over whatever was there;
/// removed on drop only if the file is still ours (inode).
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    inode: u64,
}

impl Listener {
    /// Binds and listens. The directory must exist.
    pub fn bind(_path: &Path, _kind: SocketType) -> Result<Self> {
        todo!()
    }

    /// Waits for a connection at most `timeout`; `None` when nobody came. A peer that is not root (SO_PEERCRED) is
    /// closed at once and reported as `Refused`.
    pub fn accept(&self, _timeout: Duration) -> Result<Option<Connection>> {
        todo!()
    }

    /// Whether the path still leads to this socket (another agent may have taken it over).
    pub fn still_ours(&self) -> bool {
        todo!()
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A connected socket.
#[derive(Debug)]
pub struct Connection {
    fd: OwnedFd,
}

impl Connection {
    /// Connects within `timeout`.
    pub fn connect(_path: &Path, _kind: SocketType, _timeout: Duration) -> Result<Self> {
        todo!()
    }

    /// Time-outs of every following read and write.
    pub fn set_timeouts(&self, _read: Duration, _write: Duration) -> Result<()> {
        todo!()
    }

    /// Whether the peer has closed completely (`POLLHUP`; a half-closed peer is still there).
    pub fn peer_gone(&self) -> bool {
        todo!()
    }

    /// Ends both directions; blocked readers wake up.
    pub fn shutdown(&self) {
        todo!()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl std::io::Read for &Connection {
    fn read(&mut self, _buf: &mut [u8]) -> std::io::Result<usize> {
        todo!()
    }
}

impl std::io::Write for &Connection {
    fn write(&mut self, _buf: &[u8]) -> std::io::Result<usize> {
        todo!()
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
