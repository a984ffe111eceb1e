//! What a connection knows, and the steps that both directions and the application take.

use super::super::Options;
use super::super::chunk::Chunk;
use super::super::fault::{Fault, Reason};
use super::super::frame;
use super::super::headers::Headers;
use super::super::hpack;
use super::super::stream::{Remote, Stream};
use std::collections::{HashMap, VecDeque};
use std::fmt;

/// The window that each direction begins with (RFC 9113, section 6.9.2), bytes.
const FIRST_WINDOW: usize = 65_535;

/// A stream of one connection. Numbers are not used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub(in crate::h2) u32);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What happened on a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// A request (on a server), or the head of an answer (on a client). It is well-formed.
    Headers(StreamId, Headers),
    /// [`Connection::read`] has something. Comes again only after it has said [`Read::Empty`].
    Readable(StreamId),
    /// There is room to send again, after [`Connection::has_room`] has said that there is none.
    Writable(StreamId),
    /// The stream is over, before its end: the peer reset it, or broke the protocol on it. What was not read is gone.
    Reset(StreamId, Reason),
    /// The peer takes no new streams. On a client, those that it will not process have been reset with
    /// [`Reason::REFUSED_STREAM`]; the others go on.
    GoAway(Reason, Box<[u8]>),
    /// The answer to a [`Connection::ping`].
    Pong([u8; 8]),
}

/// What a stream has for its reader.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// The next bytes. With them their credit goes back to the peer: it sends more.
    Data(Chunk),
    /// Nothing now; [`Event::Readable`] will come.
    Empty,
    /// The peer has sent everything, last these trailers.
    End(Option<Box<Headers>>),
    /// There is no such stream any more.
    Gone,
}

/// Why a request cannot be sent on this connection now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unopened {
    /// The peer allows no more streams at the same time.
    Full,
    /// The connection is being closed: use another.
    Closing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Client,
    Server,
}

/// How many frames that bring nothing a peer may send, see [`Connection::replenish`].
pub(super) const IDLE_FRAMES: u32 = 10_000;
/// How many streams a peer may give up before they were answered, likewise.
pub(super) const EARLY_RESETS: u32 = 1_000;
/// Bytes of answers to frames (acknowledgements, resets) that may wait for a peer that does not read.
pub(super) const MAX_ANSWERS: usize = 64 << 10;
/// How many of the streams reset here are remembered: what the peer sends on them before it knows is no fault of its.
const REMEMBERED: usize = 256;

/// A header block in the making.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) stream: u32,
    pub(super) end_stream: bool,
    pub(super) bytes: Vec<u8>,
}

/// One connection. Built by [`Connection::client`] or [`Connection::server`]; see [`crate::h2`] for how to use it.
#[derive(Debug)]
pub struct Connection {
    pub(super) role: Role,
    pub(super) options: Options,
    pub(super) streams: HashMap<u32, Stream>,
    pub(super) events: VecDeque<Event>,
    /// The connection is over, with what its GOAWAY says.
    pub(super) fault: Option<Fault>,

    // From the peer.
    pub(super) frames: frame::Decoder,
    pub(super) headers: hpack::Decoder,
    /// A header block whose end has not come.
    pub(super) block: Option<Block>,
    /// The stream of the newest request; on a server.
    pub(super) newest: u32,
    pub(super) receive_window: usize,
    /// Bytes read by the application for which no credit was returned yet.
    pub(super) owed: usize,
    pub(super) idle_frames: u32,
    pub(super) early_resets: u32,
    pub(super) reset_here: VecDeque<u32>,
    pub(super) greeted: bool,
    pub(super) going_away: bool,

    // To the peer.
    pub(super) encoder: hpack::Encoder,
    /// Frames that are not subject to flow control, in their order.
    pub(super) control: Vec<u8>,
    /// How many bytes of them answer frames of the peer.
    pub(super) answers: usize,
    /// Streams that have something to send and a window, each once.
    pub(super) line: VecDeque<u32>,
    /// Streams that return credit.
    pub(super) credit: Vec<u32>,
    pub(super) send_window: i64,
    /// The peer's initial window of a stream.
    pub(super) first_send_window: i64,
    /// It has changed: streams that had no window may have one.
    pub(super) windows_changed: bool,
    /// How many streams the peer allows, once it has said it; on a client.
    pub(super) allowed: Option<u32>,
    /// The next stream to open; on a client.
    pub(super) next: u32,
    pub(super) leaving: bool,
}

impl Connection {
    /// The client's side. What it sends first can be had at once from [`Connection::output`].
    pub fn client(options: &Options) -> Self {
        let mut connection = Self::new(Role::Client, options, frame::Decoder::default());
        connection.control.extend_from_slice(frame::PREFACE);
        connection.greet(&[(ENABLE_PUSH, 0)]);
        connection
    }

