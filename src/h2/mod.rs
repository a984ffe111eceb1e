//! HTTP/2, client and server (RFC 9113), without threads of its own and without a runtime.
//!
//! A [`Connection`] is the state machine: bytes in, events and bytes out. An [`Endpoint`] is one with its socket, TLS
//! and deadlines; its streams are used through it. The thread that owns endpoints waits for all of them with [`wait`],
//! and for other threads by a [`crate::sys::wakeup::Wakeup`]: they put what they want into a queue and wake it.
//!
//! Flow control is in the reader's hands. What arrives is kept, at most a window of each stream; [`Connection::read`]
//! takes it and with that gives the peer its credit back, on stream and connection. Who stops reading a stream pauses
//! its sender, and nothing else: PING, SETTINGS, resets and other streams go on. Likewise a writer asks
//! [`Connection::has_room`] and waits for [`Event::Writable`]. To forward one stream into another is therefore to read
//! while there is room:
//!
//! ```
//! use ferrule::error::Result;
//! use ferrule::h2::{Endpoint, Event, Read, StreamId, wait};
//! use ferrule::sys::wakeup::Wakeup;
//! use std::time::Duration;
//!
//! /// Passes on what comes on one stream; memory is bounded by its window and the other's queue.
//! fn forward(from: (&mut Endpoint, StreamId), to: (&mut Endpoint, StreamId)) {
//!     while to.0.has_room(to.1) {
//!         match from.0.read(from.1) {
//!             Read::Data(chunk) => to.0.send(to.1, chunk),
//!             Read::End(trailers) => to.0.end(to.1, trailers.map(|trailers| *trailers)),
//!             Read::Empty | Read::Gone => return,
//!         }
//!     }
//! }
//!
//! fn relay(mut down: Endpoint, mut up: Endpoint, mine: StreamId, theirs: StreamId, wakeup: &Wakeup) -> Result<()> {
//!     while down.failure().is_none() && up.failure().is_none() {
//!         if wait(&mut [&mut down, &mut up], Some(wakeup), Duration::from_secs(60))? {
//!             // Another thread woke this one: look into the queue that they share.
//!         }
//!         while let Some(event) = up.event() {
//!             if let Event::Headers(_, head) = event {
//!                 down.answer(mine, &head, false);
//!             }
//!         }
//!         while down.event().is_some() {}
//!         forward((&mut down, mine), (&mut up, theirs));
//!         forward((&mut up, theirs), (&mut down, mine));
//!     }
//!     Ok(())
//! }
//! ```
//!
//! A stream is over when its answer is: on a server when all of it was sent, on a client when all of it was read, on
//! both when it was reset. Calls for a stream that is over do nothing, so that nobody has to know first what the peer
//! did meanwhile. Interim answers, server push, CONNECT and priorities are not used; the content length of an answer to
//! HEAD would be taken at its word.
//!
//! What a peer can make us do is bounded: streams, windows, header lists and the answers that wait for it; frames that
//! bring nothing and requests that are given up at once are counted (see [`Connection::replenish`]).

mod chunk;
mod connection;
mod endpoint;
mod fault;
mod frame;
mod headers;
pub mod hpack;
mod stream;
mod transport;

pub use chunk::Chunk;
pub use connection::{Connection, Event, Read, StreamId, Unopened};
pub use endpoint::{Deadlines, Endpoint, wait};
pub use fault::{Fault, Reason};
pub use headers::Headers;
pub use transport::{ALPN, Socket};

/// Limits of one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How many streams the peer may have open at the same time; on a server.
    pub streams: u32,
    /// How many bytes of one stream may have arrived and not been read; 65,535 at least, as the protocol begins with
    /// that.
    pub stream_window: usize,
    /// The limit for all streams together.
    pub window: usize,
    /// How many bytes of one stream may wait to be sent before [`Connection::has_room`] says no.
    pub queue: usize,
    /// Longest list of header fields that is taken, bytes: names, values, and 32 for each field.
    pub header_list: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { streams: 100_000, stream_window: 1 << 20, window: 4 << 20, queue: 256 << 10, header_list: 64 << 10 }
    }
}
