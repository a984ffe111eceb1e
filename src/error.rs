//! The one error type: a message, the chain of what caused it, and a small kind where a caller branches.
//!
//! No decision is ever taken on an error's text. A caller that must tell cases apart asks [`Error::kind`]; everyone
//! else adds context and passes it up. [`Kind::exit_code`] is the one table of exit codes.

use std::fmt;

/// The result of anything that can fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a caller may branch on. Everything nobody branches on is [`Kind::Other`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing more is known than the message.
    Other,
    /// The command line or the configuration is wrong (exit 2).
    Usage,
    /// No agent of ours answers on its socket (exit 3).
    NoAgent,
    /// The file, namespace, process or object is not there.
    NotFound,
    /// A deadline passed.
    TimedOut,
    /// The peer closed or broke the connection.
    PeerGone,
    /// The peer answered, and its answer is "no" (ztunnel's ack error, the agent's refusal).
    Refused,
    /// The input cannot be decoded or has a value that is not allowed.
    Invalid,
    /// A program ended with a status other than 0, or was killed.
    ProgramFailed,
    /// The kernel does not have what was asked for (IPv6 off at boot, a missing module, an old kernel).
    Unsupported,
    /// A network namespace is that of the host, where a pod's was expected.
    HostNetns,
    /// The API server does not know our credential (401).
    Unauthorized,
    /// The API server does not let us do this (403).
    Forbidden,
    /// The object is not as the request assumed (409: precondition, concurrent write).
    Conflict,
    /// The resourceVersion or continue token is too old (410).
    Gone,
    /// The API server asks for patience (429).
    Busy,
}

impl Kind {
    /// Exit code of the process when this error ends it.
    pub fn exit_code(self) -> u8 {
        match self {
            Kind::Usage => 2,
            Kind::NoAgent => 3,
            _ => 1,
        }
    }
}

/// A message with the chain of its causes.
pub struct Error(Box<Inner>);

struct Inner {
    kind: Kind,
    /// Outermost context first.
    messages: Vec<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error nobody branches on.
    pub fn new(message: impl fmt::Display) -> Self {
        Self::of(Kind::Other, message)
    }

    /// An error of a kind a caller branches on.
    pub fn of(kind: Kind, message: impl fmt::Display) -> Self {
        Error(Box::new(Inner { kind, messages: vec![message.to_string()], source: None }))
    }

    /// Puts a message in front; the kind stays.
    #[must_use]
    pub fn context(mut self, message: impl fmt::Display) -> Self {
        self.0.messages.insert(0, message.to_string());
        self
    }

    /// Replaces the kind; messages and cause stay.
    #[must_use]
    pub fn with_kind(mut self, kind: Kind) -> Self {
        self.0.kind = kind;
        self
    }

    /// The system's number of the error at the bottom of the chain, where there is one: for the few answers of the
    /// kernel that have no kind of their own (those of ipset, from 4096 on).
    pub fn errno(&self) -> Option<i32> {
        let source = self.0.source.as_ref()?;
        let io = source.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
        io.or_else(|| source.downcast_ref::<nix::errno::Errno>().map(|errno| *errno as i32))
    }

    /// What a caller may branch on.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Error {
    fn from(e: E) -> Self {
        let any: &(dyn std::error::Error + 'static) = &e;
        let kind = any.downcast_ref::<std::io::Error>().map_or_else(
            || any.downcast_ref::<nix::errno::Errno>().map_or(Kind::Other, |n| of_io(std::io::Error::from(*n).kind())),
            |io| of_io(io.kind()),
        );
        Error(Box::new(Inner { kind, messages: Vec::new(), source: Some(Box::new(e)) }))
    }
}

fn of_io(kind: std::io::ErrorKind) -> Kind {
    use std::io::ErrorKind as Io;
    match kind {
        Io::NotFound => Kind::NotFound,
        Io::TimedOut | Io::WouldBlock => Kind::TimedOut,
        Io::Unsupported => Kind::Unsupported,
        Io::BrokenPipe | Io::ConnectionReset | Io::ConnectionAborted | Io::UnexpectedEof | Io::NotConnected => {
            Kind::PeerGone
        }
        _ => Kind::Other,
    }
}

/// Keeps text on one line: control characters, which quoted input may have brought, are written as escapes.
struct OneLine<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for OneLine<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((before, control)) =
            rest.char_indices().find(|(_, c)| c.is_control()).and_then(|(at, c)| Some((rest.get(..at)?, c)))
        {
            write!(self.0, "{before}{}", control.escape_default())?;
            rest = rest.get(before.len() + control.len_utf8()..).unwrap_or_default();
        }
        self.0.write_str(rest)
    }
}

/// The whole chain on one line: `outer: inner: cause`.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        let mut f = OneLine(f);
        let mut separator = "";
        for message in &self.0.messages {
            write!(f, "{separator}{message}")?;
            separator = ": ";
        }
        let mut cause: Option<&(dyn std::error::Error + 'static)> = match &self.0.source {
            Some(boxed) => Some(boxed.as_ref()),
            None => None,
        };
        while let Some(e) = cause {
            write!(f, "{separator}{e}")?;
            separator = ": ";
            cause = e.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

/// Adds a message to whatever error a result carries.
pub trait Context<T> {
    /// Adds a fixed message.
    fn context(self, message: impl fmt::Display) -> Result<T>;
    /// Adds a message that is only built on failure.
    fn with_context<M: fmt::Display>(self, message: impl FnOnce() -> M) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, message: impl fmt::Display) -> Result<T> {
        self.map_err(|e| e.into().context(message))
    }
    fn with_context<M: fmt::Display>(self, message: impl FnOnce() -> M) -> Result<T> {
        self.map_err(|e| e.into().context(message()))
    }
}

impl<T> Context<T> for Option<T> {
    fn context(self, message: impl fmt::Display) -> Result<T> {
        self.ok_or_else(|| Error::of(Kind::NotFound, message))
    }
    fn with_context<M: fmt::Display>(self, message: impl FnOnce() -> M) -> Result<T> {
        self.ok_or_else(|| Error::of(Kind::NotFound, message()))
    }
}

/// Fails with [`Kind::Invalid`] and a formatted message.
#[macro_export]
macro_rules! invalid {
    ($($arg:tt)*) => { $crate::error::Error::of($crate::error::Kind::Invalid, format_args!($($arg)*)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_is_one_line_and_kind_survives_context() {
        let io = std::io::Error::from_raw_os_error(libc::ENOENT);
        let e = Err::<(), _>(io).context("open /x").context("enrol pod a/b").unwrap_err();
        assert_eq!(e.kind(), Kind::NotFound);
        assert_eq!(e.to_string(), "enrol pod a/b: open /x: No such file or directory (os error 2)");
        assert_eq!(e.errno(), Some(libc::ENOENT));
        let e = Error::from(nix::errno::Errno::ESRCH);
        assert_eq!((e.kind(), e.errno()), (Kind::Other, Some(libc::ESRCH)));
        assert_eq!(invalid!("port {}", 0).kind(), Kind::Invalid);
        assert_eq!(invalid!("key `a\nb\u{1b}[m`").to_string(), "key `a\\nb\\u{1b}[m`");
        assert_eq!(Kind::Usage.exit_code(), 2);
    }
}
