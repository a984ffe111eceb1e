//! The state of one HTTP/2 connection, client or server (RFC 9113). Pure: bytes in, events and bytes out; no clock, no
//! socket, no thread.

mod receive;
mod send;
mod state;
mod streams;
#[cfg(test)]
mod tests;

pub use state::{Connection, Event, Read, StreamId, Unopened};
