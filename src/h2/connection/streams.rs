//! What the application does with a connection and its streams.

use super::super::chunk::Chunk;
use super::super::fault::Reason;
use super::super::frame;
use super::super::headers::Headers;
use super::super::stream::{Local, Remote, Stream};
use super::state::{
    Connection, EARLY_RESETS, Event, IDLE_FRAMES, Read, Role, STREAMS_BEFORE_SETTINGS, StreamId, Unopened,
};

impl Connection {
    /// The next thing that happened.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether [`Connection::event`] has something.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// How many streams are open.
    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// Whether the peer's settings have come: it speaks HTTP/2.
    pub fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// Whether nothing more will happen: a fault ended the connection, or one side has said that it is leaving and no
    /// stream is left. What [`Connection::output`] still has is to be sent before closing.
    pub fn is_over(&self) -> bool {
        self.fault.is_some() || (self.leaving || self.going_away) && self.streams.is_empty()
    }

    /// Grants the peer its allowance of frames that bring nothing (10,000: PING, SETTINGS, empty DATA, PRIORITY) and of
    /// requests given up before they were answered (1,000) anew. To be called once a second or less often; a peer
    /// that uses it up before is a fault.
    pub fn replenish(&mut self) {
        (self.idle_frames, self.early_resets) = (IDLE_FRAMES, EARLY_RESETS);
    }

    /// Opens a stream with a request; `end` says that no body follows. The headers must be well-formed.
    pub fn open(&mut self, request: &Headers, end: bool) -> Result<StreamId, Unopened> {
        if self.is_over() || self.going_away || self.leaving || self.next > frame::MAX_31 {
            return Err(Unopened::Closing);
        }
        let unsaid = if self.greeted { u32::MAX } else { STREAMS_BEFORE_SETTINGS };
        if self.streams.len() >= self.allowed.unwrap_or(unsaid) as usize {
            return Err(Unopened::Full);
        }
        let id = self.next;
        self.next += 2;
        let local = if end { Local::Ended } else { Local::Open };
        self.streams.insert(id, Stream::new(Remote::BeforeHead, local, self.options.stream_window));
        self.write_headers(id, request, end);
        Ok(StreamId(id))
    }

    /// Sends the head of the answer; `end` says that no body follows, and the stream is over. Does nothing when the
    /// stream is gone or has its head.
    pub fn answer(&mut self, stream: StreamId, head: &Headers, end: bool) {
        let Some(found) = self.streams.get_mut(&stream.0) else { return };
        if !matches!(found.local, Local::BeforeHead) {
            return;
        }
        found.local = if end { Local::Ended } else { Local::Open };
        self.write_headers(stream.0, head, end);
        if end {
            self.answered(stream.0);
        }
    }

    /// Queues bytes of the body, which are the caller's until they are sent: ask [`Connection::has_room`] before.
    /// Does nothing when the stream is gone, or its direction has ended.
    pub fn send(&mut self, stream: StreamId, chunk: impl Into<Chunk>) {
        let chunk = chunk.into();
        let Some(found) = self.streams.get_mut(&stream.0) else { return };
        if matches!(found.local, Local::Open) && !chunk.is_empty() {
            found.queued_bytes += chunk.len();
            found.queued.push_back(chunk);
            self.line_up(stream.0);
        }
    }

    /// Ends our direction after what is queued, with trailers or without. Does nothing when it has ended. On a server
    /// the stream is then over: what the client still sends is refused.
    pub fn end(&mut self, stream: StreamId, trailers: Option<Headers>) {
        let Some(found) = self.streams.get_mut(&stream.0) else { return };
        if matches!(found.local, Local::Open) {
            found.local = Local::Ending(trailers.map(Box::new));
            self.line_up(stream.0);
        }
    }

    /// Gives a stream up: neither side sends more on it.
    pub fn reset(&mut self, stream: StreamId, reason: Reason) {
        if self.streams.contains_key(&stream.0) {
            self.reset_stream(stream.0, reason);
        }
    }

    /// Whether less is queued on the stream than its limit ([`Options::queue`](crate::h2::Options::queue)). When not, [`Event::Writable`] comes
    /// once half of it is sent. `false` for a stream that is gone.
    pub fn has_room(&mut self, stream: StreamId) -> bool {
        let limit = self.options.queue;
        self.streams.get_mut(&stream.0).is_some_and(|found| {
            found.full |= found.queued_bytes >= limit;
            !found.full
        })
    }

    /// How many bytes of the stream wait to be sent.
    pub fn queued(&self, stream: StreamId) -> usize {
        self.streams.get(&stream.0).map_or(0, |found| found.queued_bytes)
    }

    /// The next bytes of a stream, or its end. Bytes that nobody reads stop the peer once its window is used up: that
    /// is how a stream is paused.
    pub fn read(&mut self, stream: StreamId) -> Read {
        let Some(found) = self.streams.get_mut(&stream.0) else { return Read::Gone };
        if let Some(chunk) = found.arrived.pop_front() {
            let length = chunk.len();
            if !matches!(found.remote, Remote::Ended(_)) {
                let half = self.options.stream_window / 2;
                let before = found.owed;
                found.owed += length;
                if before < half && found.owed >= half {
                    self.credit.push(stream.0);
                }
            }
            self.owed += length;
            return Read::Data(chunk);
        }
        let Remote::Ended(trailers) = &mut found.remote else {
            found.told = false;
            return Read::Empty;
        };
        let trailers = trailers.take();
        if self.role == Role::Client {
            self.finish_exchange(stream.0);
        }
        Read::End(trailers)
    }

    /// Asks the peer for a sign of life: [`Event::Pong`] with the same bytes.
    pub fn ping(&mut self, payload: [u8; 8]) {
        frame::head(&mut self.control, frame::PING, 0, 0, payload.len());
        self.control.extend_from_slice(&payload);
    }

    /// Tells the peer that no new streams are taken; those that are open go on. See [`Connection::is_over`].
    pub fn shut_down(&mut self) {
        if !self.leaving && self.fault.is_none() {
            self.leaving = true;
            self.write_goaway(Reason::NO_ERROR, "");
        }
    }

    /// A client has read the whole answer: what it has not sent of its request nobody needs.
    fn finish_exchange(&mut self, id: u32) {
        match self.streams.get(&id) {
            Some(stream) if matches!(stream.local, Local::Ended) => drop(self.streams.remove(&id)),
            Some(_) => self.reset_stream(id, Reason::NO_ERROR),
            None => {}
        }
    }
}
