//! Where a command that has no run directory keeps the lock files of legacy iptables.

use crate::error::{Context, Result};
use crate::sys::file::{self, Mode};
use std::path::PathBuf;

/// Directories that may be made; both are gone after a reboot, as the rules are.
const DIRECTORIES: [&str; 2] = ["/run/ferrule-iptables", "/dev/shm/ferrule-iptables"];

/// The first of [`DIRECTORIES`] that can be made and used; fails when none can.
pub fn lock_dir() -> Result<PathBuf> {
    let usable = |dir: &PathBuf| file::create_dir_all(dir, Mode(0o711)).is_ok();
    let found = DIRECTORIES.into_iter().map(PathBuf::from).find(usable);
    found.context("no directory for lock files can be made in /run or /dev/shm")
}
