//! The source of standalone mode: pods and namespaces as JSON or YAML objects in the files of a directory.
//!
//! A file that cannot be parsed keeps its last good content, and so does one that is being written at this moment: a
//! half-written file is not a deletion. Of a pod that is in two files the one in the first file by name counts.

use super::event::{Event, Notice};
use crate::error::{Context, Result};
use crate::pod::object::{self, Objects};
use crate::pod::types::{Namespace, Pod, PodName};
use crate::sys::{clock, file, thread, watch};
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Changes that come together are taken together.
const SETTLE: Duration = Duration::from_millis(10);
/// Between looks where the kernel does not tell of changes.
const POLL: Duration = Duration::from_secs(2);
/// A known file that was written to within this time may still be half written.
const YOUNG: Duration = Duration::from_millis(100);
/// The largest file that is read.
const MAX_FILE: usize = 16 << 20;

/// The running source; it ends when dropped.
#[derive(Debug)]
pub struct Directory {
    asks: Sender<Ask>,
    watch: Option<watch::Watch>,
}

enum Ask {
    Changed,
    LookUp(PodName),
}

impl Directory {
    /// Starts to read and to watch.
    pub fn start(path: &Path, inbox: Sender<Event>) -> Result<Self> {
        let (asks, receiver) = channel();
        let changed = asks.clone();
        let watch = watch::directories("pod-dir-watch", vec![path.to_owned()], SETTLE, POLL, move |_| {
            let _ = changed.send(Ask::Changed);
        })?;
        let path = path.to_owned();
        thread::spawn("pod-dir", move || run(path, &receiver, &inbox))?;
        Ok(Directory { asks, watch: Some(watch) })
    }

    /// Reads again and answers with [`Notice::LookedUp`].
    pub fn look_up(&self, name: PodName) {
        let _ = self.asks.send(Ask::LookUp(name));
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // The watch holds a sender: the reading thread ends once both are gone.
        self.watch = None;
    }
}

