//! The source of standalone mode: pods and namespaces as JSON or YAML objects in the files of a directory.
//!
//! A file that cannot be parsed keeps its last good content, and so does one that is being written at this moment: a
//! half-written file is not a deletion. Of a pod that is in two files the one in the first file by name counts. A
//! directory that cannot be read says nothing, not that there are no pods.

use crate::error::{Context, Error, Result};
use crate::logging::Repeat;
use crate::node::event::{Event, Notice};
use crate::pod::object::{self, Objects};
use crate::pod::types::{Namespace, Pod, PodName};
use crate::sys::{clock, file, thread, watch};
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Changes that come together are taken together.
const SETTLE: Duration = Duration::from_millis(10);
/// Between looks where the kernel does not tell of changes, or the directory cannot be read.
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
    let mut files = Files::new(path);
    let mut store = Store::default();
    let mut lookups: Vec<(PodName, Instant)> = Vec::new();
    let (mut synced, mut missing, mut unread) = (false, None, Vec::new());
    loop {
        let (again, trouble) = match files.read() {
            Ok(again) => (again, None),
            Err(e) => (Some(POLL), Some(e.to_string())),
        };
        if missing != trouble {
            missing.clone_from(&trouble);
            if inbox.send(Event::Condition("pod directory", trouble.clone())).is_err() {
                return;
            }
        }
        for notice in store.update(files.known.values().map(|known| (known.name.as_str(), &known.objects))) {
            if inbox.send(Event::Source(notice)).is_err() {
                return;
            }
        }
        let broken = files.unread();
        if unread != broken {
            unread.clone_from(&broken);
            if inbox.send(Event::Source(Notice::Unread(broken))).is_err() {
                return;
            }
        }
        if trouble.is_none()
            && !std::mem::replace(&mut synced, true)
            && inbox.send(Event::Source(Notice::Synced)).is_err()
        {
            return;
        }
        // Other files that are always being written must not hold up an answer.
        let enough = |asked: Instant| clock::now().saturating_duration_since(asked) > 2 * YOUNG;
        let answerable = |asked: Instant| again.is_none() || trouble.is_some() || enough(asked);
        for (name, _) in lookups.extract_if(.., |(_, asked)| answerable(*asked)) {
            let trouble = trouble.clone().filter(|_| !store.knows(&name));
            if inbox.send(Event::Source(Notice::LookedUp(name, trouble))).is_err() {
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
    /// The directory was read once.
    listed: bool,
    trouble: Repeat,
}

struct Known {
    name: String,
    /// Of the content that was last looked at, good or not.
    hash: Option<u64>,
    objects: Objects,
    /// Why it could not be read the last time.
    unread: Option<String>,
    trouble: Repeat,
}

impl Files {
    fn new(path: PathBuf) -> Self {
        Files { path, known: BTreeMap::new(), listed: false, trouble: Repeat::once() }
    }

    /// Reads what has changed. Returns how long to wait before reading again, if a file may be half written. Fails
    /// when the directory cannot be read; its pods are not plaintext because a mount is missing.
    fn read(&mut self) -> Result<Option<Duration>> {
        let names = names(&self.path);
        report(&mut self.trouble, names.as_ref().err(), self.listed);
        let names = names?;
        self.listed = true;
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
                unread: None,
                trouble: Repeat::once(),
            });
            if read.is_err() {
                known.hash = None;
            }
            match read.and_then(|content| known.take(&content)) {
                Ok(false) => {}
                result => {
                    let result = result.with_context(|| path.display().to_string());
                    let said_before = known.objects != Objects::default();
                    known.unread = report(&mut known.trouble, result.as_ref().err(), said_before);
                }
            }
        }
        Ok(again)
    }

    /// The files that cannot be read, and why.
    fn unread(&self) -> Vec<String> {
        self.known.values().filter_map(|known| known.unread.clone()).collect()
    }
}

