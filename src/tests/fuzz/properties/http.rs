//! Requests and answers of HTTP, whole and in pieces.

use ferrule::http::MAX_BODY;
use ferrule::http::client::{self, encode_request, read_response};
use ferrule::http::server::{self, Unread, read_request, write_response};
use std::io::{self, Read, Write};

/// A peer that sends so many bytes at a time.
struct Peer<'a> {
    input: &'a [u8],
    step: usize,
}

impl Read for Peer<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let step = self.step.min(buffer.len());
        self.input.take(step as u64).read(buffer).inspect(|read| self.input = &self.input[*read..])
    }
}

impl Write for Peer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The first byte says how many bytes come at a time, the rest is what comes.
fn peer(input: &[u8]) -> Option<(usize, &[u8])> {
    input.split_first().map(|(step, input)| (usize::from(*step) + 1, input))
}

/// A request: the same however it is cut, and the same when it is written again.
pub fn request(input: &[u8]) {
    let Some((step, input)) = peer(input) else { return };
    let read = |step| match read_request(&mut Peer { input, step }) {
        Ok(request) => Some(request),
        Err(Unread::Gone) => None,
        Err(Unread::Refused(refusal)) => {
            assert!(matches!(refusal.status, 400 | 413 | 505), "{refusal:?}");
            let reason = String::from_utf8(refusal.body).unwrap();
            assert!(reason.ends_with('\n') && reason.lines().count() == 1, "{reason:?}");
            None
        }
    };
    let whole = read(usize::MAX);
    assert_eq!(read(step), whole, "{step} bytes at a time");
    let Some(request) = whole else { return };
    assert!(request.body.len() <= MAX_BODY);
    let server::Request { method, path, query, body } = &request;
    let target = if query.is_empty() { path.clone() } else { format!("{path}?{query}") };
    let written = encode_request(method, &target, "localhost", body);
    assert_eq!(read_request(&mut Peer { input: &written, step }).unwrap(), request);
}

/// An answer, likewise.
pub fn response(input: &[u8]) {
    const LIMIT: usize = 4 << 10;
    let Some((step, input)) = peer(input) else { return };
    let read = |step| read_response(&mut Peer { input, step }, LIMIT).ok();
    let whole = read(usize::MAX);
    assert_eq!(read(step), whole, "{step} bytes at a time");
    let Some(response) = whole else { return };
    assert!(response.body.len() <= LIMIT && response.status >= 200 || response.status < 100, "{response:?}");
    if response.status >= 200 {
        let client::Response { status, body } = response.clone();
        let mut written = Vec::new();
        write_response(&mut written, &server::Response { status, content_type: "text/plain", body }).unwrap();
        assert_eq!(read_response(&mut Peer { input: &written, step }, LIMIT).unwrap(), response);
    }
}
