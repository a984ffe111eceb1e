//! Files of the agent's own making, kept as what they tell of changes.
//!
//! One writer thread a file, off the path of everything: it takes all changes that have come and writes once. A failure
//! is logged once and tried again until it works.

use crate::error::Result;
use crate::logging::{News, Repeat};
use crate::sys::file::{self, Mode};
use crate::sys::{clock, thread};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two tries while the file cannot be written.
const RETRY: Duration = Duration::from_secs(1);

/// What a file is made of.
pub trait Content: Send + 'static {
    /// What happens to it.
    type Change: Send;
    /// What is told in the file, for messages: `what is published about pods`.
    const WHAT: &'static str;
    /// Takes a change.
    fn change(&mut self, change: Self::Change);
    /// The file; `None` while what is there is to stay.
    fn render(&self) -> Result<Option<Vec<u8>>>;
    /// Whether what is on disk may do harm once it is out of date: then no file is better than an old one.
    const PERISHABLE: bool = false;
}

/// The running writer of a file. Dropped, it writes what has come and ends.
#[derive(Debug)]
pub struct Writer<C: Content> {
    changes: Option<Sender<C::Change>>,
    thread: Option<JoinHandle<()>>,
}

impl<C: Content> Writer<C> {
    /// Starts the writer of a file that is to have this content.
    pub fn start(name: &str, path: PathBuf, content: C) -> Result<Self> {
        let (changes, receiver) = channel();
        let thread = thread::spawn(name, move || write(&path, content, &receiver))?;
        Ok(Writer { changes: Some(changes), thread: Some(thread) })
    }

    /// Takes a change; never blocks.
    pub fn tell(&self, change: C::Change) {
        if let Some(changes) = &self.changes {
            // The writer only ends after this value is dropped.
            let _ = changes.send(change);
        }
    }
}

impl<C: Content> Drop for Writer<C> {
    fn drop(&mut self) {
        self.changes = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn write<C: Content>(path: &Path, mut content: C, changes: &Receiver<C::Change>) {
    let mut trouble = Repeat::once();
    let mut pending = true;
    loop {
        let change = if pending { changes.recv_timeout(RETRY) } else { changes.recv().map_err(Into::into) };
        let over = matches!(change, Err(RecvTimeoutError::Disconnected));
        pending |= change.is_ok();
        for change in change.into_iter().chain(changes.try_iter()) {
            content.change(change);
        }
        if pending {
            let written = content.render().and_then(|text| match text {
                Some(text) => file::write_if_changed(path, &text, Mode(0o600), false).map(drop),
                None => Ok(()),
            });
            pending = written.is_err();
            if pending && C::PERISHABLE {
                // Takes no space. What it says if this fails as well was said before.
                let _ = file::remove(path);
            }
            report(C::WHAT, &mut trouble, written);
        }
        if over {
            return;
        }
    }
}

/// Says it once when writing fails, and once when it works again.
fn report(what: &str, trouble: &mut Repeat, written: Result<()>) {
    match trouble.note(&written, clock::now()) {
        News::Failing(e, _) => log::error!("{what} is not on disk; trying again: {e}"),
        News::Over(past) => log::warn!(tries = past.times; "{what} is on disk again"),
        News::Nothing => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invalid;

    /// A file that cannot be written.
    struct Perishable;

    impl Content for Perishable {
        type Change = ();
        const WHAT: &'static str = "nothing";
        const PERISHABLE: bool = true;
        fn change(&mut self, (): ()) {}
        fn render(&self) -> Result<Option<Vec<u8>>> {
            Err(invalid!("no space"))
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "an earlier run's file")]
    fn rather_no_file_than_an_old_one_that_harms() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"old").unwrap();
        drop(Writer::start("test-writer", path.clone(), Perishable).unwrap());
        assert!(!path.exists());
    }
}
