//! Certificates, keys and roots in files: read, checked, and read again whenever they change.
//!
//! A file may be written in place, renamed over, removed and made anew, or stand behind links that are turned, as the
//! kubelet does with its volumes: every directory on the way is watched, and every file is read again now and then all
//! the same. What is passed on has parsed, has stayed the same for a moment, and fits together.

mod path;
#[cfg(test)]
mod tests;

use super::resource::Resource;
use crate::certificate::pair;
use crate::certificate::roots::{Roots, SYSTEM_FILES};
use crate::certificate::x509::Certificate;
use crate::error::{Context, Error, Kind, Result};
use crate::sys::wakeup::Wakeup;
use crate::sys::watch::{self, Watch};
use crate::sys::{clock, file, thread};
use ring::digest::{SHA256, digest};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Largest file, bytes. The roots of an operating system have a quarter of a megabyte.
const LIMIT: usize = 4 << 20;
/// Files are read again after this long even if nothing was noticed.
const POLL: Duration = Duration::from_secs(30);
/// Events that come together are joined for this long.
const JOIN: Duration = Duration::from_millis(5);
/// The longest pause between two looks at files that are not right.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How files are read.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long a change must have stayed the same before it counts, and the first pause after a look at files that are
    /// not right (`FILE_DEBOUNCE_DURATION`).
    pub settle: Duration,
    /// How long files may be missing or wrong before that is told.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options { settle: Duration::from_millis(100), patience: Duration::from_secs(10) }
    }
}

/// What files hold.
pub enum Content {
    /// A chain and its key, as the files have them.
    Certificate {
        /// PEM.
        chain: Vec<u8>,
        /// PEM.
        key: Zeroizing<Vec<u8>>,
        /// The first certificate.
        leaf: Box<Certificate>,
    },
    /// Roots.
    Roots(Roots),
    /// Whether the file is there.
    Exists(bool),
}

/// What is told of the files of a resource.
pub enum Notice {
    /// They were read for the first time, or have changed.
    Content(Content),
    /// They have been missing or wrong for longer than our patience; told again only after they were right.
    Failed(Error),
}

/// Files of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Files {
    /// Chain and key.
    Certificate {
        /// The chain's file.
        chain: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// Roots.
    Roots(PathBuf),
    /// A file that others read; only whether it is there counts.
    Existing(PathBuf),
}

impl Files {
    fn paths(&self) -> Vec<&PathBuf> {
        match self {
            Files::Certificate { chain, key } => vec![chain, key],
            Files::Roots(path) | Files::Existing(path) => vec![path],
        }
    }

    /// The bytes of each file.
    fn read(&self) -> Result<Vec<Zeroizing<Vec<u8>>>> {
        if let Files::Existing(path) = self {
            return Ok(vec![Zeroizing::new(vec![u8::from(path.exists())])]);
        }
        self.paths().into_iter().map(|path| file::read_limited(path, LIMIT).map(Zeroizing::new)).collect()
    }

    /// Checks what was read.
    fn check(&self, bytes: &[Zeroizing<Vec<u8>>]) -> Result<Content> {
        match (self, bytes) {
            (Files::Certificate { chain, key }, [chain_bytes, key_bytes]) => {
                let pair = pair::check(chain_bytes, key_bytes)
                    .with_context(|| format!("{} and {}", chain.display(), key.display()))?;
                Ok(Content::Certificate {
                    chain: chain_bytes.to_vec(),
                    key: key_bytes.clone(),
                    leaf: Box::new(pair.leaf),
                })
            }
            (Files::Roots(path), [bytes]) => {
                let read = Roots::read_some(bytes).with_context(|| path.display().to_string())?;
                if let Some(error) = read.refused.first() {
                    let (count, file) = (read.refused.len(), path.display().to_string());
                    log::error!(file, count, error:% = error; "root certificates that cannot be used are left out");
                }
                Ok(Content::Roots(read.roots))
            }
            (Files::Existing(_), [there]) => Ok(Content::Exists(***there == [1])),
            _ => Err(Error::of(Kind::Invalid, "not as many files as were named")),
        }
    }
}

impl TryFrom<&Resource> for Files {
    type Error = Error;

    /// The files that a name of a secret stands for. Fails for names that stand for none.
    fn try_from(resource: &Resource) -> Result<Self> {
        match resource {
            Resource::FileCertificate { chain, key } => {
                Ok(Files::Certificate { chain: chain.clone(), key: key.clone() })
            }
            Resource::FileRoots(path) => Ok(Files::Roots(path.clone())),
            Resource::SystemRoots => system_roots().map(Files::Roots),
            Resource::Workload | Resource::Roots => Err(Error::of(Kind::Invalid, "not a secret of files")),
        }
    }
}

/// The file of the operating system's roots.
pub fn system_roots() -> Result<PathBuf> {
    let found = SYSTEM_FILES.iter().map(PathBuf::from).find(|path| path.exists());
    found.ok_or_else(|| {
        Error::of(Kind::NotFound, "the operating system's root certificates are in none of the usual files")
    })
}

/// A running reader. Dropping it stops it.
pub struct Reader {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// Tells a [`Reader`] what to read.
#[derive(Clone)]
pub struct Handle {
    requests: Sender<Request>,
    wakeup: Arc<Wakeup>,
}

enum Request {
    Watch(String, Files),
    Forget(String),
    Stop,
}

impl Reader {
    /// Starts the thread that reads. `tell` is called from it with the name that was given to [`Reader::watch`].
    pub fn start(options: Options, tell: impl FnMut(&str, Notice) + Send + 'static) -> Result<Self> {
        let wakeup = Arc::new(Wakeup::new()?);
        let (requests, inbox) = channel();
        let work = Work { options, wakeup: wakeup.clone(), inbox, watched: BTreeMap::new(), directories: None };
        let thread = thread::spawn("secret-files", move || work.run(tell))?;
        Ok(Reader { handle: Handle { requests, wakeup }, thread: Some(thread) })
    }

