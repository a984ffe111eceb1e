//! The serving side: read one request, write one answer.

use super::body::{Body, Fault, Framing, framing};
use super::{MAX_BODY, MAX_HEAD, MAX_HEADERS};
use std::io::{ErrorKind, Read, Write};

/// A request, read to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `POST`, …
    pub method: String,
    /// The target without its query.
    pub path: String,
    /// What follows `?` in the target, else empty.
    pub query: String,
    /// At most [`MAX_BODY`] bytes.
    pub body: Vec<u8>,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// `Content-Type`.
    pub content_type: &'static str,
    /// Body.
    pub body: Vec<u8>,
}

impl Response {
    /// An answer in plain text.
    pub fn text(status: u16, body: impl Into<String>) -> Self {
        Response { status, content_type: "text/plain; charset=utf-8", body: body.into().into_bytes() }
    }

    /// An answer in JSON; `body` is the JSON text.
    pub fn json(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Response { status, content_type: "application/json", body: body.into() }
    }
}

/// Why there is no request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unread {
    /// The peer closed or broke the connection; there is nobody to answer.
    Gone,
    /// The request is bad, too long, too slow or of another protocol: answer with this, a status (400, 408, 413 or
    /// 505) and one line that says why.
    Refused(Response),
}

impl Unread {
    fn refused(status: u16, reason: impl std::fmt::Display) -> Self {
        Unread::Refused(Response::text(status, format!("{reason}\n")))
    }
}

impl From<Fault> for Unread {
    fn from(fault: Fault) -> Self {
        Unread::refused(if matches!(fault, Fault::TooLong(_)) { 413 } else { 400 }, fault)
    }
}

/// Reads one request. The stream bounds the time: when it fails with `TimedOut` or `WouldBlock` the request counts as
/// too slow. `Expect: 100-continue` is answered when the rest of the body is still to come.
pub fn read_request(stream: &mut (impl Read + Write)) -> Result<Request, Unread> {
    let mut input = Vec::new();
    let (head, used) = loop {
        if let Some(found) = parse_head(&input)? {
            break found;
        }
        match read_some(stream, &mut input)? {
            0 if input.is_empty() => return Err(Unread::Gone),
            0 => return Err(Unread::refused(400, "the request ends within its head")),
            _ => {}
        }
    };
    let mut body = Body::new(head.framing, MAX_BODY)?;
    body.feed(input.get(used..).unwrap_or_default())?;
    if head.expects_continue && !body.is_complete() {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").map_err(|_| Unread::Gone)?;
    }
    while !body.is_complete() {
        input.clear();
        if read_some(stream, &mut input)? == 0 {
            return Err(Unread::refused(400, "the request ends within its body"));
        }
        body.feed(&input)?;
    }
    let body = body.finish().ok_or(Unread::Gone)?;
    let (path, query) = head.target.split_once('?').unwrap_or((&head.target, ""));
    Ok(Request { method: head.method, path: path.to_owned(), query: query.to_owned(), body })
}

/// Writes an answer. An error means that the peer does not want it any more.
pub fn write_response(stream: &mut impl Write, response: &Response) -> std::io::Result<()> {
    let mut bytes = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        response.status,
        reason_phrase(response.status),
        response.content_type,
        response.body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(&response.body);
    stream.write_all(&bytes)?;
    stream.flush()
}

