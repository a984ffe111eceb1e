//! Watching directories: inotify on a blocking thread, polling where inotify cannot be had.
//!
//! A directory may be missing, appear, be replaced or go: its nearest existing ancestor is watched as well, and
//! where each path leads is looked at again every now and then (a mount makes no event).

use crate::error::{Context, Result};
use crate::sys::{fd, thread};
use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};
use nix::poll::{PollFd, PollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// A running watch; stops when dropped.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether inotify can be used here: one more instance can be made.
pub fn inotify_works() -> Result<()> {
    Inotify::init().map(drop).context("make an inotify instance")
}

/// Calls `changed(dir)` from a thread of its own whenever an entry of one of the directories was written, created,
/// removed or renamed; events that come together are joined within `settle`. A directory that does not exist yet is
/// watched for through its parent. Where inotify is refused (limits, unusual file systems) it polls every `poll`
/// and says so once in the log.
///
/// What changes after this returns is reported; what was there before is not.
pub fn directories(
    name: &str,
    dirs: Vec<PathBuf>,
    settle: Duration,
    poll: Duration,
    changed: impl Fn(&Path) + Send + 'static,
) -> Result<Watch> {
    let source = Source::inotify(&dirs).unwrap_or_else(|e| {
        let seconds = poll.as_secs_f32();
        log::warn!(watch = name; "inotify cannot be used ({e}); polling every {seconds} s instead");
        Source::polling(&dirs)
    });
    start(name, source, dirs, settle, poll, changed)
}

fn start(
    name: &str,
    source: Source,
    dirs: Vec<PathBuf>,
    settle: Duration,
    poll: Duration,
    changed: impl Fn(&Path) + Send + 'static,
) -> Result<Watch> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let stop = Arc::new(EventFd::from_value_and_flags(0, flags).context("make an eventfd")?);
    let watcher = Watcher { name: name.to_owned(), dirs, settle, poll, stop: stop.clone(), source };
    let thread = thread::spawn(name, move || watcher.run(changed))?;
    Ok(Watch { stop, thread: Some(thread) })
}

struct Watcher {
    name: String,
    dirs: Vec<PathBuf>,
    settle: Duration,
    poll: Duration,
    stop: Arc<EventFd>,
    source: Source,
}

impl Watcher {
    fn run(mut self, changed: impl Fn(&Path)) {
        loop {
            let mut fds = vec![PollFd::new(self.stop.as_fd(), PollFlags::POLLIN)];
            if let Source::Inotify { inotify, .. } = &self.source {
                fds.push(PollFd::new(inotify.as_fd(), PollFlags::POLLIN));
            }
            let Ok(event) = fd::wait_any(&mut fds, self.poll) else { return };
            drop(fds);
            // One write is several events; the wait joins them, and ends at once when the watch is dropped.
            let pause = if event { self.settle } else { Duration::ZERO };
            if !matches!(fd::wait(self.stop.as_fd(), PollFlags::POLLIN, pause), Ok(false)) {
                return;
            }
            let dirty = self.source.dirty(&self.dirs).unwrap_or_else(|e| {
                let (name, seconds) = (self.name.as_str(), self.poll.as_secs_f32());
                log::warn!(watch = name; "inotify failed ({e}); polling every {seconds} s instead");
                self.source = Source::polling(&self.dirs);
                vec![true; self.dirs.len()]
            });
            for (dir, _) in self.dirs.iter().zip(dirty).filter(|(_, dirty)| *dirty) {
                changed(dir);
            }
        }
    }
}

/// Where changes are known from.
enum Source {
    Inotify {
        inotify: Inotify,
        /// One per directory.
        watched: Vec<Watched>,
    },
    /// The listing of each directory when it was last looked at.
    Polling(Vec<Option<Listing>>),
}

/// What is watched for one directory.
struct Watched {
    place: Place,
    /// The directory's own watch, when it exists.
    own: Option<WatchDescriptor>,
}

/// Where a directory's path leads: itself, and its nearest existing ancestor.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    own: Option<(u64, u64)>,
    ancestor: PathBuf,
    ancestor_inode: Option<(u64, u64)>,
}

impl Place {
    fn of(dir: &Path) -> Self {
        let above = dir.ancestors().skip(1).map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
        let ancestor = above.into_iter().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_path_buf();
        let ancestor_inode = inode(&ancestor);
        Place { own: inode(dir), ancestor, ancestor_inode }
    }
}

fn inode(dir: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(dir).ok().map(|found| (found.dev(), found.ino()))
}

impl Source {
    fn inotify(dirs: &[PathBuf]) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let entries =
            WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVE | WatchMask::MASK_ADD | WatchMask::ONLYDIR;
        let all = entries | WatchMask::CLOSE_WRITE | WatchMask::ATTRIB | WatchMask::DELETE_SELF | WatchMask::MOVE_SELF;
        // What goes away meanwhile is noticed by comparing places.
        let watch = |dir: &Path, mask| match inotify.watches().add(dir, mask) {
            Ok(descriptor) => Ok(Some(descriptor)),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(e) => Err(e),
        };
        let mut watched = Vec::new();
        for dir in dirs {
            let place = Place::of(dir);
            watch(&place.ancestor, entries)?;
            let own = watch(dir, all)?;
            watched.push(Watched { place, own });
        }
        Ok(Source::Inotify { inotify, watched })
    }

    fn polling(dirs: &[PathBuf]) -> Self {
        Source::Polling(dirs.iter().map(|dir| list(dir)).collect())
    }

    /// Which directories have changed since the last call. Does not block.
    fn dirty(&mut self, dirs: &[PathBuf]) -> io::Result<Vec<bool>> {
        match self {
            Source::Polling(listings) => {
                let now: Vec<_> = dirs.iter().map(|dir| list(dir)).collect();
                let dirty = now.iter().zip(&*listings).map(|(now, before)| now != before).collect();
                *listings = now;
                Ok(dirty)
            }
            Source::Inotify { inotify, watched } => {
                let mut dirty = read(inotify, watched)?;
                let moved = |(dir, watched): (&PathBuf, &Watched)| {
                    watched.place != Place::of(dir) || watched.place.own.is_some() != watched.own.is_some()
                };
                if dirs.iter().zip(&*watched).any(moved) {
                    // All of them: what happened between the old watches and the new ones is not known.
                    dirty = vec![true; dirs.len()];
                    *self = Source::inotify(dirs)?;
                }
                Ok(dirty)
            }
        }
    }
}

