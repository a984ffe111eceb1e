//! What goes wrong on a connection, by HTTP/2's own error codes (RFC 9113, section 7).

use std::fmt;

/// An error code, as RST_STREAM and GOAWAY carry it. Codes that nobody defined are kept as they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reason(pub u32);

/// Defines the codes with their names.
macro_rules! reasons {
    ($($(#[$doc:meta])+ $name:ident = $code:literal;)+) => {
        impl Reason {
            $($(#[$doc])+ pub const $name: Reason = Reason($code);)+

            fn name(self) -> Option<&'static str> {
                match self {
                    $(Reason::$name => Some(stringify!($name)),)+
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    /// Nothing is wrong: an orderly end.
    NO_ERROR = 0;
    /// The peer broke the protocol.
    PROTOCOL_ERROR = 1;
    /// Something is wrong on the side that says so.
    INTERNAL_ERROR = 2;
    /// More came than flow control allows.
    FLOW_CONTROL_ERROR = 3;
    /// Settings were not acknowledged in time.
    SETTINGS_TIMEOUT = 4;
    /// A frame came for a stream that had ended.
    STREAM_CLOSED = 5;
    /// A frame has a length that it may not have.
    FRAME_SIZE_ERROR = 6;
    /// The stream was not processed; it may be tried again.
    REFUSED_STREAM = 7;
    /// Nobody wants the stream any more.
    CANCEL = 8;
    /// A header block cannot be read, so none that follows can.
    COMPRESSION_ERROR = 9;
    /// The connection that CONNECT asked for is broken.
    CONNECT_ERROR = 10;
    /// The peer makes too much work.
    ENHANCE_YOUR_CALM = 11;
    /// The transport is not secure enough.
    INADEQUATE_SECURITY = 12;
    /// The server wants HTTP/1.1.
    HTTP_1_1_REQUIRED = 13;
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "error code {}", self.0),
        }
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a connection cannot go on: found here, about what the peer sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// What the GOAWAY says.
    pub reason: Reason,
    /// What is wrong, read by people.
    pub text: &'static str,
}

impl Fault {
    pub(super) const fn new(reason: Reason, text: &'static str) -> Self {
        Fault { reason, text }
    }

    pub(super) const fn protocol(text: &'static str) -> Self {
        Fault::new(Reason::PROTOCOL_ERROR, text)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.text)
    }
}

impl std::error::Error for Fault {}