fn run(path: PathBuf, asks: &Receiver<Ask>, inbox: &Sender<Event>) {
    let mut files = Files { path, known: BTreeMap::new(), trouble: None };
    let mut store = Store::default();
    let mut lookups: Vec<(PodName, Instant)> = Vec::new();
    let mut first = true;
    loop {
        let again = files.read();
        for notice in store.update(files.known.values().map(|known| (known.name.as_str(), &known.objects))) {
            if inbox.send(Event::Source(notice)).is_err() {
                return;
            }
        }
        if std::mem::take(&mut first) && inbox.send(Event::Source(Notice::Synced)).is_err() {
            return;
        }
        // Other files that are always being written must not hold up an answer.
        let enough = |asked: Instant| clock::now().saturating_duration_since(asked) > 2 * YOUNG;
        for (name, _) in lookups.extract_if(.., |(_, asked)| again.is_none() || enough(*asked)) {
            if inbox.send(Event::Source(Notice::LookedUp(name))).is_err() {
                return;
            }
        }
        let ask = match again {
            Some(pause) => asks.recv_timeout(pause),
            None => asks.recv().map_err(Into::into),
        };
        let ask = match ask {
            Ok(ask) => Some(ask),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        for ask in ask.into_iter().chain(asks.try_iter()) {
            if let Ask::LookUp(name) = ask {
                lookups.push((name, clock::now()));
            }
        }
    }
}

/// What the files said when they were last read well.
struct Files {
    path: PathBuf,
    known: BTreeMap<String, Known>,
    trouble: Option<String>,
}

struct Known {
    name: String,
    /// Of the content that was last looked at, good or not.
    hash: Option<u64>,
    objects: Objects,
}

impl Files {
    /// Reads what has changed. Returns how long to wait before reading again, if a file may be half written.
    fn read(&mut self) -> Option<Duration> {
        let names = match names(&self.path) {
            Ok(names) => names,
            // A directory that has gone says nothing about its pods: they are not plaintext because a mount is missing.
            Err(e) => {
                self.report(Some(e.to_string()));
                return None;
            }
        };
        self.report(None);
        self.known.retain(|name, _| names.contains(name));
        let mut again = None;
        for name in names {
            let path = self.path.join(&name);
            if self.known.contains_key(&name)
                && let Some(young) = youth(&path)
            {
                again = Some(again.unwrap_or(young).max(young));
                continue;
            }
            let read = file::read_limited(&path, MAX_FILE);
            let known = self.known.entry(name.clone()).or_insert_with(|| Known {
                name,
                hash: None,
                objects: Objects::default(),
            });
            if let Err(e) = read.and_then(|content| known.take(&content)) {
                log::warn!(target: "cni-agent", "{}: {e}; what it said before still counts", path.display());
            }
        }
        again
    }

    fn report(&mut self, trouble: Option<String>) {
        if self.trouble != trouble {
            match &trouble {
                Some(e) => log::warn!(target: "cni-agent", "{e}; what it said before still counts"),
                None => log::info!(target: "cni-agent", "{} can be read again", self.path.display()),
            }
            self.trouble = trouble;
        }
    }
}

impl Known {
    fn take(&mut self, content: &[u8]) -> Result<()> {
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        let hash = Some(hasher.finish());
        if self.hash == hash {
            return Ok(());
        }
        self.hash = hash;
        let text = std::str::from_utf8(content).context("not UTF-8")?;
        if text.trim().is_empty() {
            return Err(crate::invalid!("the file is empty"));
        }
        self.objects = object::decode(text)?;
        Ok(())
    }
}

/// The files that hold objects, in order.
fn names(path: &Path) -> Result<BTreeSet<String>> {
    let what = || format!("read the directory {}", path.display());
    let mut names = BTreeSet::new();
    for item in std::fs::read_dir(path).with_context(what)? {
        let name = item.with_context(what)?.file_name();
        // A name that is not UTF-8 is not one of ours; a dot file is one that is being written.
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
        if [".json", ".yaml", ".yml"].iter().any(|end| name.ends_with(end)) {
            names.insert(name.to_owned());
        }
    }
    Ok(names)
}

/// How long until a file that was just written to counts as settled.
fn youth(path: &Path) -> Option<Duration> {
    let modified = std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()?;
    // A time in the future comes of a clock that was set back: it says nothing.
    let age = clock::wall().duration_since(modified).ok()?;
    YOUNG.checked_sub(age).filter(|left| !left.is_zero())
}

/// What was told last.
#[derive(Default)]
struct Store {
    pods: BTreeMap<String, Pod>,
    namespaces: BTreeMap<String, Namespace>,
    /// Pods that are in two files: said once.
    doubles: HashSet<(String, PodName)>,
}

impl Store {
    /// Compares with what was told last: namespaces first, since pods are decided by their labels.
    fn update<'a>(&mut self, files: impl Iterator<Item = (&'a str, &'a Objects)>) -> Vec<Notice> {
        let mut pods = BTreeMap::new();
        let mut names = HashSet::new();
        let mut namespaces = BTreeMap::new();
        let mut doubles = HashSet::new();
        for (file, objects) in files {
            for namespace in &objects.namespaces {
                namespaces.entry(namespace.name.clone()).or_insert_with(|| namespace.clone());
            }
            for pod in &objects.pods {
                if pods.contains_key(&pod.uid) || !names.insert(pod.name.clone()) {
                    let double = (file.to_owned(), pod.name.clone());
                    if !self.doubles.contains(&double) {
                        log::warn!(target: "cni-agent", "pod {} is in {file} and in an earlier file, which counts", pod.name);
                    }
                    doubles.insert(double);
                } else {
                    pods.insert(pod.uid.clone(), pod.clone());
                }
            }
        }
        self.doubles = doubles;
        let mut notices = Vec::new();
        let old = std::mem::replace(&mut self.namespaces, namespaces);
        for (name, namespace) in &self.namespaces {
            if old.get(name) != Some(namespace) {
                notices.push(Notice::Namespace(namespace.clone()));
            }
        }
        notices.extend(old.into_keys().filter(|name| !self.namespaces.contains_key(name)).map(Notice::NamespaceGone));
        let old = std::mem::replace(&mut self.pods, pods);
        // Who is gone first: a new pod may have the name of an old one.
        let gone = old.keys().filter(|uid| !self.pods.contains_key(*uid)).cloned().map(Notice::PodGone);
        notices.extend(gone);
        for (uid, pod) in &self.pods {
            if old.get(uid) != Some(pod) {
                notices.push(Notice::Pod(Box::new(pod.clone())));
            }
        }
        notices
    }
}
