//! What is in the conf dir, beside it, and in the bin dir.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a file that no runtime could load may still be in the middle of being written. Until then nothing is
/// decided from its being broken.
const SETTLE: Duration = Duration::from_secs(2);

/// A configuration file as found.
#[derive(Debug, Clone)]
pub struct Found {
    /// Its text as [`conf::decode`](crate::install::conf::decode) gives it, or why it could not be read.
    pub content: Result<Vec<u8>, String>,
    /// Who may read it.
    pub access: Access,
    /// Time since it was last written.
    pub age: Duration,
}

/// Permission bits and owner of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Permission bits.
    pub mode: u32,
    /// User and group; `None`: whoever writes it.
    pub owner: Option<(u32, u32)>,
}

/// Everything a plan depends on: the candidates of the conf dir, and our copies of what was there before us, by name.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// The conf dir.
    pub net: BTreeMap<String, Found>,
    /// `RUN/replaced`: files as they were before we edited or replaced them.
    pub saved: BTreeMap<String, Found>,
    /// The names in the bin dir; `None` when they cannot be listed.
    pub plugins: Option<BTreeSet<String>>,
}

impl Listing {
    /// What is in a file of the conf dir; what was last good in it, if it has been left empty: a power cut does that
    /// to a file that another program wrote without fsync.
    pub(super) fn content(&self, name: &str) -> Result<&[u8], String> {
        let found = self.net.get(name).ok_or("is gone")?;
        let content = found.content.as_ref().map_err(|e| format!("cannot be read ({e})"))?;
        let saved = self.saved.get(name).and_then(|saved| saved.content.as_ref().ok());
        Ok(saved.filter(|_| content.is_empty() && found.age >= SETTLE).unwrap_or(content))
    }

    pub(super) fn is_empty(&self, name: &str) -> bool {
        self.net.get(name).is_some_and(|found| found.content.as_ref().is_ok_and(Vec::is_empty))
    }

    /// Whether a file may be in the middle of being written.
    pub(super) fn is_unsettled(&self, name: &str) -> bool {
        self.net.get(name).is_some_and(|found| found.age < SETTLE)
    }
}
