//! Watches: one event a line, for as long as the server likes.

use super::client::OBJECT_LIMIT;
use super::status::Failure;
use serde::Deserialize;
use serde::de::Error;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read};

/// A line buffer that grew beyond this is given back, bytes.
const KEEP: usize = 256 << 10;

/// What a line of a watch says; objects as their text.
#[derive(Debug)]
pub enum WatchEvent<'a> {
    /// ADDED or MODIFIED: the object as it is now.
    Upserted(&'a str),
    /// DELETED, or no longer selected: the object as it was last.
    Deleted(&'a str),
    /// BOOKMARK: nothing changed up to this version.
    Bookmark(String),
    /// ERROR: the watch is over.
    Error(Failure),
}

/// Decodes one line. `title`: verb and resource, for messages.
pub fn decode<'a>(title: &str, line: &'a str) -> Result<WatchEvent<'a>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Line<'a> {
        #[serde(borrow, rename = "type")]
        kind: Cow<'a, str>,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Bookmark {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        resource_version: String,
    }
    let Line { kind, object } = serde_json::from_str(line)?;
    match &*kind {
        "ADDED" | "MODIFIED" => Ok(WatchEvent::Upserted(object.get())),
        "DELETED" => Ok(WatchEvent::Deleted(object.get())),
        "BOOKMARK" => {
            let bookmark: Bookmark = serde_json::from_str(object.get())?;
            Ok(WatchEvent::Bookmark(bookmark.metadata.resource_version))
        }
        "ERROR" => Ok(WatchEvent::Error(Failure::status(title, 500, object.get()))),
        _ => Err(serde_json::Error::custom(format_args!("unknown event type {kind:?}"))),
    }
}

/// The body of a watch that may be silent because there is nothing to say: after one read in vain the server is asked
/// whether it is there, and only after two the watch is.
pub struct Patient<R, F> {
    body: R,
    is_there: F,
    asked: bool,
}

impl<R: Read, F: FnMut() -> bool> Patient<R, F> {
    /// Reads from `body`, each read with a limit of its own.
    pub fn new(body: R, is_there: F) -> Self {
        Patient { body, is_there, asked: false }
    }
}

impl<R: Read, F: FnMut() -> bool> Read for Patient<R, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.body.read(buffer) {
                Err(e) if is_silence(&e) && !self.asked && (self.is_there)() => self.asked = true,
                read => {
                    self.asked = false;
                    return read;
                }
            }
        }
    }
}

/// ureq's own errors come inside those of I/O.
fn is_silence(e: &io::Error) -> bool {
    let inside = e.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>());
    e.kind() == io::ErrorKind::TimedOut || matches!(inside, Some(ureq::Error::Timeout(_)))
}

/// Splits a body into lines of bounded length.
pub struct Lines<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
}

impl<R: Read> Lines<R> {
    /// Splits what `reader` gives.
    pub fn new(reader: R) -> Self {
        Lines { reader: BufReader::with_capacity(16 << 10, reader), line: Vec::new() }
    }

    /// The next line that is not empty; none at the end. A last line without a line feed was cut, and is dropped.
    pub fn next_line(&mut self) -> io::Result<Option<&str>> {
        loop {
            self.line.clear();
            self.line.shrink_to(KEEP);
            let read = (&mut self.reader).take(OBJECT_LIMIT).read_until(b'\n', &mut self.line)?;
            match self.line.pop() {
                None => return Ok(None),
                Some(b'\n') if self.line.trim_ascii().is_empty() => {}
                Some(b'\n') => {
                    let text = std::str::from_utf8(&self.line);
                    return text.map(Some).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e));
                }
                Some(_) if read as u64 == OBJECT_LIMIT => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "an event is too long"));
                }
                Some(_) => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn check(line: &str, expected: &str) {
        let got = match decode("watch things", line) {
            Ok(WatchEvent::Upserted(text)) => format!("upserted {text}"),
            Ok(WatchEvent::Deleted(text)) => format!("deleted {text}"),
            Ok(WatchEvent::Bookmark(v)) => format!("bookmark {v}"),
            Ok(WatchEvent::Error(e)) => format!("error {e}"),
            Err(e) => format!("bad: {e}"),
        };
        assert!(got.starts_with(expected), "{line}: {got}");
    }

    #[test]
    fn events() {
        check(r#"{"type":"ADDED","object":{"v":1}}"#, r#"upserted {"v":1"#);
        check(r#"{"object":{"v":1,"x":[{}]},"type":"MODIFIED"}"#, r#"upserted {"v":1"#);
        check(r#"{"type":"DELETED","object":{"v":1}}"#, r#"deleted {"v":1}"#);
        check(
            r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"},"spec":{"containers":null}}}"#,
            "bookmark 9",
        );
        check(
            r#"{"type":"ERROR","object":{"status":"Failure","message":"old","code":410}}"#,
            "error watch things: 410 Gone: old",
        );
        check(r#"{"type":"ERROR","object":{}}"#, "error watch things: 500");
        check(r#"{"type":"RENAMED","object":{}}"#, "bad: unknown event type \"RENAMED\"");
        check(r#"{"type":"ADDED"}"#, "bad: missing field `object`");
        check("<html>", "bad: ");
    }

    #[test]
    fn truncated_anywhere_is_an_error() {
        let line = r#"{"type":"ADDED","object":{"v":1}}"#;
        for end in 0..line.len() {
            check(&line[..end], "bad: ");
        }
    }

    #[test]
    fn patience() {
        /// Says these things, one a read.
        struct Script(Vec<io::Result<&'static [u8]>>);
        impl Read for Script {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.0.remove(0).map(|bytes| (&mut buffer[..bytes.len()]).write(bytes).unwrap())
            }
        }
        let silence = || Err(io::ErrorKind::TimedOut.into());
        let check = |script: Vec<io::Result<&'static [u8]>>, there: bool, asked: usize, last: io::ErrorKind| {
            let mut times = 0;
            let mut body = Patient::new(Script(script), || {
                times += 1;
                there
            });
            let error = loop {
                if let Err(e) = body.read(&mut [0; 8]) {
                    break e.kind();
                }
            };
            assert_eq!((times, error), (asked, last));
        };
        check(vec![silence(), Ok(b"a"), silence(), Ok(b"b"), silence(), silence()], true, 3, io::ErrorKind::TimedOut);
        check(vec![Ok(b"a"), silence()], false, 1, io::ErrorKind::TimedOut);
        check(vec![Err(io::ErrorKind::ConnectionReset.into())], true, 0, io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn lines() {
        let mut lines = Lines::new(&b"a\n\n \r\nbc\ncut"[..]);
        assert_eq!(lines.next_line().unwrap(), Some("a"));
        assert_eq!(lines.next_line().unwrap(), Some("bc"));
        assert_eq!(lines.next_line().unwrap(), None);
        let mut endless = Lines::new(std::io::repeat(b'x'));
        assert_eq!(endless.next_line().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
