//! Writing `RUN/state.json`: what would be the pods' annotations, where there is no API server to take them.
//!
//! One writer thread, off the path of everything: it takes all changes that have come and writes once. A failure is
//! logged once and tried again until it works.

use super::event::Redirection;
use super::memory::{Published, render};
use crate::error::{Error, Result};
use crate::logging::Repeat;
use crate::pod::types::PodName;
use crate::sys::file::{self, Mode};
use crate::sys::{clock, thread};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two tries while the file cannot be written.
const RETRY: Duration = Duration::from_secs(1);

/// The name of the file in the run directory.
pub const FILE: &str = "state.json";

/// A change: uid, the pod's name, what is published now.
pub type Change = (String, PodName, Option<Redirection>);

/// The running writer. Dropped, it writes what has come and ends.
#[derive(Debug)]
pub struct Publisher {
    changes: Option<Sender<Change>>,
    thread: Option<JoinHandle<()>>,
}

impl Publisher {
    /// Starts the writer with what the file says now.
    pub fn start(run_dir: &Path, published: Published) -> Result<Self> {
        let path = run_dir.join(FILE);
        let (changes, receiver) = channel();
        let thread = thread::spawn("state-writer", move || write(&path, published, &receiver))?;
        Ok(Publisher { changes: Some(changes), thread: Some(thread) })
    }

    /// Takes a change; never blocks.
    pub fn publish(&self, change: Change) {
        if let Some(changes) = &self.changes {
            // The writer only ends after this value is dropped.
            let _ = changes.send(change);
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.changes = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn write(path: &Path, mut published: Published, changes: &Receiver<Change>) {
    let mut trouble = Repeat::new(Duration::MAX);
    let mut pending = true;
    loop {
        let change = if pending { changes.recv_timeout(RETRY) } else { changes.recv().map_err(Into::into) };
        let over = matches!(change, Err(RecvTimeoutError::Disconnected));
        pending |= change.is_ok();
        for (uid, name, redirection) in change.into_iter().chain(changes.try_iter()) {
            match redirection {
                Some(redirection) => published.insert(uid, (name, redirection)),
                None => published.remove(&uid),
            };
        }
        if pending {
            let written = render(&published).and_then(|text| file::write_if_changed(path, &text, Mode(0o600), false));
            pending = written.is_err();
            report(&mut trouble, written.err());
        }
        if over {
            return;
        }
    }
}

/// Says it once when writing fails, and once when it works again.
fn report(trouble: &mut Repeat, failure: Option<Error>) {
    let now = clock::now();
    match failure {
        Some(e) => {
            if trouble.failed(&e.to_string(), now).is_some() {
                log::error!(target: "cni-agent", "what is published about pods is not on disk; trying again: {e}");
            }
        }
        None => {
            if let Some(past) = trouble.worked(now) {
                log::warn!(target: "cni-agent", tries = past.times; "what is published about pods is on disk again");
            }
        }
    }
}
