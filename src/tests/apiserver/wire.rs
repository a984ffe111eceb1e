//! HTTP/1.1, the server's side: keep-alive, lengths, chunks.

use std::io::{self, Read, Write};

/// A request, whole.
#[derive(Debug, Clone, Default)]
pub struct Request {
    pub method: String,
    /// The text as it came, escaped.
    pub target: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// A value of the query, unescaped; empty when absent.
    pub fn query(&self, key: &str) -> String {
        let query = self.target.split_once('?').map_or("", |(_, q)| q);
        let pair = query.split('&').find_map(|pair| pair.split_once('=').filter(|(k, _)| *k == key));
        pair.map_or(String::new(), |(_, value)| unescape(value))
    }
}

pub fn unescape(text: &str) -> String {
    let (mut out, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&byte, tail)) = rest.split_first() {
        let hex = (byte == b'%').then(|| tail.get(..2)).flatten();
        match hex.and_then(|h| u8::from_str_radix(std::str::from_utf8(h).ok()?, 16).ok()) {
            Some(decoded) => {
                out.push(decoded);
                rest = &tail[2..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8(out).unwrap()
}

/// Reads one request; none when the peer closed between two.
pub fn read_request(stream: &mut impl Read, left_over: &mut Vec<u8>) -> io::Result<Option<Request>> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "bad request");
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Request::new(&mut headers);
        if let httparse::Status::Complete(size) = head.parse(left_over).map_err(|_| bad())? {
            let mut request = Request {
                method: head.method.unwrap_or_default().to_owned(),
                target: head.path.unwrap_or_default().to_owned(),
                headers: Vec::new(),
                body: Vec::new(),
            };
            for header in head.headers.iter() {
                let value = String::from_utf8_lossy(header.value).into_owned();
                request.headers.push((header.name.to_ascii_lowercase(), value));
            }
            let length = request.header("content-length").map_or(Ok(0), str::parse).map_err(|_| bad())?;
            left_over.drain(..size);
            while left_over.len() < length {
                if !read_more(stream, left_over)? {
                    return Err(bad());
                }
            }
            request.body = left_over.drain(..length).collect();
            return Ok(Some(request));
        }
        if !read_more(stream, left_over)? {
            return if left_over.is_empty() { Ok(None) } else { Err(bad()) };
        }
    }
}

fn read_more(stream: &mut impl Read, into: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    let read = stream.read(&mut buffer)?;
    into.extend_from_slice(&buffer[..read]);
    Ok(read > 0)
}

/// A short answer, its length in the head.
pub fn answer(out: &mut impl Write, code: u16, headers: &str, body: &str) -> io::Result<()> {
    let reason = reason(code);
    let head =
        format!("HTTP/1.1 {code} {reason}\r\nContent-Type: application/json\r\nCache-Control: no-cache, private\r\n");
    out.write_all(format!("{head}{headers}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes())?;
    out.flush()
}

/// The head of an answer in chunks.
pub fn begin_chunked(out: &mut impl Write) -> io::Result<()> {
    out.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nCache-Control: no-cache, private\r\nTransfer-Encoding: chunked\r\n\r\n",
    )?;
    out.flush()
}

/// One chunk; an empty one ends the body.
pub fn chunk(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let mut all = format!("{:x}\r\n", bytes.len()).into_bytes();
    all.extend_from_slice(bytes);
    all.extend_from_slice(b"\r\n");
    out.write_all(&all)?;
    out.flush()
}

pub fn reason(code: u16) -> &'static str {
    match code {
        200 => "OK",
        201 => "Created",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        410 => "Gone",
        415 => "Unsupported Media Type",
        422 => "Unprocessable Entity",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Unknown",
    }
}
