//! Lists of header fields, and which of them make a message (RFC 9113, section 8).

use std::fmt;

/// Header fields in their order, pseudo-header fields first. All bytes are in one piece of memory.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers {
    bytes: Vec<u8>,
    /// Where each name and each value ends.
    ends: Vec<(usize, usize)>,
}

impl Headers {
    /// An empty list.
    pub fn new() -> Self {
        Headers::default()
    }

    /// Adds a field; its name must be in lower case.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.push(name, value);
        self
    }

    /// Adds a field; its name must be in lower case.
    pub fn push(&mut self, name: &str, value: impl AsRef<[u8]>) {
        self.push_bytes(name.as_bytes(), value.as_ref());
    }

    pub(super) fn push_bytes(&mut self, name: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(name);
        let name_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((name_end, self.bytes.len()));
    }

    /// The fields, name and value.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut start = 0;
        self.ends.iter().map(move |(name_end, end)| {
            let field = self.bytes.get(start..*end).unwrap_or_default();
            let (name, value) = field.split_at_checked(name_end - start).unwrap_or_default();
            start = *end;
            (name, value)
        })
    }

    /// The value of the first field of this name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter().find(|(found, _)| *found == name.as_bytes()).map(|(_, value)| value)
    }

    /// The value of the first field of this name as text; `None` when it is not UTF-8.
    pub fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.get(name)?).ok()
    }

    /// How many fields there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// `:status` of an answer.
    pub fn status(&self) -> Option<u16> {
        let status = self.text(":status").filter(|text| text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit()))?;
        status.parse().ok().filter(|status| *status >= 100)
    }

    /// The length that the sender announces for the body; an error when it is none or says different things.
    pub(super) fn content_length(&self) -> Result<Option<u64>, Malformed> {
        let mut announced = None;
        for (_, value) in self.iter().filter(|(name, _)| *name == b"content-length") {
            let digits = std::str::from_utf8(value).ok().filter(|v| v.bytes().all(|b| b.is_ascii_digit()));
            let length = digits.and_then(|v| v.parse().ok()).ok_or(Malformed)?;
            if announced.replace(length).is_some_and(|earlier| earlier != length) {
                return Err(Malformed);
            }
        }
        Ok(announced)
    }
}

/// Credentials are not shown.
impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |(name, value): (&[u8], &[u8])| {
            let value = if matches!(name, b"authorization" | b"cookie") { b"(not shown)" } else { value };
            (String::from_utf8_lossy(name).into_owned(), String::from_utf8_lossy(value).into_owned())
        };
        f.debug_map().entries(self.iter().map(shown)).finish()
    }
}

/// The fields do not make a message; it is an error of the stream alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// What a list of fields is the head or the tail of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Request,
    Answer,
    Trailers,
}

/// Checks the fields of a message (RFC 9113, sections 8.2 and 8.3).
pub(super) fn check(headers: &Headers, part: Part) -> Result<(), Malformed> {
    let known: &[&[u8]] = match part {
        Part::Request => &[b":method", b":scheme", b":path", b":authority"],
        Part::Answer => &[b":status"],
        Part::Trailers => &[],
    };
    // Bit n: the pseudo-header field `known[n]` was there.
    let (mut seen, mut regular) = (0u8, false);
    for (name, value) in headers.iter() {
        if name.first() == Some(&b':') {
            let position = known.iter().position(|known| *known == name).ok_or(Malformed)?;
            if regular || seen & 1 << position != 0 {
                return Err(Malformed);
            }
            seen |= 1 << position;
        } else {
            regular = true;
            check_name(name, value)?;
        }
        check_value(value)?;
    }
    match part {
        Part::Request if seen & 0b111 != 0b111 => return Err(Malformed),
        Part::Request if !headers.get(":path").is_some_and(|path| path.starts_with(b"/") || path == b"*") => {
            return Err(Malformed);
        }
        Part::Answer if headers.status().is_none() => return Err(Malformed),
        _ => {}
    }
    headers.content_length().map(drop)
}

fn check_name(name: &[u8], value: &[u8]) -> Result<(), Malformed> {
    let token = |b: &u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~');
    let connection: [&[u8]; 5] = [b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"];
    let bad = name.is_empty() || !name.iter().all(token) || connection.contains(&name);
    if bad || name == b"te" && !value.eq_ignore_ascii_case(b"trailers") { Err(Malformed) } else { Ok(()) }
}

fn check_value(value: &[u8]) -> Result<(), Malformed> {
    let blank = |b: Option<&u8>| matches!(b, Some(b' ' | b'\t'));
    let bad = value.iter().any(|b| matches!(b, 0 | b'\r' | b'\n')) || blank(value.first()) || blank(value.last());
    if bad { Err(Malformed) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(text: &str) -> Headers {
        text.lines().fold(Headers::new(), |headers, line| {
            let (name, value) = line.split_once('=').unwrap();
            headers.with(name, value)
        })
    }

    #[test]
    fn messages_are_told_from_what_is_none() {
        let sound = |part, text: &str| assert_eq!(check(&headers(text), part), Ok(()), "{text}");
        let malformed = |part, text: &str| assert_eq!(check(&headers(text), part), Err(Malformed), "{text}");
        const START: &str = ":method=POST\n:scheme=http\n:path=/a";
        sound(Part::Request, START);
        for rest in [":authority=a", "te=trailers", "x=", "x-y_z!=ü", "content-length=0\ncontent-length=0"] {
            sound(Part::Request, &format!("{START}\n{rest}"));
        }
        for rest in [
            ":path=/b",
            ":status=200",
            ":x=1",
            "x=1\n:authority=a",
            "X=1",
            "=1",
            "x y=1",
            "x= 1",
            "x=1\t",
            "x=a\rb",
            "x=a\0b",
            "te=gzip",
            "connection=close",
            "upgrade=h2c",
            "transfer-encoding=chunked",
            "keep-alive=1",
            "proxy-connection=1",
            "content-length=-1",
            "content-length=1\ncontent-length=2",
            "content-length=+1",
        ] {
            malformed(Part::Request, &format!("{START}\n{rest}"));
        }
        malformed(Part::Request, ":method=POST\n:scheme=http");
        malformed(Part::Request, ":method=POST\n:path=/");
        malformed(Part::Request, ":scheme=http\n:path=/");
        malformed(Part::Request, ":method=POST\n:scheme=http\n:path=");
        sound(Part::Answer, ":status=200\ncontent-type=application/grpc");
        for status in ["", "20", "2000", "2x0", "099", "+20"] {
            malformed(Part::Answer, &format!(":status={status}"));
        }
        malformed(Part::Answer, "server=x");
        sound(Part::Trailers, "grpc-status=0");
        malformed(Part::Trailers, ":status=200");
    }

    #[test]
    fn credentials_are_not_shown() {
        let shown = format!("{:?}", headers("authorization=Bearer secret\nclusterid=a"));
        assert!(!shown.contains("secret") && shown.contains("clusterid"), "{shown}");
    }

    #[test]
    fn fields_are_found_by_name() {
        let headers = headers("a=1\nb=2\na=3");
        assert_eq!((headers.len(), headers.text("a"), headers.get("c")), (3, Some("1"), None));
        assert_eq!(headers.iter().map(|(_, value)| value[0]).collect::<Vec<_>>(), b"123");
    }
}
