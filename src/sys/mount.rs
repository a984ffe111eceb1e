//! Mounts that nobody else sees.

use super::thread;
use crate::error::{Context, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::path::Path;

/// Runs `work` on a thread that is thrown away, with an empty file in the place of `file`: in a mount namespace of the
/// thread's own, which the programs it starts share. `work` is told when that cannot be had, and runs all the same. A
/// file that does not exist is hidden as it is.
pub fn without<T: Send>(file: &Path, work: impl FnOnce(Result<()>) -> T + Send) -> Result<T> {
    thread::run_scoped("mounts", || work(hide(file)))
}

fn hide(file: &Path) -> Result<()> {
    if !file.exists() {
        return Ok(());
    }
    unshare(CloneFlags::CLONE_NEWNS).context("make a mount namespace")?;
    let all = |kind| mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | kind, None::<&str>);
    // Nothing may go back to the host. A slave still gets what is mounted there, which does no harm; some hosts allow
    // that alone.
    all(MsFlags::MS_PRIVATE).or_else(|_| all(MsFlags::MS_SLAVE)).context("detach the mounts from the host's")?;
    mount(Some("/dev/null"), file, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .with_context(|| format!("mount /dev/null over {}", file.display()))
}
