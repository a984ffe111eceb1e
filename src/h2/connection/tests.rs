//! Two connections that talk to each other, and one that gets what it should not.

use super::super::chunk::Chunk;
use super::super::fault::{Fault, Reason};
use super::super::frame as wire;
use super::super::headers::Headers;
use super::super::{Options, hpack};
use super::state::{EARLY_RESETS, IDLE_FRAMES, INITIAL_WINDOW_SIZE};
use super::*;

mod flood;
mod flow;
mod streams;

/// A client and a server with the bytes between them.
struct Pair {
    client: Connection,
    server: Connection,
}

fn small() -> Options {
    Options { streams: 10, stream_window: 65_535, window: 100_000, queue: 10_000, header_list: 8192 }
}

fn request() -> Headers {
    Headers::new().with(":method", "POST").with(":scheme", "http").with(":path", "/a.B/C").with("te", "trailers")
}

fn ok() -> Headers {
    Headers::new().with(":status", "200")
}

impl Pair {
    fn new(options: &Options) -> Self {
        let mut pair = Pair { client: Connection::client(options), server: Connection::server(options) };
        pair.exchange();
        pair
    }

    /// Carries bytes both ways until nobody has any; returns how many.
    fn exchange(&mut self) -> usize {
        let mut total = 0;
        loop {
            let there = carry(&mut self.client, &mut self.server);
            let back = carry(&mut self.server, &mut self.client);
            total += there + back;
            if there + back == 0 {
                return total;
            }
        }
    }

    /// Opens a stream and returns it with the server's side of it.
    fn open(&mut self) -> StreamId {
        let id = self.client.open(&request(), false).unwrap();
        self.exchange();
        let Some(Event::Headers(opened, headers)) = self.server.event() else { panic!("no request") };
        assert_eq!((opened, headers), (id, request()));
        id
    }
}

fn carry(from: &mut Connection, to: &mut Connection) -> usize {
    let mut bytes = Vec::new();
    from.output(&mut bytes, 20_000);
    to.receive(&bytes).unwrap();
    bytes.len()
}

fn events(connection: &mut Connection) -> Vec<Event> {
    std::iter::from_fn(|| connection.event()).collect()
}

/// Reads until there is nothing; the bytes, and how it ended.
fn drain(connection: &mut Connection, id: StreamId) -> (Vec<u8>, Read) {
    let mut bytes = Vec::new();
    loop {
        match connection.read(id) {
            Read::Data(chunk) => bytes.extend_from_slice(&chunk),
            other => return (bytes, other),
        }
    }
}

/// A server that has been greeted, and the frames that it is given raw.
fn server() -> Connection {
    let mut server = Connection::server(&small());
    server.receive(wire::PREFACE).unwrap();
    server.receive(&frame(wire::SETTINGS, 0, 0, b"")).unwrap();
    server.output(&mut Vec::new(), 1000);
    server
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    wire::head(&mut out, kind, flags, stream, payload.len());
    out.extend_from_slice(payload);
    out
}

fn block(headers: &Headers) -> Vec<u8> {
    let mut out = Vec::new();
    hpack::Encoder::default().encode(headers, &mut out);
    out
}

/// HEADERS of a request without a body.
fn whole_request(stream: u32) -> Vec<u8> {
    frame(wire::HEADERS, wire::END_HEADERS | wire::END_STREAM, stream, &block(&request()))
}

/// The frames that a connection sends: kind, flags, stream, payload.
fn sent(connection: &mut Connection) -> Vec<(u8, u8, u32, Vec<u8>)> {
    let mut bytes = Vec::new();
    connection.output(&mut bytes, 1 << 20);
    let (mut rest, mut found) = (&bytes[..], Vec::new());
    while let Some((head, after)) = rest.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        found.push((head[3], head[4], stream, after[..length].to_vec()));
        rest = &after[length..];
    }
    found
}

/// What a GOAWAY or RST_STREAM gives as its reason.
fn reason(frame: &(u8, u8, u32, Vec<u8>)) -> Reason {
    let at = if frame.0 == wire::GOAWAY { 4 } else { 0 };
    Reason(u32::from_be_bytes(frame.3[at..at + 4].try_into().unwrap()))
}
