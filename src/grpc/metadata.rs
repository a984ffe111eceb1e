//! The headers of calls: request, answer, trailers, custom metadata, and the time a call may take (PROTOCOL-HTTP2).

use super::status::{Code, Status};
use crate::h2::Headers;
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use std::time::Duration;

const CONTENT_TYPE: &str = "application/grpc";

/// Written without padding, read with or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_encode_padding(false).with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The headers of a request, to which [`add`] may add metadata. `scheme` is `http` or `https`.
pub fn request(scheme: &str, authority: &str, path: &str) -> Headers {
    Headers::new()
        .with(":method", "POST")
        .with(":scheme", scheme)
        .with(":path", path)
        .with(":authority", authority)
        .with("te", "trailers")
        .with("content-type", CONTENT_TYPE)
        .with("user-agent", concat!("ferrule/", env!("CARGO_PKG_VERSION")))
}

/// The head of an answer that messages follow.
pub fn answer() -> Headers {
    Headers::new().with(":status", "200").with("content-type", CONTENT_TYPE)
}

/// A whole answer without a message ("Trailers-Only").
pub fn refusal(status: &Status) -> Headers {
    status.write(answer())
}

/// Adds metadata to a request or an answer. The name is put in lower case; the value of a name that ends in `-bin` may
/// be any bytes, others only printable ASCII. Returns whether it was added: names that are the protocol's own and
/// values that no header can have are not.
pub fn add(headers: &mut Headers, name: &str, value: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    let sound = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    if name.is_empty() || !name.bytes().all(sound) || is_reserved(&name) {
        return false;
    }
    if name.ends_with("-bin") {
        headers.push(&name, BASE64.encode(value));
        return true;
    }
    let value = value.trim_ascii();
    let sound = value.iter().all(|b| (b' '..=b'~').contains(b));
    if sound {
        headers.push(&name, value);
    }
    sound
}

fn is_reserved(name: &str) -> bool {
    name.starts_with("grpc-") || matches!(name, "content-type" | "user-agent" | "te" | "host" | "connection")
}

/// The value of binary metadata; `None` when there is none or it is not base64.
pub fn binary(headers: &Headers, name: &str) -> Option<Vec<u8>> {
    BASE64.decode(headers.get(name)?).ok()
}

/// A request to a method of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// `/package.Service/Method`.
    pub path: String,
    /// How long the client waits.
    pub timeout: Option<Duration>,
    /// Everything that came.
    pub headers: Headers,
}

impl Request {
    /// Reads the headers of a request. The error is the whole answer to what is no call.
    pub fn read(headers: Headers) -> Result<Request, Headers> {
        let http = |status: &str| Err(Headers::new().with(":status", status));
        if headers.get(":method") != Some(b"POST") {
            return http("405");
        }
        // `application/grpc+proto` and parameters are the same protocol, `application/grpc-web` is not.
        let kind = headers.text("content-type").and_then(|kind| kind.strip_prefix(CONTENT_TYPE));
        if !kind.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';'])) {
            return http("415");
        }
        let malformed = |what: &str| refusal(&Status::new(Code::Internal, format_args!("malformed {what}")));
        let path = headers.text(":path").ok_or_else(|| malformed(":path"))?.to_owned();
        let timeout = match headers.get("grpc-timeout") {
            Some(text) => Some(parse_timeout(text).ok_or_else(|| malformed("grpc-timeout"))?),
            None => None,
        };
        Ok(Request { path, timeout, headers })
    }
}

/// Adds the time a call may take.
pub fn add_timeout(headers: &mut Headers, time: Duration) {
    // Eight digits of the finest unit that they suffice for; rounded up, as a time of 0 would be over.
    const UNITS: [(u128, char); 6] = [
        (1, 'n'),
        (1_000, 'u'),
        (1_000_000, 'm'),
        (1_000_000_000, 'S'),
        (60_000_000_000, 'M'),
        (3_600_000_000_000, 'H'),
    ];
    let nanos = time.as_nanos().max(1);
    let text = UNITS.iter().map(|(unit, letter)| (nanos.div_ceil(*unit), letter));
    let (number, letter) = text.into_iter().find(|(number, _)| *number < 100_000_000).unwrap_or((99_999_999, &'H'));
    headers.push("grpc-timeout", format!("{number}{letter}"));
}