    /// The server's side, likewise.
    pub fn server(options: &Options) -> Self {
        let mut connection = Self::new(Role::Server, options, frame::Decoder::with_preface());
        connection.greet(&[(MAX_CONCURRENT_STREAMS, options.streams)]);
        connection
    }

    fn new(role: Role, options: &Options, frames: frame::Decoder) -> Self {
        let limit = |window: usize| window.clamp(FIRST_WINDOW, frame::MAX_31 as usize);
        let (stream_window, window) = (limit(options.stream_window), limit(options.window));
        Connection {
            role,
            options: Options { stream_window, window, ..options.clone() },
            streams: HashMap::new(),
            events: VecDeque::new(),
            fault: None,
            frames,
            headers: hpack::Decoder::default(),
            block: None,
            newest: 0,
            receive_window: window,
            owed: 0,
            idle_frames: IDLE_FRAMES,
            early_resets: EARLY_RESETS,
            reset_here: VecDeque::new(),
            greeted: false,
            going_away: false,
            encoder: hpack::Encoder::default(),
            control: Vec::new(),
            answers: 0,
            line: VecDeque::new(),
            credit: Vec::new(),
            send_window: FIRST_WINDOW as i64,
            first_send_window: FIRST_WINDOW as i64,
            windows_changed: false,
            allowed: None,
            next: 1,
            leaving: false,
        }
    }

    fn greet(&mut self, first: &[(u16, u32)]) {
        let own = [
            (INITIAL_WINDOW_SIZE, self.options.stream_window as u32),
            (MAX_HEADER_LIST_SIZE, self.options.header_list as u32),
        ];
        frame::settings(&mut self.control, &[first, &own].concat());
        let more = self.options.window - FIRST_WINDOW;
        if more > 0 {
            frame::number(&mut self.control, frame::WINDOW_UPDATE, 0, more as u32);
        }
    }

    /// Puts a stream in the line when it has something to send that its window allows.
    pub(super) fn line_up(&mut self, id: u32) {
        let first = self.first_send_window;
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let open = stream.queued_bytes == 0 || stream.send_window + first > 0;
        if !stream.in_line && stream.has_output() && open {
            stream.in_line = true;
            // Who needs no window does not wait behind those that wait for the connection's.
            if stream.queued_bytes == 0 {
                self.line.push_front(id);
            } else {
                self.line.push_back(id);
            }
        }
    }

    pub(super) fn write_headers(&mut self, id: u32, headers: &Headers, end: bool) {
        let mut block = Vec::with_capacity(128);
        self.encoder.encode(headers, &mut block);
        frame::header_block(&mut self.control, id, end, &block);
    }

    pub(super) fn write_goaway(&mut self, reason: Reason, text: &str) {
        let newest = if self.role == Role::Server { self.newest } else { 0 };
        frame::head(&mut self.control, frame::GOAWAY, 0, 0, 8 + text.len());
        self.control.extend_from_slice(&newest.to_be_bytes());
        self.control.extend_from_slice(&reason.0.to_be_bytes());
        self.control.extend_from_slice(text.as_bytes());
    }

    /// A server has sent the whole answer: what it has not read of the request nobody needs.
    pub(super) fn answered(&mut self, id: u32) {
        if self.role == Role::Server
            && let Some(stream) = self.streams.get(&id)
        {
            if matches!(stream.remote, Remote::Ended(_)) {
                self.forget(id);
            } else {
                self.reset_stream(id, Reason::NO_ERROR);
            }
        }
    }

    /// Removes a stream; the connection's credit for what was not read goes back to the peer.
    pub(super) fn forget(&mut self, id: u32) {
        if let Some(stream) = self.streams.remove(&id) {
            self.owed += stream.unread();
        }
    }

    pub(super) fn reset_stream(&mut self, id: u32, reason: Reason) {
        self.forget(id);
        self.reset_here.push_back(id);
        if self.reset_here.len() > REMEMBERED {
            self.reset_here.pop_front();
        }
        frame::number(&mut self.control, frame::RST_STREAM, id, reason.0);
    }
}

pub(super) const MAX_CONCURRENT_STREAMS: u16 = 3;
pub(super) const ENABLE_PUSH: u16 = 2;
pub(super) const INITIAL_WINDOW_SIZE: u16 = 4;
pub(super) const MAX_FRAME_SIZE: u16 = 5;
pub(super) const MAX_HEADER_LIST_SIZE: u16 = 6;

/// How many streams a client opens before it has heard how many it may.
pub(super) const STREAMS_BEFORE_SETTINGS: u32 = 100;