/// Says it once when something cannot be read, and once when it can be again. Returns what is to be said while it cannot.
fn report(trouble: &mut Repeat, error: Option<&Error>, said_before: bool) -> Option<String> {
    let now = clock::now();
    match error {
        Some(e) => {
            let so = if said_before { "what it said before still counts" } else { "it will be read when it can be" };
            let text = format!("{e}; {so}");
            if trouble.failed(&e.to_string(), now).is_some() {
                log::warn!("{text}");
            }
            Some(text)
        }
        None => {
            if trouble.worked(now).is_some() {
                log::info!("the pod files can be read again");
            }
            None
        }
    }
}

impl Known {
    /// Takes new content; returns whether it is new.
    fn take(&mut self, content: &[u8]) -> Result<bool> {
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        let hash = Some(hasher.finish());
        if self.hash == hash {
            return Ok(false);
        }
        self.hash = hash;
        let text = std::str::from_utf8(content).context("not UTF-8")?;
        if text.trim().is_empty() {
            return Err(crate::invalid!("the file is empty"));
        }
        self.objects = object::decode(text)?;
        Ok(true)
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
    /// Whether a pod of this name was told of.
    fn knows(&self, name: &PodName) -> bool {
        self.pods.values().any(|pod| pod.name == *name)
    }

    /// Compares with what was told last: namespaces first, since pods are decided by their labels.
    fn update<'a>(&mut self, files: impl Iterator<Item = (&'a str, &'a Objects)>) -> Vec<Notice> {
        let mut pods = BTreeMap::new();
        let mut names = HashMap::new();
        let mut namespaces = BTreeMap::new();
        let mut doubles = HashSet::new();
        for (file, objects) in files {
            for namespace in &objects.namespaces {
                namespaces.entry(namespace.name.clone()).or_insert_with(|| namespace.clone());
            }
            for pod in &objects.pods {
                // The one that has its uid, or its name.
                let first = pods.get(&pod.uid).map_or(&pod.name, |first: &Pod| &first.name);
                if let Some(earlier) = names.get(first) {
                    let double = (file.to_owned(), pod.name.clone());
                    if !self.doubles.contains(&double) {
                        log::warn!("pod {} is in {earlier}, which counts, and in {file}", pod.name);
                    }
                    doubles.insert(double);
                } else {
                    names.insert(pod.name.clone(), file);
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

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests make the files the code under test meets")]
mod tests {
    use super::*;

    fn pod(name: &str, label: &str) -> String {
        format!(r#"{{"kind":"Pod","metadata":{{"name":"{name}","uid":"{name}","labels":{{"l":"{label}"}}}}}}"#)
    }

    /// A directory that is read without its threads; every file is old enough.
    struct Script {
        dir: tempfile::TempDir,
        files: Files,
        store: Store,
    }

    impl Script {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let files = Files::new(dir.path().to_owned());
            Script { dir, files, store: Store::default() }
        }

        fn write(&self, name: &str, text: &str) {
            let file = std::fs::File::create(self.dir.path().join(name)).unwrap();
            std::io::Write::write_all(&mut &file, text.as_bytes()).unwrap();
            file.set_modified(clock::wall() - Duration::from_secs(10)).unwrap();
        }

        fn read(&mut self) -> Vec<String> {
            let _ = self.files.read();
            let files = self.files.known.values().map(|known| (known.name.as_str(), &known.objects));
            let describe = |notice| match notice {
                Notice::Pod(pod) => format!("{} {}", pod.uid, pod.labels["l"]),
                Notice::PodGone(uid) => format!("{uid} gone"),
                Notice::Namespace(namespace) => format!("namespace {}", namespace.name),
                Notice::NamespaceGone(name) => format!("namespace {name} gone"),
                other => format!("{other:?}"),
            };
            self.store.update(files).into_iter().map(describe).collect()
        }
    }

    const NOTHING: [&str; 0] = [];

    #[test]
    fn files_come_change_and_go() {
        let mut script = Script::new();
        assert_eq!(script.read(), NOTHING);
        script.write("a.json", &pod("a", "1"));
        script.write(
            "b.yaml",
            "kind: Namespace\nmetadata: {name: ns}\n---\nkind: Pod\nmetadata: {name: b, uid: b, labels: {l: x}}\n",
        );
        script.write("c.txt", "not ours");
        script.write(".d.json", &pod("d", "1"));
        assert_eq!(script.read(), ["namespace ns", "a 1", "b x"]);
        assert_eq!(script.read(), NOTHING);
        script.write("a.json", &pod("a", "2"));
        assert_eq!(script.read(), ["a 2"]);
        std::fs::remove_file(script.dir.path().join("b.yaml")).unwrap();
        assert_eq!(script.read(), ["namespace ns gone", "b gone"]);
    }

    #[test]
    fn what_cannot_be_read_keeps_what_it_said() {
        let mut script = Script::new();
        script.write("a.json", &pod("a", "1"));
        script.read();
        let whole = pod("a", "2");
        for cut in 0..whole.len() {
            script.write("a.json", &whole[..cut]);
            assert_eq!(script.read(), NOTHING, "cut at {cut}");
            let unread = script.files.unread();
            let told =
                |text: &String| text.contains("a.json: ") && text.ends_with("; what it said before still counts");
            assert!(unread.len() == 1 && unread.iter().all(told), "cut at {cut}: {unread:?}");
        }
        script.write("a.json", &whole);
        assert_eq!(script.read(), ["a 2"]);
        assert_eq!(script.files.unread(), NOTHING);
        script.write("new.json", "{");
        assert_eq!(script.read(), NOTHING);
        assert!(script.files.unread()[0].ends_with("; it will be read when it can be"));
        std::fs::remove_file(script.dir.path().join("new.json")).unwrap();
        assert_eq!((script.read(), script.files.unread()), (Vec::new(), Vec::new()));
        // One that was just written to is looked at a little later.
        std::fs::write(script.dir.path().join("a.json"), pod("a", "3")).unwrap();
        assert!(script.files.read().unwrap().is_some_and(|pause| pause <= YOUNG));
        assert_eq!(script.read(), NOTHING);
        script.write("a.json", &pod("a", "3"));
        assert_eq!(script.read(), ["a 3"]);
        // Nor is a directory that has gone a node without pods.
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::rename(script.dir.path(), elsewhere.path().join("moved")).unwrap();
        assert_eq!(script.read(), NOTHING);
        std::fs::create_dir(script.dir.path()).unwrap();
        assert_eq!(script.read(), ["a gone"]);
    }

    #[test]
    fn a_directory_that_is_missing_is_not_read_until_it_appears() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pods");
        let (inbox, events) = channel();
        let directory = Directory::start(&path, inbox).unwrap();
        let next = || format!("{:?}", events.recv_timeout(Duration::from_secs(10)).unwrap());
        let missing = next();
        let why = format!("read the directory {}: No such file", path.display());
        assert!(missing.starts_with("Condition(\"pod directory\", Some(") && missing.contains(&why), "{missing}");
        directory.look_up(PodName { namespace: "default".to_owned(), name: "a".to_owned() });
        let answer = next();
        assert!(answer.contains("LookedUp") && answer.contains(&why), "{answer}");
        let made = dir.path().join("made");
        std::fs::create_dir(&made).unwrap();
        std::fs::write(made.join("a.json"), pod("a", "1")).unwrap();
        std::fs::rename(made, &path).unwrap();
        assert_eq!(next(), "Condition(\"pod directory\", None)");
        assert!(next().starts_with("Source(Pod("));
        assert_eq!(next(), "Source(Synced)");
    }

    #[test]
    fn of_two_files_the_first_by_name_counts() {
        let mut script = Script::new();
        script.write("b.json", &pod("a", "second"));
        assert_eq!(script.read(), ["a second"]);
        script.write("a.json", &pod("a", "first"));
        assert_eq!(script.read(), ["a first"]);
        std::fs::remove_file(script.dir.path().join("a.json")).unwrap();
        assert_eq!(script.read(), ["a second"]);
        // The same name under another uid is a new pod.
        script.write("b.json", &pod("a", "new").replace(r#""uid":"a""#, r#""uid":"z""#));
        assert_eq!(script.read(), ["a gone", "z new"]);
    }
}
