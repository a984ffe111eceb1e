//! The files of a pod directory, read again when they change.

use crate::error::{Context, Error, Result};
use crate::logging::Repeat;
use crate::node::event::{Subject, Unread};
use crate::pod::object::{self, Objects};
use crate::sys::{clock, file};
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A known file that was written to within this time may still be half written.
pub(super) const YOUNG: Duration = Duration::from_millis(100);
/// The largest file that is read.
const MAX_FILE: usize = 16 << 20;

/// What the files said when they were last read well.
pub(super) struct Files {
    path: PathBuf,
    known: BTreeMap<String, Known>,
    /// The directory was read once.
    listed: bool,
    trouble: Repeat,
}

struct Known {
    name: String,
    /// The hash of the content that was last looked at, good or not.
    hash: Option<u64>,
    objects: Objects,
    /// Why it could not be read the last time.
    unread: Option<String>,
    trouble: Repeat,
}

impl Files {
    /// Nothing has been read yet.
    pub(super) fn new(path: PathBuf) -> Self {
        Files { path, known: BTreeMap::new(), listed: false, trouble: Repeat::once() }
    }

    /// Reads what has changed. Returns how long to wait before reading again, if a file may be half written. Fails
    /// when the directory cannot be read; its pods are not plaintext because a mount is missing.
    pub(super) fn read(&mut self) -> Result<Option<Duration>> {
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

    /// What the files said when they were last read well, by their names.
    pub(super) fn objects(&self) -> impl Iterator<Item = (&str, &Objects)> {
        self.known.values().map(|known| (known.name.as_str(), &known.objects))
    }

    /// The files that cannot be read, and why.
    pub(super) fn unread(&self) -> Vec<Unread> {
        let texts = self.known.values().filter_map(|known| known.unread.clone());
        texts.map(|text| Unread { subject: Subject::File, text }).collect()
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
