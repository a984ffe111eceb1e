//! Message bodies: which framing the head announces, and a decoder that is fed whatever bytes have come. Pure.

use std::fmt;

/// How the end of a body is found (RFC 9112, section 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// `Content-Length`.
    Length(usize),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// The body ends when the peer closes; answers only.
    ToEnd,
}

/// Why a body cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Longer than the limit, in bytes.
    TooLong(usize),
    /// It is not what the head announced.
    Malformed(&'static str),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::TooLong(limit) => write!(f, "the body is longer than {limit} bytes"),
            Fault::Malformed(why) => f.write_str(why),
        }
    }
}

/// Longest line with a chunk's size, and longest trailer, bytes.
const MAX_CHUNK_LINE: usize = 4 << 10;

/// Reads the framing from the headers; `default` is that of a message which announces none.
pub(super) fn framing(headers: &[httparse::Header<'_>], default: Framing) -> Result<Framing, Fault> {
    let mut length = None;
    let mut chunked = false;
    for header in headers {
        if header.name.eq_ignore_ascii_case("content-length") {
            let value = std::str::from_utf8(header.value)
                .ok()
                .map(str::trim)
                .filter(|v| !v.is_empty() && v.bytes().all(|b| b.is_ascii_digit()))
                .and_then(|v| v.parse::<usize>().ok())
                .ok_or(Fault::Malformed("Content-Length is not a number"))?;
            if length.is_some_and(|earlier| earlier != value) {
                return Err(Fault::Malformed("two different Content-Length headers"));
            }
            length = Some(value);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            if chunked || !header.value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                return Err(Fault::Malformed("the only Transfer-Encoding understood is chunked"));
            }
            chunked = true;
        }
    }
    match (chunked, length) {
        (true, Some(_)) => Err(Fault::Malformed("both Content-Length and Transfer-Encoding")),
        (true, None) => Ok(Framing::Chunked),
        (false, Some(length)) => Ok(Framing::Length(length)),
        (false, None) => Ok(default),
    }
}

/// A body in the making.
#[derive(Debug)]
pub(super) struct Body {
    framing: Framing,
    limit: usize,
    bytes: Vec<u8>,
    /// Chunked only: bytes not decoded yet, and where the decoder stands in them.
    raw: Vec<u8>,
    chunk: Chunk,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunk {
    Size,
    Data(usize),
    /// The line end behind the data.
    DataEnd,
    Trailer,
    Done,
}

impl Body {
    /// Starts a body of at most `limit` bytes; one that announces more is refused before it is read.
    pub(super) fn new(framing: Framing, limit: usize) -> Result<Self, Fault> {
        if matches!(framing, Framing::Length(length) if length > limit) {
            return Err(Fault::TooLong(limit));
        }
        Ok(Body { framing, limit, bytes: Vec::new(), raw: Vec::new(), chunk: Chunk::Size })
    }

    /// Takes the next bytes. What follows the end of the body is ignored: there is one message per connection.
    pub(super) fn feed(&mut self, input: &[u8]) -> Result<(), Fault> {
        match self.framing {
            Framing::Length(length) => {
                let missing = length.saturating_sub(self.bytes.len());
                self.keep(input.get(..missing).unwrap_or(input))
            }
            Framing::ToEnd => self.keep(input),
            Framing::Chunked => {
                self.raw.extend_from_slice(input);
                let raw = std::mem::take(&mut self.raw);
                let used = self.decode_chunks(&raw)?;
                self.raw = raw.get(used..).unwrap_or_default().to_vec();
                Ok(())
            }
        }
    }

    /// Whether the whole body is there. A body that ends with the connection never is by itself.
    pub(super) fn is_complete(&self) -> bool {
        match self.framing {
            Framing::Length(length) => self.bytes.len() >= length,
            Framing::Chunked => self.chunk == Chunk::Done,
            Framing::ToEnd => false,
        }
    }

    /// The body when the peer sends nothing more; `None` when it is cut short.
    pub(super) fn finish(self) -> Option<Vec<u8>> {
        (self.framing == Framing::ToEnd || self.is_complete()).then_some(self.bytes)
    }

