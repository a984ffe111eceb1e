//! How a call ended (gRPC's `statuscodes`, `http-grpc-status-mapping`, and PROTOCOL-HTTP2).

use crate::error::Error;
use crate::h2::{Headers, Reason};
use std::fmt;

/// Defines the codes with their numbers and names.
macro_rules! codes {
    ($($(#[$doc:meta])+ $name:ident = $number:literal, $text:literal;)+) => {
        /// A status code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[$doc])+ $name = $number,)+
        }

        impl Code {
            /// Every code, by its number.
            pub const ALL: &[Code] = &[$(Code::$name,)+];

            /// The name as specifications write it: `NOT_FOUND`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Code::$name => $text,)+
                }
            }
        }
    };
}

codes! {
    /// It did what it should.
    Ok = 0, "OK";
    /// Whoever asked gave it up.
    Cancelled = 1, "CANCELLED";
    /// Nothing more is known.
    Unknown = 2, "UNKNOWN";
    /// The request makes no sense, whatever the state of things.
    InvalidArgument = 3, "INVALID_ARGUMENT";
    /// The time was over.
    DeadlineExceeded = 4, "DEADLINE_EXCEEDED";
    /// It is not there.
    NotFound = 5, "NOT_FOUND";
    /// It is there already.
    AlreadyExists = 6, "ALREADY_EXISTS";
    /// The caller may not.
    PermissionDenied = 7, "PERMISSION_DENIED";
    /// A limit was reached.
    ResourceExhausted = 8, "RESOURCE_EXHAUSTED";
    /// Something else has to happen before.
    FailedPrecondition = 9, "FAILED_PRECONDITION";
    /// Something else happened at the same time.
    Aborted = 10, "ABORTED";
    /// Beyond the end.
    OutOfRange = 11, "OUT_OF_RANGE";
    /// There is no such method.
    Unimplemented = 12, "UNIMPLEMENTED";
    /// A rule of the protocol was broken.
    Internal = 13, "INTERNAL";
    /// The server cannot be reached now.
    Unavailable = 14, "UNAVAILABLE";
    /// Something is lost for good.
    DataLoss = 15, "DATA_LOSS";
    /// The caller did not say who it is.
    Unauthenticated = 16, "UNAUTHENTICATED";
}

impl Code {
    /// The number on the wire.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The code of a number; one that nobody defined is [`Code::Unknown`].
    pub fn of(number: u32) -> Code {
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        Code::ALL.get(index).copied().unwrap_or(Code::Unknown)
    }
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The code.
    pub code: Code,
    /// Any text, read by people.
    pub message: String,
}

impl Status {
    /// Puts the two together.
    pub fn new(code: Code, message: impl fmt::Display) -> Self {
        Status { code, message: message.to_string() }
    }

    /// The good end.
    pub fn ok() -> Self {
        Status::new(Code::Ok, "")
    }

    /// Reads `grpc-status` and `grpc-message`; `None` when there is no status, or none that is a number.
    pub fn read(headers: &Headers) -> Option<Status> {
        let code = Code::of(headers.text("grpc-status")?.parse().ok()?);
        let message = headers.get("grpc-message").map(percent_decode).unwrap_or_default();
        Some(Status { code, message })
    }

    /// Adds the two fields.
    #[must_use]
    pub fn write(&self, headers: Headers) -> Headers {
        let headers = headers.with("grpc-status", self.code.number().to_string());
        if self.message.is_empty() { headers } else { headers.with("grpc-message", percent_encode(&self.message)) }
    }

    /// What an answer says that is none of gRPC: of a proxy before the server, say.
    pub fn of_http(status: u16) -> Status {
        let code = match status {
            400 => Code::Internal,
            401 => Code::Unauthenticated,
            403 => Code::PermissionDenied,
            404 => Code::Unimplemented,
            429 | 502..=504 => Code::Unavailable,
            _ => Code::Unknown,
        };
        Status::new(code, format_args!("the answer is not of gRPC: HTTP status {status}"))
    }

    /// What the reset of a stream says.
    pub fn of_reset(reason: Reason) -> Status {
        let code = match reason {
            Reason::REFUSED_STREAM => Code::Unavailable,
            Reason::CANCEL => Code::Cancelled,
            Reason::ENHANCE_YOUR_CALM => Code::ResourceExhausted,
            Reason::INADEQUATE_SECURITY => Code::PermissionDenied,
            _ => Code::Internal,
        };
        Status::new(code, format_args!("the stream was reset: {reason}"))
    }

    /// What the end of the connection says.
    pub fn of_failure(failure: &Error) -> Status {
        Status::new(Code::Unavailable, failure)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.message.is_empty() { "" } else { ": " };
        write!(f, "{}{separator}{}", self.code.name(), self.message)
    }
}

impl std::error::Error for Status {}

/// Text in a header: everything but printable ASCII is escaped.
fn percent_encode(text: &str) -> String {
    use std::fmt::Write;
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            // Writing to a string does not fail.
            _ => drop(write!(out, "%{byte:02X}")),
        }
        out
    })
}

/// The other way. What is no escape stays as it is, what is no UTF-8 is replaced.
fn percent_decode(mut text: &[u8]) -> String {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut out = Vec::with_capacity(text.len());
    while let Some((first, rest)) = text.split_first() {
        let escape = match text {
            [b'%', high, low, ..] => digit(*high).zip(digit(*low)),
            _ => None,
        };
        match escape {
            Some((high, low)) => {
                out.push(high << 4 | low);
                text = text.get(3..).unwrap_or_default();
            }
            None => {
                out.push(*first);
                text = rest;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_their_numbers() {
        for (number, code) in (0..).zip(Code::ALL) {
            assert_eq!((code.number(), Code::of(number)), (number, *code));
        }
        assert_eq!((Code::ALL.len(), Code::of(17), Code::of(u32::MAX)), (17, Code::Unknown, Code::Unknown));
    }

    #[test]
    fn any_text_comes_back() {
        for text in ["", "plain", "100 %", "two\nlines\t", "ünïcödé 🦀", "%41", "~ \u{7f}"] {
            let status = Status::new(Code::Aborted, text);
            let headers = status.write(Headers::new());
            let value = headers.get("grpc-message").unwrap_or_default();
            assert!(value.iter().all(|byte| (b' '..=b'~').contains(byte)), "{value:?}");
            assert_eq!(Status::read(&headers), Some(status));
        }
        let read = |message: &[u8]| {
            let headers = Headers::new().with("grpc-status", "2").with("grpc-message", message);
            Status::read(&headers).unwrap().message
        };
        assert_eq!(read(b"%e2%82%ac %zz %4"), "€ %zz %4");
        assert_eq!(read(b"\xff%FF"), "\u{fffd}\u{fffd}");
    }

    #[test]
    fn answers_that_are_none() {
        assert_eq!(Status::read(&Headers::new().with("grpc-message", "x")), None);
        assert_eq!(Status::read(&Headers::new().with("grpc-status", "OK")), None);
        assert_eq!(Status::read(&Headers::new().with("grpc-status", "99")).unwrap().code, Code::Unknown);
        let http = |status| Status::of_http(status).code.number();
        assert_eq!(
            [400, 401, 403, 404, 429, 500, 502, 503, 504, 200, 302].map(http),
            [13, 16, 7, 12, 14, 2, 14, 14, 14, 2, 2]
        );
        let reset = |code| Status::of_reset(Reason(code)).code.number();
        assert_eq!((0..=14).map(reset).collect::<Vec<_>>(), [13, 13, 13, 13, 13, 13, 13, 14, 1, 13, 13, 8, 7, 13, 13]);
    }
}
