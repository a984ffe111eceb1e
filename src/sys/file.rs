//! Files: rooted paths and atomic writes.
//!
//! A write never leaves a half-written or empty file, whatever happens: temp name in the same directory, fsync,
//! rename, fsync of the directory.

use crate::error::Result;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The directory below which the host's files are (`/host` in the container, `/` straight on a host, a temp dir in
/// tests). Paths below it are resolved with `openat2(RESOLVE_IN_ROOT)`: the host's absolute links stay inside.
#[derive(Debug, Clone)]
pub struct HostRoot(PathBuf);

impl HostRoot {
    /// Takes a directory.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        HostRoot(path.into())
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The host's `path` as seen from here, without resolving links (for messages, and for paths we made).
    pub fn join(&self, _path: impl AsRef<Path>) -> PathBuf {
        todo!()
    }

    /// Opens the host's `path` for reading, links resolved inside the root. A namespace file is opened the same way.
    pub fn open(&self, _path: impl AsRef<Path>) -> Result<File> {
        todo!()
    }
}

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode(pub u32);

/// Reads a whole file of at most `limit` bytes; a larger one is `Invalid`.
pub fn read_limited(_path: &Path, _limit: usize) -> Result<Vec<u8>> {
    todo!()
}

/// Writes `content` unless the file already has exactly it; returns whether it wrote. Atomic and durable. An existing
/// file's mode wins over `mode` when `keep_mode`.
pub fn write_if_changed(_path: &Path, _content: &[u8], _mode: Mode, _keep_mode: bool) -> Result<bool> {
    todo!()
}

/// Removes a file; one that is not there is fine (returns whether it was there). The directory is fsynced.
pub fn remove(_path: &Path) -> Result<bool> {
    todo!()
}

/// Makes a directory and its parents.
pub fn create_dir_all(_path: &Path, _mode: Mode) -> Result<()> {
    todo!()
}

/// An exclusive lock (`flock`) held as long as the value lives.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// Takes the lock without waiting; `None` when another process holds it.
    pub fn try_take(_path: &Path) -> Result<Option<Self>> {
        todo!()
    }
}
