//! Watching directories: inotify on a blocking thread, polling where inotify cannot be had.

use crate::error::Result;
use std::path::PathBuf;
use std::time::Duration;

/// A running watch; stops when dropped.
#[derive(Debug)]
pub struct Watch {
    _private: (),
}

/// Calls `changed(dir)` from a thread of its own whenever an entry of one of the directories was written, created,
/// removed or renamed; events that come together are joined within `settle`. A directory that does not exist yet is
/// watched for through its parent. Where inotify is refused (limits, unusual file systems) it polls every `poll`
/// and says so once in the log.
pub fn directories(
    _name: &str,
    _dirs: Vec<PathBuf>,
    _settle: Duration,
    _poll: Duration,
    _changed: impl Fn(&std::path::Path) + Send + 'static,
) -> Result<Watch> {
    todo!()
}
