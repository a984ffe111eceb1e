//! Our own executable in the node's CNI bin dir.

use super::directory::{missing, names};
use super::{Options, PLUGIN};
use crate::error::{Context, Error, Kind, Result};
use crate::sys::file::{self, Mode, Staged, open_regular};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use std::fs::{File, Metadata, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Start of the temporary names, the same as Istio's, so that each sweeps what the other left behind.
const TEMP: &str = "istio-cni.tmp.";

const EXECUTABLE: u32 = 0o755;

/// Identity of a file's content without reading it: nobody can change the content and keep the change time.
type Stamp = (u64, u64, u64, i64, i64, u32);

/// The installed executable, remembered so that a file that has not been touched is not read again.
#[derive(Debug, Default)]
pub struct Binary {
    verified: Option<Stamp>,
}

/// Where the executable belongs.
pub fn path(options: &Options) -> PathBuf {
    options.bin_dir.join(PLUGIN)
}

impl Binary {
    /// Whether the installed executable is ours. A mode that is wrong is put right on the way.
    pub fn is_current(&mut self, options: &Options) -> Result<bool> {
        let target = path(options);
        let stat = || std::fs::metadata(&target).with_context(|| format!("stat {}", target.display()));
        match stat() {
            Err(e) if e.kind() == Kind::NotFound => return Ok(false),
            Ok(metadata) if self.verified == Some(stamp(&metadata)) => return Ok(true),
            _ => self.verified = None,
        }
        let installed = match open_regular(&target) {
            // Something that nobody can run: replaced.
            Err(e) if e.kind() == Kind::Invalid => return Ok(false),
            opened => opened?,
        };
        let current =
            file::same_content(&open_regular(&options.executable)?, &installed).with_context(|| target.display())?;
        drop_cache(&installed);
        if current {
            make_executable(&installed, &target)?;
            self.verified = Some(stamp(&stat()?));
        }
        Ok(current)
    }

    /// Puts our executable in place of whatever is there.
    pub fn install(&mut self, options: &Options) -> Result<()> {
        install(options).map_err(|e| explain(e, options))
    }
}

fn stamp(metadata: &Metadata) -> Stamp {
    (metadata.dev(), metadata.ino(), metadata.len(), metadata.ctime(), metadata.ctime_nsec(), metadata.mode())
}

fn install(options: &Options) -> Result<()> {
    sweep(options)?;
    let target = path(options);
    let temp = options.bin_dir.join(format!("{TEMP}{}", std::process::id()));
    let mut source = open_regular(&options.executable)?;
    let mut staged = Staged::create(&temp, Mode(EXECUTABLE))?;
    std::io::copy(&mut source, &mut staged).with_context(|| format!("write {}", temp.display()))?;
    staged.commit(&target)?;
    drop_cache(&open_regular(&target)?);
    log::info!(file:% = target.display(); "installed the CNI plugin");
    Ok(())
}

fn make_executable(installed: &File, target: &Path) -> Result<()> {
    let what = || format!("chmod {}", target.display());
    let mode = installed.metadata().with_context(what)?.mode() & 0o7777;
    if mode == EXECUTABLE {
        return Ok(());
    }
    match installed.set_permissions(Permissions::from_mode(EXECUTABLE)) {
        // The runtime can run it all the same.
        Err(e) if e.kind() == std::io::ErrorKind::ReadOnlyFilesystem && mode & 0o100 != 0 => Ok(()),
        other => other.with_context(what),
    }
}

/// The plugin runs for a few milliseconds per pod: its pages need not stay in memory and be counted as ours.
fn drop_cache(file: &File) {
    // Advice only.
    let _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
}

/// Removes half-written executables of earlier runs, ours and Istio's.
pub fn sweep(options: &Options) -> Result<()> {
    for name in names(&options.bin_dir)?.iter().filter(|name| name.starts_with(TEMP)) {
        file::remove(&options.bin_dir.join(name))?;
    }
    Ok(())
}

/// Tells people where their platform looks for plugins: a wrong directory is the usual cause.
fn explain(error: Error, options: &Options) -> Error {
    if let Some((finding, remedy)) = missing(&options.bin_dir, options) {
        return Error::of(error.kind(), format!("{finding}; {remedy}"));
    }
    error.context(format!(
        "install the CNI plugin into {} (--cni-bin-dir; if the platform has its own: k3s /var/lib/rancher/k3s/data/cni, \
         k0s and most others /opt/cni/bin, microk8s /var/snap/microk8s/current/opt/cni/bin, GKE \
         /home/kubernetes/bin, OpenShift /var/lib/cni/bin)",
        options.bin_dir.display()
    ))
}
