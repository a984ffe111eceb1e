//! The conf dir and our copies beside it: read into a [`Listing`], changed by a plan's [`Step`]s.

use super::Options;
use super::conf;
use super::plan::{Access, Change, Found, Listing, Place, Step};
use crate::error::{Context, Error, Kind, Result};
use crate::sys::{clock, file};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Folder of the run dir with files as they were before we edited or replaced them.
const SAVED: &str = "replaced";

/// Far more than any configuration has; what is larger is not read.
const MAX_CONF: usize = 1 << 20;

fn path(options: &Options, place: Place) -> PathBuf {
    match place {
        Place::Net => options.net_dir.clone(),
        Place::Saved => options.run_dir.join(SAVED),
    }
}

/// Reads both directories, and the names in the bin dir. A directory that does not exist is empty.
pub fn read(options: &Options) -> Result<Listing> {
    let net = read_dir(&path(options, Place::Net))?;
    let saved = read_dir(&path(options, Place::Saved))?;
    // What cannot be listed proves nothing about the plugins.
    let plugins = names(&options.bin_dir).ok().map(|names| names.into_iter().collect());
    Ok(Listing { net, saved, plugins })
}

fn read_dir(dir: &Path) -> Result<BTreeMap<String, Found>> {
    let names = list(dir)?.into_iter().filter(|name| conf::is_candidate(&name.to_string_lossy()));
    let read = |name: OsString| match name.into_string() {
        Ok(name) => read_file(&dir.join(&name)).map(|found| (name, found)),
        // A runtime loads it all the same. It sorts where its readable part does.
        Err(name) => Some((name.to_string_lossy().into_owned(), unread("its name is not UTF-8".to_owned()))),
    };
    Ok(names.filter_map(read).collect())
}

/// What a runtime reads, and we cannot.
fn unread(reason: String) -> Found {
    Found { content: Err(reason), access: Access { mode: 0o600, owner: None }, age: Duration::MAX }
}

/// `None` when it has gone since it was listed, or is a directory.
fn read_file(path: &Path) -> Option<Found> {
    let metadata = match std::fs::metadata(path) {
        // Runtimes pass over directories, and fail on links to them.
        Ok(metadata) if metadata.is_dir() => {
            let link = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
            return link.then(|| unread("a link to a directory".to_owned()));
        }
        Ok(metadata) => metadata,
        Err(e) => return std::fs::symlink_metadata(path).is_ok().then(|| unread(e.to_string())),
    };
    let content = match metadata.is_file() {
        true => match file::read_limited(path, MAX_CONF) {
            Err(e) if e.kind() == Kind::NotFound => return None,
            Ok(bytes) => conf::decode(&bytes).map(String::into_bytes).map_err(|e| e.to_string()),
            Err(e) => Err(e.to_string()),
        },
        false => Err("not a regular file".to_owned()),
    };
    // A time to come proves nothing: the clock was set back since.
    let age = metadata.modified().ok().and_then(|time| clock::wall().duration_since(time).ok());
    let access = Access { mode: metadata.mode() & 0o7777, owner: Some((metadata.uid(), metadata.gid())) };
    Some(Found { content, access, age: age.unwrap_or(Duration::MAX) })
}

/// Every name in a directory that is UTF-8, as all of ours are; none if there is no such directory.
pub(super) fn names(dir: &Path) -> Result<Vec<String>> {
    Ok(list(dir)?.into_iter().filter_map(|name| name.into_string().ok()).collect())
}

fn list(dir: &Path) -> Result<Vec<OsString>> {
    let what = || format!("list {}", dir.display());
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e).with_context(what),
    };
    entries.map(|entry| Ok(entry.with_context(what)?.file_name())).collect()
}

/// A directory of the node that is not there: the finding and the remedy. `None`: it is there, or cannot be looked at.
pub fn missing(dir: &Path, options: &Options) -> Option<(String, String)> {
    let gone = |dir: &Path| std::fs::metadata(dir).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
    let root = options.host_root.path();
    let remedy = if dir.starts_with(root) && gone(root) {
        format!("--host-root {} is not there: on a host give --host-root /", root.display())
    } else if dir == options.bin_dir {
        "make it (mkdir -p), or name the one that has this machine's CNI plugins with --cni-bin-dir (Debian: \
         /usr/lib/cni)"
            .to_owned()
    } else {
        "name the one that the container runtime reads with --mounted-cni-net-dir; on a host give --host-root /"
            .to_owned()
    };
    gone(dir).then(|| (format!("the directory {} does not exist", dir.display()), remedy))
}

/// Refuses to go on without the host root and the conf dir: what has to be removed is somewhere else then.
pub fn expect(options: &Options) -> Result<()> {
    let needed = [options.net_dir.as_path(), options.host_root.path()];
    match needed.into_iter().find_map(|dir| missing(dir, options)) {
        Some((finding, remedy)) => Err(Error::of(Kind::NotFound, format!("{finding}; {remedy}"))),
        None => Ok(()),
    }
}

/// How [`apply`] ended when nothing failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// Every step was carried out.
    Done,
    /// A file had changed since the listing was read. It was not touched, and neither were the steps after it: plan
    /// again from what is there now.
    Changed,
}

/// Carries the steps out, in order, up to the first failure.
pub fn apply(steps: &[Step], listing: &Listing, options: &Options) -> Result<Applied> {
    for step in steps {
        let dir = path(options, step.place);
        let path = dir.join(&step.name);
        match step.place {
            Place::Net => {
                let seen = listing.net.get(&step.name).map(|found| &found.content);
                let now = read_file(&path).map(|found| found.content);
                if seen != now.as_ref() {
                    return Ok(Applied::Changed);
                }
            }
            Place::Saved => file::create_dir_all(&dir, file::Mode(0o700))?,
        }
        match &step.change {
            Change::Write(text, access) => {
                file::replace(&path, &conf::encode(text), file::Mode(access.mode), access.owner)?;
            }
            Change::Remove => {
                file::remove(&path)?;
            }
        }
        if step.place == Place::Net {
            log::info!(file:% = path.display(); "CNI configuration: {}", describe(step, options));
        }
    }
    Ok(Applied::Done)
}

/// A step as a line for people.
pub fn describe(step: &Step, options: &Options) -> String {
    let verb = if step.change == Change::Remove { "remove" } else { "write" };
    format!("{verb} {}: {}", path(options, step.place).join(&step.name).display(), step.why)
}

/// What becomes of the copies that a removal leaves, as lines for people.
pub fn kept(steps: &[Step], listing: &Listing, options: &Options) -> Vec<String> {
    let goes = |name: &String| steps.iter().any(|step| step.place == Place::Saved && step.name == *name);
    let kept = listing.saved.keys().filter(|name| !goes(name));
    let line = |name: &String| {
        let copy = path(options, Place::Saved).join(name);
        format!("keep {}: {} has nothing that can be loaded in its place", copy.display(), options.net_dir.display())
    };
    kept.map(line).collect()
}

/// Removes what killed processes left of files they were writing.
pub fn sweep(options: &Options) -> Result<()> {
    for place in [Place::Net, Place::Saved] {
        let dir = path(options, place);
        for name in names(&dir)? {
            if file::temp_of(&name).is_some_and(conf::is_candidate) {
                file::remove(&dir.join(&name))?;
            }
        }
    }
    Ok(())
}
