//! The source of standalone mode: pods and namespaces as JSON or YAML objects in the files of a directory.
//!
//! A file that cannot be parsed keeps its last good content, and so does one that is being written at this moment: a
//! half-written file is not a deletion. Of a pod that is in two files the one in the first file by name counts. A
//! directory that cannot be read says nothing, not that there are no pods.

use super::files::{Files, YOUNG};
use super::store::Store;
use crate::error::Result;
use crate::node::event::{Event, Notice, Unread};
use crate::pod::types::PodName;
use crate::sys::{clock, thread, watch};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Changes that come together are taken together.
const SETTLE: Duration = Duration::from_millis(10);
/// Between looks where the kernel does not tell of changes, or the directory cannot be read.
const POLL: Duration = Duration::from_secs(2);
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
    let mut reader = Reader {
        files: Files::new(path),
        store: Store::default(),
        lookups: Vec::new(),
        synced: false,
        trouble: None,
        unread: Vec::new(),
        inbox,
    };
    while let Ok(again) = reader.turn() {
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
                reader.lookups.push((name, clock::now()));
            }
        }
    }
}

/// The agent ends.
struct NobodyListens;

/// The reading thread: what it has read, and what it has told.
struct Reader<'a> {
    files: Files,
    store: Store,
    /// Questions that wait for an answer, and since when.
    lookups: Vec<(PodName, Instant)>,
    synced: bool,
    /// Why the directory cannot be read, as told last.
    trouble: Option<String>,
    /// The files that cannot be read, as told last.
    unread: Vec<Unread>,
    inbox: &'a Sender<Event>,
}

impl Reader<'_> {
    /// Reads what has changed, tells of it, and answers questions. Returns how long to wait at most before the next
    /// turn; fails when nobody listens.
    fn turn(&mut self) -> Result<Option<Duration>, NobodyListens> {
        let (again, trouble) = match self.files.read() {
            Ok(again) => (again, None),
            Err(e) => (Some(POLL), Some(e.to_string())),
        };
        if self.trouble != trouble {
            self.trouble.clone_from(&trouble);
            self.send(Event::Condition("pod directory", trouble))?;
        }
        for notice in self.store.update(self.files.objects()) {
            self.tell(notice)?;
        }
        let unread = self.files.unread();
        if self.unread != unread {
            self.unread.clone_from(&unread);
            self.tell(Notice::Unread(unread))?;
        }
        if self.trouble.is_none() && !std::mem::replace(&mut self.synced, true) {
            self.tell(Notice::Synced)?;
        }
        self.answer(again.is_none())?;
        Ok(again)
    }

    /// Answers the questions whose time has come: no file is half written (`settled`), or it took long enough. Other
    /// files that are always being written must not hold up an answer.
    fn answer(&mut self, settled: bool) -> Result<(), NobodyListens> {
        let enough = |asked: Instant| clock::now().saturating_duration_since(asked) > 2 * YOUNG;
        let answerable = |asked: Instant| settled || self.trouble.is_some() || enough(asked);
        let due: Vec<_> = self.lookups.extract_if(.., |(_, asked)| answerable(*asked)).collect();
        for (name, _) in due {
            let trouble = self.trouble.clone().filter(|_| !self.store.knows(&name));
            self.tell(Notice::LookedUp(name, trouble))?;
        }
        Ok(())
    }

    fn tell(&self, notice: Notice) -> Result<(), NobodyListens> {
        self.send(Event::Source(notice))
    }

    fn send(&self, event: Event) -> Result<(), NobodyListens> {
        self.inbox.send(event).map_err(|_| NobodyListens)
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
            let describe = |notice| match notice {
                Notice::Pod(pod) => format!("{} {}", pod.uid, pod.labels["l"]),
                Notice::PodGone(uid) => format!("{uid} gone"),
                Notice::Namespace(namespace) => format!("namespace {}", namespace.name),
                Notice::NamespaceGone(name) => format!("namespace {name} gone"),
                other => format!("{other:?}"),
            };
            self.store.update(self.files.objects()).into_iter().map(describe).collect()
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
            let told = |unread: &Unread| {
                unread.text.contains("a.json: ") && unread.text.ends_with("; what it said before still counts")
            };
            assert!(unread.len() == 1 && unread.iter().all(told), "cut at {cut}: {unread:?}");
        }
        script.write("a.json", &whole);
        assert_eq!(script.read(), ["a 2"]);
        assert_eq!(script.files.unread(), []);
        script.write("new.json", "{");
        assert_eq!(script.read(), NOTHING);
        assert!(script.files.unread()[0].text.ends_with("; it will be read when it can be"));
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