    /// A way to tell it what to read from other threads.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// [`Handle::watch`].
    pub fn watch(&self, name: &str, files: Files) {
        self.handle.watch(name, files);
    }
}

impl Handle {
    /// Begins to watch files under a name; what they hold is told as soon as it is right.
    pub fn watch(&self, name: &str, files: Files) {
        self.ask(Request::Watch(name.to_owned(), files));
    }

    /// Ends that.
    pub fn forget(&self, name: &str) {
        self.ask(Request::Forget(name.to_owned()));
    }

    fn ask(&self, request: Request) {
        // Fails when the thread is gone, and then nobody reads any more.
        let _ = self.requests.send(request);
        self.wakeup.wake();
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.handle.ask(Request::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Work {
    options: Options,
    wakeup: Arc<Wakeup>,
    inbox: Receiver<Request>,
    watched: BTreeMap<String, Watched>,
    directories: Option<(BTreeSet<PathBuf>, Watch)>,
}

impl Work {
    fn run(mut self, mut tell: impl FnMut(&str, Notice)) {
        loop {
            let now = clock::now();
            let due = self.watched.values().filter_map(|watched| watched.due).min();
            let pause = due.map_or(POLL, |due| due.saturating_duration_since(now).min(POLL));
            if self.wakeup.wait(None, pause).is_err() {
                return;
            }
            while let Ok(request) = self.inbox.try_recv() {
                match request {
                    Request::Watch(name, files) => {
                        self.watched.insert(name, Watched::new(files));
                    }
                    Request::Forget(name) => drop(self.watched.remove(&name)),
                    Request::Stop => return,
                }
            }
            // First the watches, then the looks: what changes in between is noticed.
            self.watch_directories();
            for (name, watched) in &mut self.watched {
                if let Some(notice) = watched.look(&self.options, clock::now()) {
                    tell(name, notice);
                }
            }
        }
    }

    /// Watches the directories that lead to the files now.
    fn watch_directories(&mut self) {
        let paths = self.watched.values().flat_map(|watched| watched.files.paths());
        let needed: BTreeSet<PathBuf> = paths.flat_map(|path| path::directories(path)).collect();
        if self.directories.as_ref().is_some_and(|(watched, _)| *watched == needed) {
            return;
        }
        let wakeup = self.wakeup.clone();
        let ring = move |_: &Path| wakeup.wake();
        match watch::directories("secret-dirs", needed.iter().cloned().collect(), JOIN, POLL, ring) {
            Ok(watch) => self.directories = Some((needed, watch)),
            // The slow look at the files remains.
            Err(e) => log::warn!(error:% = e; "directories of certificates cannot be watched"),
        }
    }
}

type Digest = [u8; 32];

/// The files of one name.
struct Watched {
    files: Files,
    /// What was told last.
    told: Option<Digest>,
    /// What was seen after that, and has yet to stay the same.
    fresh: Option<Digest>,
    wrong: Option<Wrong>,
    /// When to look even if nothing happens.
    due: Option<Instant>,
}

/// Files that are missing or wrong.
struct Wrong {
    since: Instant,
    pause: Duration,
    told: bool,
}

impl Watched {
    fn new(files: Files) -> Self {
        Watched { files, told: None, fresh: None, wrong: None, due: None }
    }

    fn look(&mut self, options: &Options, now: Instant) -> Option<Notice> {
        self.due = None;
        let read = self.files.read().and_then(|bytes| {
            let digest = digest_of(&bytes);
            if self.told == Some(digest) { Ok((digest, None)) } else { Ok((digest, Some(self.files.check(&bytes)?))) }
        });
        match read {
            Ok((_, None)) => {
                (self.wrong, self.fresh) = (None, None);
                None
            }
            // The first time there is nothing that half of a change could replace.
            Ok((digest, Some(_))) if self.told.is_some() && self.fresh != Some(digest) => {
                self.fresh = Some(digest);
                self.due = Some(now + options.settle);
                None
            }
            Ok((digest, Some(content))) => {
                (self.told, self.fresh, self.wrong) = (Some(digest), None, None);
                Some(Notice::Content(content))
            }
            Err(error) => {
                self.fresh = None;
                self.is_wrong(error, options, now)
            }
        }
    }

    fn is_wrong(&mut self, error: Error, options: &Options, now: Instant) -> Option<Notice> {
        let first = || Wrong { since: now, pause: options.settle, told: false };
        let wrong = self.wrong.get_or_insert_with(first);
        let end = wrong.since + options.patience;
        let over = now >= end;
        let next = now + wrong.pause;
        self.due = Some(if over { next } else { next.min(end) });
        wrong.pause = (wrong.pause * 3 / 2).min(LONGEST_PAUSE);
        (over && !std::mem::replace(&mut wrong.told, over)).then_some(Notice::Failed(error))
    }
}

/// A digest of several files, in which no byte can move from one to the next.
fn digest_of(files: &[Zeroizing<Vec<u8>>]) -> Digest {
    let each: Vec<u8> = files.iter().flat_map(|bytes| digest(&SHA256, bytes).as_ref().to_vec()).collect();
    let mut whole = Digest::default();
    whole.copy_from_slice(digest(&SHA256, &each).as_ref());
    whole
}
