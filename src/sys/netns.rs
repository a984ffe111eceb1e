//! Network namespaces: an open descriptor with its identity, and the one way to run code inside one.
//!
//! A namespace is entered on a thread that is thrown away afterwards: there is nothing to restore and nothing can
//! leak; children spawned inside inherit it.

use crate::error::Result;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Identity of a namespace: device and inode of its nsfs file. An inode is reused as soon as nobody holds a
/// descriptor, so equality proves something only while one side is held open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetnsId {
    /// Device of nsfs.
    pub dev: u64,
    /// Inode, as in `net:[4026531840]`.
    pub ino: u64,
}

/// An open network namespace. Holding it keeps the namespace alive.
#[derive(Debug)]
pub struct Netns {
    fd: OwnedFd,
    id: NetnsId,
}

impl Netns {
    /// Opens a namespace file (`/proc/PID/ns/net`, a bind mount). Fails with `Invalid` when it is no network namespace.
    pub fn open(_path: &Path) -> Result<Self> {
        todo!()
    }

    /// Takes over a received descriptor after checking with `NS_GET_NSTYPE` that it is a network namespace.
    pub fn from_fd(_fd: OwnedFd) -> Result<Self> {
        todo!()
    }

    /// The namespace this process runs in.
    pub fn own() -> Result<Self> {
        todo!()
    }

    /// A new, empty namespace that lives as long as the value (loopback down).
    pub fn scratch() -> Result<Self> {
        todo!()
    }

    /// Its identity.
    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// A second descriptor of the same namespace.
    pub fn try_clone(&self) -> Result<Self> {
        todo!()
    }

    /// Runs `f` inside, on a thread of its own, and gives back what it returns. Sockets opened inside keep the
    /// namespace alive: close them inside.
    pub fn enter<T: Send>(&self, _f: impl FnOnce() -> T + Send) -> Result<T> {
        todo!()
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
