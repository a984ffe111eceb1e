//! HTTP/1.1 over any `Read + Write`: one request, one answer, `Connection: close` (RFC 9112).
//!
//! Heads are parsed by httparse. Sizes are bounded here; time is bounded by the stream, which fails with
//! [`std::io::ErrorKind::TimedOut`] once the deadline of the whole exchange has passed (see
//! [`crate::sys::exchange`]). [`body`] and the heads are pure: bytes in, value out.

mod body;
pub mod client;
pub mod server;

/// Longest head of a request or an answer, bytes.
pub const MAX_HEAD: usize = 16 << 10;
/// Longest body of a request, and of an answer where the caller says nothing else, bytes.
pub const MAX_BODY: usize = 1 << 20;

/// More header lines than this are refused.
const MAX_HEADERS: usize = 64;