fn parse_timeout(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&str, &str)]) -> Headers {
        let start = Headers::new().with(":method", "POST").with(":path", "/a.B/C");
        fields.iter().fold(start, |headers, (name, value)| headers.with(name, value))
    }

    #[test]
    fn calls_are_told_from_other_requests() {
        let status = |fields: &[(&str, &str)]| match Request::read(headers(fields)) {
            Ok(_) => "a call".to_owned(),
            Err(answer) => format!("{} {:?}", answer.text(":status").unwrap(), Status::read(&answer).map(|s| s.code)),
        };
        for kind in ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"] {
            assert_eq!(status(&[("content-type", kind)]), "a call");
        }
        for kind in ["application/grpc-web", "application/json", ""] {
            assert_eq!(status(&[("content-type", kind)]), "415 None");
        }
        assert_eq!(status(&[]), "415 None");
        let get = Headers::new().with(":method", "GET").with(":path", "/").with("content-type", CONTENT_TYPE);
        assert_eq!(Request::read(get).unwrap_err().status(), Some(405));
        for timeout in ["", "5", "S", "-1S", "123456789S", "1s", "1 S"] {
            let fields = [("content-type", CONTENT_TYPE), ("grpc-timeout", timeout)];
            assert_eq!(status(&fields), "200 Some(Internal)", "{timeout}");
        }
    }

    #[test]
    fn times_are_never_shorter_on_the_other_side() {
        let day = Duration::from_secs(86_400);
        for (time, text) in [
            (Duration::ZERO, "1n"),
            (Duration::from_nanos(99_999_999), "99999999n"),
            (Duration::from_nanos(100_000_001), "100001u"),
            (Duration::from_secs(20), "20000000u"),
            (Duration::from_millis(100_000_500), "100001S"),
            (5000 * day, "7200000M"),
            (Duration::MAX, "99999999H"),
        ] {
            let mut written = headers(&[("content-type", CONTENT_TYPE)]);
            add_timeout(&mut written, time);
            assert_eq!(written.text("grpc-timeout"), Some(text));
            let read = Request::read(written).unwrap().timeout.unwrap();
            assert!(read >= time || time == Duration::MAX, "{time:?} became {read:?}");
        }
    }

    #[test]
    fn metadata_is_added_unless_it_is_the_protocols_own() {
        let mut headers = Headers::new();
        for (name, value) in [("ClusterID", "Kubernetes"), ("clusterid", ""), ("x-bin", "\u{0}\u{ff}"), ("a", " b ")] {
            assert!(add(&mut headers, name, value.as_bytes()), "{name}");
        }
        for (name, value) in [
            ("content-type", "x"),
            ("grpc-timeout", "1S"),
            ("te", "x"),
            (":path", "/"),
            ("user-agent", "x"),
            ("", "x"),
            ("a b", "x"),
            ("a", "two\nlines"),
            ("a", "ü"),
        ] {
            assert!(!add(&mut headers, name, value.as_bytes()), "{name}");
        }
        assert_eq!((headers.len(), headers.text("clusterid")), (4, Some("Kubernetes")));
        assert_eq!((headers.text("a"), headers.text("x-bin")), (Some("b"), Some("AMO/")));
        assert_eq!(binary(&headers, "x-bin").unwrap(), "\u{0}\u{ff}".as_bytes());
        let padded = Headers::new().with("y-bin", "AA==").with("z-bin", "?");
        assert_eq!((binary(&padded, "y-bin"), binary(&padded, "z-bin")), (Some(vec![0]), None));
    }
}
