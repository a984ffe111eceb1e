//! Ways to misbehave.

use std::time::Duration;

/// What a request meets instead of, or besides, a right answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// This status, perhaps with `Retry-After` in seconds; nothing is done.
    Answer(u16, Option<u32>),
    /// The connection stays open and nothing ever comes.
    Silence,
    /// The head of the answer comes, then nothing (a watch that went dead).
    SilenceAfterHead,
    /// The connection is closed without an answer.
    Close,
    /// The body breaks off after so many bytes, without its end.
    CutBody(usize),
    /// The body comes in pieces of so many bytes, each after a pause.
    Drip(usize, Duration),
    /// The body is not JSON.
    Garbage,
    /// A watch begins with this ERROR event and ends.
    ErrorEvent(u16),
    /// A watch ends, as watches do, after so many events.
    EndAfter(usize),
    /// A watch sends every event twice, and those that come together in the wrong order.
    Disorder,
    /// A watch sends no bookmarks.
    NoBookmarks,
    /// A list has another page after each, with the same items.
    EndlessPages,
    /// A list has nothing in it.
    EmptyList,
    /// Metadata was asked for, and whole objects come.
    WholeObjects,
}

/// A fault, for which requests, and how often.
#[derive(Debug)]
pub struct Planned {
    /// `list pods`, `watch namespaces`, `get pods`, `patch pods`, …; `list *`, `* pods` and `*` for more.
    pub request: String,
    /// None: until told otherwise.
    pub times: Option<usize>,
    pub fault: Fault,
}

impl Planned {
    pub fn concerns(&self, verb: &str, plural: &str) -> bool {
        if self.request == "*" {
            return true;
        }
        let (wanted, of) = self.request.split_once(' ').expect("VERB PLURAL");
        (wanted == "*" || wanted == verb) && (of == "*" || of == plural)
    }
}
