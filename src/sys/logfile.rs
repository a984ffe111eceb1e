//! A log file that several processes append to and that rolls over: one old file is kept beside it, as `NAME.1`.

use super::file::Mode;
use crate::error::{Context, Result};
use std::fs::{File, TryLockError};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Appends `line` with a single write, so that lines of several processes never mix. A file that would become larger
/// than `limit` bytes is renamed to `NAME.1` first, by one of the processes that see it; the others go on without
/// waiting. The directory must exist.
pub fn append(path: &Path, line: &[u8], limit: u64, mode: Mode) -> Result<()> {
    let what = || format!("append to {}", path.display());
    let mut file = open(path, mode).with_context(what)?;
    if file.metadata().with_context(what)?.len().saturating_add(line.len() as u64) > limit
        && roll(path, &file).with_context(what)?
    {
        file = open(path, mode).with_context(what)?;
    }
    file.write(line).map(|_| ()).with_context(what)
}

fn open(path: &Path, mode: Mode) -> std::io::Result<File> {
    File::options().append(true).create(true).mode(mode.0).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Renames the file out of the way; returns whether the path now leads to another one. Whoever holds the lock of the
/// file itself may rename it, and only while the path still leads to it.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
fn roll(path: &Path, file: &File) -> std::io::Result<bool> {
    match file.try_lock() {
        Ok(()) => {}
        // Somebody else is at it: this line may still go into the old file.
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(e)) => return Err(e),
    }
    let ours = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(now) if (now.dev(), now.ino()) == (ours.dev(), ours.ino()) => std::fs::rename(path, old(path))?,
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    Ok(true)
}

/// `NAME.1`.
fn old(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rolls_over_and_keeps_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        for n in 0..10 {
            append(&path, format!("line {n}\n").as_bytes(), 16, Mode(0o600)).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "line 8\nline 9\n");
        assert_eq!(std::fs::read_to_string(old(&path)).unwrap(), "line 6\nline 7\n");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
        append(&path, &[b'x'; 64], 16, Mode(0o600)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap().len(), 64, "a line longer than the limit is written all the same");
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let e = append(&dir.path().join("no/x.log"), b"x", 16, Mode(0o600)).unwrap_err();
        assert_eq!(e.kind(), crate::error::Kind::NotFound);
    }
}