/// Appends what one read gives; 0 at the end of the stream.
fn read_some(stream: &mut impl Read, input: &mut Vec<u8>) -> Result<usize, Unread> {
    let mut buffer = [0; 8 << 10];
    loop {
        match stream.read(&mut buffer) {
            Ok(n) => {
                input.extend_from_slice(buffer.get(..n).unwrap_or_default());
                return Ok(n);
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
                return Err(Unread::refused(408, "the request did not arrive in time"));
            }
            Err(_) => return Err(Unread::Gone),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Head {
    method: String,
    target: String,
    framing: Framing,
    expects_continue: bool,
}

/// Parses a request's head; `None` while it is not all there. Also returns its length.
fn parse_head(input: &[u8]) -> Result<Option<(Head, usize)>, Unread> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let used = match request.parse(input) {
        Ok(httparse::Status::Complete(used)) if used <= MAX_HEAD => used,
        Ok(httparse::Status::Partial) if input.len() < MAX_HEAD => return Ok(None),
        Ok(_) => return Err(Unread::refused(413, format_args!("the head is longer than {MAX_HEAD} bytes"))),
        Err(httparse::Error::Version) => {
            return Err(Unread::refused(505, "only HTTP/1.0 and HTTP/1.1 are spoken here"));
        }
        Err(e) => return Err(Unread::refused(400, format_args!("the head cannot be read: {e}"))),
    };
    let (Some(method), Some(target)) = (request.method, request.path) else {
        return Err(Unread::refused(400, "the head has no method or no target"));
    };
    // Whoever talks to us does so directly: the other forms of RFC 9112, section 3.2, are for proxies.
    if !target.starts_with('/') {
        return Err(Unread::refused(400, "the request's target is not a path"));
    }
    let expects_continue = request
        .headers
        .iter()
        .any(|h| h.name.eq_ignore_ascii_case("expect") && h.value.trim_ascii().eq_ignore_ascii_case(b"100-continue"));
    let head = Head {
        method: method.to_owned(),
        target: target.to_owned(),
        framing: framing(request.headers, Framing::Length(0))?,
        expects_continue,
    };
    Ok(Some((head, used)))
}

fn reason_phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer whose bytes come in pieces; afterwards the stream ends, or fails with `then`.
    struct Peer<'a> {
        input: &'a [u8],
        step: usize,
        then: Option<ErrorKind>,
        written: Vec<u8>,
    }

    impl Read for Peer<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let n = self.step.min(self.input.len()).min(buffer.len());
            if let (0, Some(kind)) = (n, self.then) {
                return Err(kind.into());
            }
            buffer[..n].copy_from_slice(&self.input[..n]);
            self.input = &self.input[n..];
            Ok(n)
        }
    }

    impl Write for Peer<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.written.write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn peer(input: &[u8], step: usize, then: Option<ErrorKind>) -> Peer<'_> {
        Peer { input, step, then, written: Vec::new() }
    }

    fn status(input: &[u8], step: usize, then: Option<ErrorKind>) -> Result<Request, u16> {
        read_request(&mut peer(input, step, then)).map_err(|e| match e {
            Unread::Gone => 0,
            Unread::Refused(response) => {
                let body = String::from_utf8(response.body).unwrap();
                assert!(body.ends_with('\n') && body.lines().count() == 1, "one line: {body:?}");
                response.status
            }
        })
    }

    const GO: &[u8] = b"POST /cmdadd HTTP/1.1\r\nHost: pluginevent.sock\r\nUser-Agent: Go-http-client/1.1\r\n\
        Content-Length: 12\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n{\"Netns\":\"\"}";

    #[test]
    fn requests_are_read_however_they_are_cut() {
        for step in 1..GO.len() {
            let request = status(GO, step, Some(ErrorKind::TimedOut)).unwrap();
            assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/cmdadd"));
            assert_eq!(request.body, b"{\"Netns\":\"\"}");
        }
        let chunked = b"POST /x?a=b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
        let request = status(chunked, 3, Some(ErrorKind::TimedOut)).unwrap();
        assert_eq!((request.path.as_str(), request.query.as_str(), request.body.as_slice()), ("/x", "a=b", &b"{}"[..]));
        assert_eq!(status(b"GET /readyz HTTP/1.0\r\n\r\n", 1, None).unwrap().body, b"");
    }

    #[test]
    fn a_request_cut_anywhere_is_refused_when_the_peer_closes_or_stalls() {
        assert_eq!(status(b"", 1, None), Err(0));
        for end in 1..GO.len() {
            assert_eq!(status(&GO[..end], 7, None), Err(400), "closed after {end}");
            assert_eq!(status(&GO[..end], 7, Some(ErrorKind::TimedOut)), Err(408), "stalled after {end}");
            assert_eq!(status(&GO[..end], 7, Some(ErrorKind::ConnectionReset)), Err(0), "reset after {end}");
        }
    }

    #[test]
    fn bad_requests_have_their_status() {
        let check = |input: &[u8], expected: u16| {
            assert_eq!(status(input, 1000, None), Err(expected), "{}", input.escape_ascii());
        };
        check(b"\x16\x03\x01\x02\x00", 400);
        check(b"POST /\r\n\r\n", 400);
        check(b"GET ? HTTP/1.1\r\n\r\n", 400);
        check(b"GET http://node/readyz HTTP/1.1\r\n\r\n", 400);
        check(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505);
        check(b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400);
        check(b"POST / HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n", 413);
        check(b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400);
        check(format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(MAX_HEAD)).as_bytes(), 413);
        check(format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(MAX_HEADERS + 1)).as_bytes(), 400);
        let mut long = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n200000\r\n".to_vec();
        long.resize(0x0020_0000, b'a');
        check(&long, 413);
    }

    #[test]
    fn expectation_is_answered_only_when_the_body_is_missing() {
        let head = b"POST / HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 2\r\n\r\n{}";
        let mut slow = peer(head, head.len() - 2, None);
        read_request(&mut slow).unwrap();
        assert_eq!(slow.written, b"HTTP/1.1 100 Continue\r\n\r\n");
        let mut fast = peer(head, 1000, None);
        read_request(&mut fast).unwrap();
        assert_eq!(fast.written, b"");
    }

    #[test]
    fn answers_close_the_connection() {
        let mut out = Vec::new();
        write_response(&mut out, &Response::text(503, "starting\n")).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{text}");
        assert!(text.contains("\r\nContent-Length: 9\r\nConnection: close\r\n\r\nstarting\n"), "{text}");
    }
}