    fn keep(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if bytes.len() > self.limit - self.bytes.len() {
            return Err(Fault::TooLong(self.limit));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Decodes as far as `raw` goes and returns how much of it is used up.
    fn decode_chunks(&mut self, raw: &[u8]) -> Result<usize, Fault> {
        let mut at = 0;
        while let Some(rest) = raw.get(at..).filter(|rest| !rest.is_empty()) {
            match self.chunk {
                Chunk::Size => match httparse::parse_chunk_size(rest) {
                    Ok(httparse::Status::Complete((used, size))) if used <= MAX_CHUNK_LINE => {
                        at += used;
                        let size = usize::try_from(size).ok().filter(|size| *size <= self.limit - self.bytes.len());
                        let size = size.ok_or(Fault::TooLong(self.limit))?;
                        self.chunk = if size == 0 { Chunk::Trailer } else { Chunk::Data(size) };
                    }
                    Ok(httparse::Status::Partial) if rest.len() <= MAX_CHUNK_LINE => return Ok(at),
                    _ => return Err(Fault::Malformed("the size of a chunk cannot be read")),
                },
                Chunk::Data(size) => {
                    let part = rest.get(..size).unwrap_or(rest);
                    self.keep(part)?;
                    at += part.len();
                    self.chunk = if part.len() == size { Chunk::DataEnd } else { Chunk::Data(size - part.len()) };
                }
                Chunk::DataEnd => match rest {
                    [b'\r', b'\n', ..] => {
                        at += 2;
                        self.chunk = Chunk::Size;
                    }
                    [b'\r'] => return Ok(at),
                    _ => return Err(Fault::Malformed("a chunk is longer than its size says")),
                },
                Chunk::Trailer => match rest.iter().position(|b| *b == b'\n') {
                    Some(end) if end <= MAX_CHUNK_LINE => {
                        at += end + 1;
                        if matches!(rest.get(..end), Some([] | [b'\r'])) {
                            self.chunk = Chunk::Done;
                        }
                    }
                    None if rest.len() <= MAX_CHUNK_LINE => return Ok(at),
                    _ => return Err(Fault::Malformed("the trailer is too long")),
                },
                Chunk::Done => return Ok(raw.len()),
            }
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header<'a>(name: &'a str, value: &'a str) -> httparse::Header<'a> {
        httparse::Header { name, value: value.as_bytes() }
    }

    #[test]
    fn framing_follows_the_headers_and_refuses_ambiguity() {
        let check = |headers: &[(&'static str, &'static str)], expected: Option<Framing>| {
            let headers: Vec<_> = headers.iter().map(|(n, v)| header(n, v)).collect();
            assert_eq!(framing(&headers, Framing::ToEnd).ok(), expected, "{headers:?}");
        };
        check(&[], Some(Framing::ToEnd));
        check(&[("content-length", " 12 ")], Some(Framing::Length(12)));
        check(&[("Content-Length", "12"), ("Content-Length", "12")], Some(Framing::Length(12)));
        check(&[("Content-Length", "12"), ("Content-Length", "13")], None);
        check(&[("Content-Length", "-1")], None);
        check(&[("Content-Length", "+1")], None);
        check(&[("Content-Length", "")], None);
        check(&[("Content-Length", "99999999999999999999999")], None);
        check(&[("Transfer-Encoding", "Chunked")], Some(Framing::Chunked));
        check(&[("Transfer-Encoding", "gzip, chunked")], None);
        check(&[("Transfer-Encoding", "chunked"), ("Content-Length", "1")], None);
    }

    /// Feeds `input` in pieces of `step` bytes.
    fn decode(framing: Framing, limit: usize, input: &[u8], step: usize) -> Result<Option<Vec<u8>>, Fault> {
        let mut body = Body::new(framing, limit)?;
        for piece in input.chunks(step) {
            body.feed(piece)?;
        }
        Ok(body.finish())
    }

    #[test]
    fn bodies_decode_the_same_however_they_are_cut() {
        let check = |framing, limit, input: &str, expected: Result<Option<&str>, ()>| {
            for step in 1..=input.len().max(1) {
                let got = decode(framing, limit, input.as_bytes(), step);
                let got = got.map(|b| b.map(|b| String::from_utf8(b).unwrap())).map_err(|_| ());
                assert_eq!(got, expected.map(|b| b.map(str::to_owned)), "{input:?} in steps of {step}");
            }
        };
        check(Framing::Length(5), 5, "hello", Ok(Some("hello")));
        check(Framing::Length(5), 5, "hello and more", Ok(Some("hello")));
        check(Framing::Length(0), 5, "", Ok(Some("")));
        check(Framing::Length(6), 5, "", Err(()));
        check(Framing::ToEnd, 5, "hello", Ok(Some("hello")));
        check(Framing::ToEnd, 4, "hello", Err(()));
        check(Framing::Chunked, 9, "4\r\nWiki\r\n5;x=y\r\npedia\r\n0\r\n\r\n", Ok(Some("Wikipedia")));
        check(Framing::Chunked, 9, "0\r\nTrailer: x\r\n\r\nmore", Ok(Some("")));
        check(Framing::Chunked, 8, "4\r\nWiki\r\n5\r\npedia\r\n0\r\n\r\n", Err(()));
        check(Framing::Chunked, 9, "4\r\nWikiX\r\n0\r\n\r\n", Err(()));
        check(Framing::Chunked, 9, "zz\r\n", Err(()));
        check(Framing::Chunked, 9, "ffffffffffffffff\r\nx", Err(()));
    }

    #[test]
    fn a_body_cut_anywhere_is_incomplete_and_never_wrong() {
        let whole = b"4\r\nWiki\r\n5\r\npedia\r\n0\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(decode(Framing::Chunked, 100, &whole[..end], 3), Ok(None), "cut at {end}");
        }
        for end in 0..5 {
            assert_eq!(decode(Framing::Length(5), 100, &b"hello"[..end], 2), Ok(None), "cut at {end}");
        }
    }

    #[test]
    fn endless_chunk_lines_and_trailers_are_refused() {
        // However they arrive.
        for input in [
            format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(MAX_CHUNK_LINE)),
            format!("0\r\n{}\r\n\r\n", "x".repeat(MAX_CHUNK_LINE)),
        ] {
            for step in [1, 1000, input.len()] {
                assert!(decode(Framing::Chunked, 100, input.as_bytes(), step).is_err(), "in steps of {step}");
            }
        }
        let endless = vec![b'1'; 2 * MAX_CHUNK_LINE];
        assert!(decode(Framing::Chunked, 100, &endless, 1000).is_err());
        let mut trailer = b"0\r\n".to_vec();
        trailer.resize(3 * MAX_CHUNK_LINE, b'a');
        assert!(decode(Framing::Chunked, 100, &trailer, 1000).is_err());
    }
}
