//! One stream: what has arrived and was not read yet, what is to be sent, and how far each direction is.

use super::chunk::Chunk;
use super::frame::MAX_PAYLOAD;
use super::headers::Headers;
use std::collections::VecDeque;

/// The direction from the peer.
#[derive(Debug)]
pub(super) enum Remote {
    /// A client waits for the head of the answer.
    BeforeHead,
    Open,
    /// END_STREAM came, with trailers or without.
    Ended(Option<Box<Headers>>),
}

/// The direction to the peer.
#[derive(Debug)]
pub(super) enum Local {
    /// A server has not sent the head of its answer.
    BeforeHead,
    Open,
    /// After what is queued comes the end, with trailers or without.
    Ending(Option<Box<Headers>>),
    Ended,
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) remote: Remote,
    pub(super) arrived: VecDeque<Chunk>,
    /// How much the peer may still send, bytes.
    pub(super) receive_window: usize,
    /// Bytes taken by the reader for which no credit was returned yet.
    pub(super) owed: usize,
    /// Body bytes that the peer announced and has not sent.
    pub(super) announced: Option<u64>,
    /// The reader was told that there is something, and has not come to its end since.
    pub(super) told: bool,
    pub(super) local: Local,
    pub(super) queued: VecDeque<Chunk>,
    pub(super) queued_bytes: usize,
    /// The peer's window, less the initial one that its settings say: it may change while the stream is open.
    pub(super) send_window: i64,
    /// The stream waits in the line of those that have something to send.
    pub(super) in_line: bool,
    /// The writer was told that there is no room.
    pub(super) full: bool,
}

impl Stream {
    pub(super) fn new(remote: Remote, local: Local, receive_window: usize) -> Self {
        Stream {
            remote,
            arrived: VecDeque::new(),
            receive_window,
            owed: 0,
            announced: None,
            told: false,
            local,
            queued: VecDeque::new(),
            queued_bytes: 0,
            send_window: 0,
            in_line: false,
            full: false,
        }
    }

    /// Keeps received bytes, of which `more` will follow in the same frame. Small pieces are put together: a peer
    /// that sends single bytes cannot make each cost an allocation.
    pub(super) fn keep(&mut self, bytes: &[u8], more: usize) {
        match self.arrived.back_mut() {
            Some(last) if last.len() + bytes.len() <= MAX_PAYLOAD => last.append(bytes),
            _ => {
                let mut chunk = Chunk::with_capacity(bytes.len() + more);
                chunk.append(bytes);
                self.arrived.push_back(chunk);
            }
        }
    }

    /// Bytes that arrived and were not read.
    pub(super) fn unread(&self) -> usize {
        self.arrived.iter().map(|chunk| chunk.len()).sum()
    }

    /// Whether there is something to send now, if the windows allow it.
    pub(super) fn has_output(&self) -> bool {
        self.queued_bytes > 0 || matches!(self.local, Local::Ending(_))
    }
}
