//! The asking side: one request, one answer.

use super::body::{Body, Framing, framing};
use super::{MAX_HEAD, MAX_HEADERS};
use crate::error::{Error, Kind, Result};
use crate::invalid;
use std::io::{ErrorKind, Read, Write};

/// An answer, read to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Body, at most as long as the caller allowed.
    pub body: Vec<u8>,
}

/// The bytes of a request. `host` only fills the header that HTTP/1.1 demands.
pub fn encode_request(method: &str, path: &str, host: &str, json: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        json.len()
    )
    .into_bytes();
    bytes.extend_from_slice(json);
    bytes
}

/// Sends `request` (see [`encode_request`]) and reads the answer, whose body is at most `limit` bytes.
///
/// A peer that answers before it has read the whole request (a refusal) is listened to. Errors: `TimedOut` when the
/// stream's deadline passes, `PeerGone` when the peer closes too early, `Invalid` for what is not HTTP or too long.
pub fn exchange(stream: &mut (impl Read + Write), request: &[u8], limit: usize) -> Result<Response> {
    match stream.write_all(request).and_then(|()| stream.flush()) {
        Ok(()) => read_response(stream, limit),
        Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
            read_response(stream, limit).map_err(|_| Error::from(e).context("send the request"))
        }
        Err(e) => Err(Error::from(e).context("send the request")),
    }
}

/// Reads the answer to a request that was sent. Errors as [`exchange`].
pub fn read_response(stream: &mut impl Read, limit: usize) -> Result<Response> {
    let mut input = Vec::new();
    let head = loop {
        match parse_head(&input)? {
            // An interim answer (100 Continue): the real one follows.
            Some(head) if (100..200).contains(&head.status) => drop(input.drain(..head.length)),
            Some(head) => break head,
            None => {
                if read_some(stream, &mut input)? == 0 {
                    return Err(cut_short());
                }
            }
        }
    };
    let bad = |fault| invalid!("bad HTTP answer: {fault}");
    let mut body = Body::new(head.framing, limit).map_err(bad)?;
    body.feed(input.get(head.length..).unwrap_or_default()).map_err(bad)?;
    while !body.is_complete() {
        input.clear();
        if read_some(stream, &mut input)? == 0 {
            break;
        }
        body.feed(&input).map_err(bad)?;
    }
    Ok(Response { status: head.status, body: body.finish().ok_or_else(cut_short)? })
}

fn cut_short() -> Error {
    Error::of(Kind::PeerGone, "the peer closed the connection before its answer was complete")
}

fn read_some(stream: &mut impl Read, input: &mut Vec<u8>) -> Result<usize> {
    let mut buffer = [0; 8 << 10];
    loop {
        match stream.read(&mut buffer) {
            Ok(n) => {
                input.extend_from_slice(buffer.get(..n).unwrap_or_default());
                return Ok(n);
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::from(e).context("read the answer")),
        }
    }
}

#[derive(Debug)]
struct Head {
    status: u16,
    framing: Framing,
    /// Bytes of the head itself.
    length: usize,
}

fn parse_head(input: &[u8]) -> Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response.parse(input) {
        Ok(httparse::Status::Complete(length)) if length <= MAX_HEAD => length,
        Ok(httparse::Status::Partial) if input.len() < MAX_HEAD => return Ok(None),
        Ok(_) => return Err(invalid!("bad HTTP answer: the head is longer than {MAX_HEAD} bytes")),
        Err(e) => return Err(invalid!("not an HTTP answer: {e}")),
    };
    let status = response.code.unwrap_or_default();
    let framing = match status {
        // These never have a body (RFC 9112, section 6.3).
        100..200 | 204 | 304 => Framing::Length(0),
        _ => framing(response.headers, Framing::ToEnd).map_err(|fault| invalid!("bad HTTP answer: {fault}"))?,
    };
    Ok(Some(Head { status, framing, length }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Gives its bytes in pieces of `step`, then ends.
    struct Slow(VecDeque<u8>, usize);

    impl Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let n = self.1.min(buffer.len());
            self.0.read(&mut buffer[..n])
        }
    }

    fn read(input: &[u8], step: usize) -> Result<(u16, String)> {
        let response = read_response(&mut Slow(input.iter().copied().collect(), step), 20)?;
        Ok((response.status, String::from_utf8(response.body).unwrap()))
    }

    #[test]
    fn answers_are_read_however_they_are_framed_and_cut() {
        let check = |input: &str, expected: Result<(u16, &str), Kind>| {
            for step in 1..=input.len() {
                let got = read(input.as_bytes(), step).map_err(|e| e.kind());
                assert_eq!(got, expected.map(|(s, b)| (s, b.to_owned())), "{input:?} in steps of {step}");
            }
        };
        check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", Ok((200, "{}")));
        check("HTTP/1.1 500 Oops\r\n\r\nplain text", Ok((500, "plain text")));
        check("HTTP/1.0 200\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", Ok((200, "{}")));
        check("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Ok((200, "")));
        check("HTTP/1.1 204 No Content\r\n\r\n", Ok((204, "")));
        check("HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n", Err(Kind::Invalid));
        check("HTTP/1.1 200 OK\r\n\r\n123456789012345678901", Err(Kind::Invalid));
        check("SSH-2.0-OpenSSH_9.6\r\n", Err(Kind::Invalid));
        check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{", Err(Kind::PeerGone));
    }

    #[test]
    fn an_answer_cut_anywhere_is_an_error() {
        for whole in [
            &b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"[..],
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        ] {
            for end in 0..whole.len() {
                assert_eq!(read(&whole[..end], 5).unwrap_err().kind(), Kind::PeerGone, "cut at {end}");
            }
        }
    }

    #[test]
    fn endless_heads_end() {
        let endless = format!("HTTP/1.1 200 OK\r\nA: {}", "b".repeat(2 * MAX_HEAD));
        assert_eq!(read(endless.as_bytes(), 1000).unwrap_err().kind(), Kind::Invalid);
    }

    #[test]
    fn a_refusal_before_the_end_of_the_request_is_heard() {
        struct Refusing(Slow);
        impl Read for Refusing {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                self.0.read(buffer)
            }
        }
        impl Write for Refusing {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let answer = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n";
        let mut stream = Refusing(Slow(answer.iter().copied().collect(), 9));
        assert_eq!(exchange(&mut stream, b"x", 10).unwrap().status, 413);
        let mut silent = Refusing(Slow(VecDeque::new(), 1));
        assert_eq!(exchange(&mut silent, b"x", 10).unwrap_err().kind(), Kind::PeerGone);
    }
}