/// Reads every event that is there.
fn read(inotify: &mut Inotify, watched: &[Watched]) -> io::Result<Vec<bool>> {
    let mut dirty = vec![false; watched.len()];
    let mut buffer = [0; 4096];
    loop {
        let events = match inotify.read_events(&mut buffer) {
            Ok(events) => events,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(dirty),
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        for event in events {
            let lost = event.mask.contains(EventMask::Q_OVERFLOW);
            for (dirty, watched) in dirty.iter_mut().zip(watched) {
                *dirty |= lost || watched.own.as_ref() == Some(&event.wd);
            }
        }
    }
}

/// Every entry with what changes when it is written or replaced; `None` when the directory cannot be listed.
type Listing = Vec<(OsString, [i64; 5])>;

fn list(dir: &Path) -> Option<Listing> {
    let mut entries: Listing = std::fs::read_dir(dir)
        .ok()?
        .flatten()
        .filter_map(|entry| {
            let found = entry.metadata().ok()?;
            let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
            Some((entry.file_name(), [found.ino() as i64, times[0], times[1], times[2], times[3]]))
        })
        .collect();
    entries.sort();
    Some(entries)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests change the files that are watched")]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    const SETTLE: Duration = Duration::from_millis(5);
    const SOON: Duration = Duration::from_secs(10);

    fn watch(inotify: bool, dirs: &[&Path], poll: Duration) -> (Watch, Receiver<PathBuf>) {
        let (sender, receiver) = channel();
        let dirs: Vec<_> = dirs.iter().map(|dir| dir.to_path_buf()).collect();
        let source = if inotify { Source::inotify(&dirs).unwrap() } else { Source::polling(&dirs) };
        let watch = start("watch", source, dirs, SETTLE, poll, move |dir| sender.send(dir.into()).unwrap_or(()));
        (watch.unwrap(), receiver)
    }

    /// Waits for the directory to be reported, and for the reports that belong to the same change.
    fn expect(receiver: &Receiver<PathBuf>, dir: &Path, why: &str) {
        assert_eq!(receiver.recv_timeout(SOON).as_deref(), Ok(dir), "{why}");
        while receiver.recv_timeout(SETTLE * 10).is_ok() {}
    }

    fn changes_are_seen(inotify: bool, poll: Duration) {
        let root = tempfile::tempdir().unwrap();
        let (a, b) = (root.path().join("a"), root.path().join("later/b"));
        std::fs::create_dir(&a).unwrap();
        let (watch, receiver) = watch(inotify, &[&a, &b], poll);
        std::fs::write(a.join("f"), "1").unwrap();
        expect(&receiver, &a, "created");
        std::fs::write(a.join("f"), "2").unwrap();
        expect(&receiver, &a, "written");
        std::fs::rename(a.join("f"), a.join("g")).unwrap();
        expect(&receiver, &a, "renamed");
        std::fs::remove_file(a.join("g")).unwrap();
        expect(&receiver, &a, "removed");
        assert!(receiver.try_recv().is_err(), "nothing else");

        std::fs::create_dir_all(&b).unwrap();
        while receiver.recv_timeout(SOON).unwrap() != b {}
        while receiver.recv_timeout(SETTLE * 10).is_ok() {}
        std::fs::write(b.join("f"), "1").unwrap();
        expect(&receiver, &b, "created in a directory that came later");

        // Replaced as a whole, with a file that was written elsewhere.
        let new = root.path().join("new");
        std::fs::create_dir(&new).unwrap();
        std::fs::write(new.join("f"), "new").unwrap();
        std::fs::rename(&a, root.path().join("old")).unwrap();
        std::fs::rename(&new, &a).unwrap();
        while receiver.recv_timeout(SOON).unwrap() != a {}
        while receiver.recv_timeout(SETTLE * 10).is_ok() {}
        std::fs::write(a.join("g"), "1").unwrap();
        expect(&receiver, &a, "created in the directory's replacement");

        drop(watch);
        assert!(receiver.recv().is_err(), "the thread has ended");
    }

    #[test]
    fn inotify_sees_changes() {
        // So long that nothing is found by looking again.
        changes_are_seen(true, Duration::from_secs(3600));
    }

    #[test]
    fn polling_sees_changes() {
        changes_are_seen(false, Duration::from_millis(5));
    }

    #[test]
    fn a_burst_is_joined() {
        let dir = tempfile::tempdir().unwrap();
        let (sender, receiver) = channel();
        let changed = move |dir: &Path| sender.send(dir.to_path_buf()).unwrap_or(());
        let settle = Duration::from_millis(300);
        let _watch = directories("watch", vec![dir.path().into()], settle, SOON, changed).unwrap();
        for n in 0..100 {
            std::fs::write(dir.path().join(n.to_string()), "").unwrap();
        }
        expect(&receiver, dir.path(), "the burst");
        assert!(receiver.recv_timeout(settle).is_err(), "only once");
    }
}
