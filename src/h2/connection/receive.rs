//! Bytes from the peer: each frame is checked and becomes a change of state, an event, or a fault.

use super::super::fault::{Fault, Reason};
use super::super::frame::{self, Head, Piece};
use super::super::headers::{self, Headers, Malformed, Part};
use super::super::stream::{Local, Remote, Stream};
use super::state::{self, Block, Connection, Event, MAX_ANSWERS, Role, StreamId};

/// What a HEADERS frame is for.
enum Purpose {
    Request,
    Answer,
    Trailers,
    /// Nothing: the stream is over, or will not be served.
    Nothing,
}

const WINDOW_OVERFLOW: Fault = Fault::new(Reason::FLOW_CONTROL_ERROR, "a window above 2^31 - 1");

impl Connection {
    /// Takes what the peer sent, however it is cut. A fault ends the connection: the GOAWAY that says so is in
    /// [`Connection::output`], every stream is gone, and later input is ignored.
    pub fn receive(&mut self, mut input: &[u8]) -> Result<(), Fault> {
        if self.fault.is_some() {
            return Ok(());
        }
        let mut frames = std::mem::take(&mut self.frames);
        let received = self.receive_pieces(&mut frames, &mut input);
        self.frames = frames;
        received.inspect_err(|fault| self.fail(*fault))
    }

    fn receive_pieces(&mut self, frames: &mut frame::Decoder, input: &mut &[u8]) -> Result<(), Fault> {
        while let Some(piece) = frames.next(input)? {
            match piece {
                Piece::DataStart { stream, payload } => self.data_start(stream, payload)?,
                Piece::Data { stream, bytes, more } => self.data(stream, bytes, more),
                Piece::DataEnd { stream, padding, empty, end_stream } => {
                    if empty && !end_stream {
                        self.idle_frame()?;
                    }
                    self.data_end(stream, padding, end_stream);
                }
                Piece::Frame(head, payload) => self.frame(head, payload)?,
            }
            if self.answers > MAX_ANSWERS {
                return Err(calm("the answers to its frames are not read"));
            }
        }
        Ok(())
    }

    fn fail(&mut self, fault: Fault) {
        if self.answers > MAX_ANSWERS {
            self.control.clear();
        }
        self.write_goaway(fault.reason, fault.text);
        self.fault = Some(fault);
        self.streams.clear();
        self.line.clear();
        self.credit.clear();
        self.events.clear();
    }

    fn frame(&mut self, head: Head, payload: &[u8]) -> Result<(), Fault> {
        if self.block.is_some() && head.kind != frame::CONTINUATION {
            return Err(Fault::protocol("a frame within a header block"));
        }
        if !self.greeted && head.kind != frame::SETTINGS {
            return Err(Fault::protocol("the first frame is not SETTINGS"));
        }
        match head.kind {
            frame::HEADERS => self.headers(head, payload),
            frame::CONTINUATION => self.continuation(head, payload),
            frame::RST_STREAM => self.rst_stream(head.stream, number(payload)?),
            frame::SETTINGS => self.settings(head, payload),
            frame::PING => self.ping_frame(head, payload),
            frame::GOAWAY => self.goaway(head.stream, payload),
            frame::WINDOW_UPDATE => self.window_update(head.stream, number(payload)?),
            frame::PUSH_PROMISE => Err(Fault::protocol("PUSH_PROMISE, which is not allowed here")),
            frame::PRIORITY if head.stream == 0 => Err(Fault::protocol("PRIORITY on stream 0")),
            frame::PRIORITY if payload.len() != 5 => {
                self.idle_frame()?;
                if self.is_unused(head.stream) {
                    return Err(Fault::new(Reason::FRAME_SIZE_ERROR, "PRIORITY without 5 bytes"));
                }
                self.refuse(head.stream, Reason::FRAME_SIZE_ERROR);
                Ok(())
            }
            // Priorities are not used, and frames that nobody defined are ignored (RFC 9113, section 5.5).
            _ => self.idle_frame(),
        }
    }

    /// A frame that brings nothing, and to which there may be an answer.
    fn idle_frame(&mut self) -> Result<(), Fault> {
        self.idle_frames = self.idle_frames.checked_sub(1).ok_or(calm("too many frames that bring nothing"))?;
        Ok(())
    }

    /// Resets a stream for what the peer did, and tells the application when it knows the stream.
    fn refuse(&mut self, id: u32, reason: Reason) {
        let known = self.streams.contains_key(&id);
        self.reset_stream(id, reason);
        self.answers += frame::HEAD + 4;
        if known {
            self.events.push_back(Event::Reset(StreamId(id), reason));
        }
    }

    /// Whether a stream has never been opened: a frame on it is a fault.
    fn is_unused(&self, id: u32) -> bool {
        match self.role {
            Role::Server => id.is_multiple_of(2) || id > self.newest,
            Role::Client => id.is_multiple_of(2) || id >= self.next,
        }
    }

    fn data_start(&mut self, id: u32, payload: usize) -> Result<(), Fault> {
        if !self.greeted || self.block.is_some() {
            return Err(Fault::protocol("DATA before SETTINGS or within a header block"));
        }
        if self.is_unused(id) {
            return Err(Fault::protocol("DATA on a stream that was not opened"));
        }
        let left = self.receive_window.checked_sub(payload);
        self.receive_window = left.ok_or(Fault::new(Reason::FLOW_CONTROL_ERROR, "more DATA than the window allows"))?;
        let Some(stream) = self.streams.get_mut(&id) else {
            self.idle_frame()?;
            if !self.reset_here.contains(&id) {
                self.refuse(id, Reason::STREAM_CLOSED);
            }
            return Ok(());
        };
        let reason = match (stream.receive_window.checked_sub(payload), &stream.remote) {
            (Some(left), Remote::Open) => {
                stream.receive_window = left;
                return Ok(());
            }
            (None, Remote::Open) => Reason::FLOW_CONTROL_ERROR,
            (_, Remote::Ended(_)) => Reason::STREAM_CLOSED,
            (_, Remote::BeforeHead) => Reason::PROTOCOL_ERROR,
        };
        self.refuse(id, reason);
        Ok(())
    }

    fn data(&mut self, id: u32, bytes: &[u8], more: usize) {
        let Some(stream) = self.streams.get_mut(&id) else {
            // Nobody reads it: its credit goes back at once.
            self.owed += bytes.len();
            return;
        };
        stream.keep(bytes, more);
        match stream.announced.map(|left| left.checked_sub(bytes.len() as u64)) {
            Some(None) => self.refuse(id, Reason::PROTOCOL_ERROR),
            left => {
                stream.announced = left.flatten();
                self.tell(id);
            }
        }
    }

    fn data_end(&mut self, id: u32, padding: usize, end_stream: bool) {
        self.owed += padding;
        if let Some(stream) = self.streams.get_mut(&id)
            && padding > 0
        {
            stream.owed += padding;
            self.credit.push(id);
        }
        if end_stream {
            self.end_of_stream(id, None);
        }
    }

    /// Tells the reader once that there is something.
    fn tell(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !std::mem::replace(&mut stream.told, true)
        {
            self.events.push_back(Event::Readable(StreamId(id)));
        }
    }

    fn end_of_stream(&mut self, id: u32, trailers: Option<Headers>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.announced.is_some_and(|left| left > 0) {
            return self.refuse(id, Reason::PROTOCOL_ERROR);
        }
        stream.remote = Remote::Ended(trailers.map(Box::new));
        self.tell(id);
    }

    fn headers(&mut self, head: Head, mut payload: &[u8]) -> Result<(), Fault> {
        if head.stream == 0 {
            return Err(Fault::protocol("HEADERS on stream 0"));
        }
        let short = Fault::new(Reason::FRAME_SIZE_ERROR, "HEADERS that are too short");
        let padding = if head.has(frame::PADDED) { *payload.split_off_first().ok_or(short)? } else { 0 };
        if head.has(frame::WITH_PRIORITY) {
            payload.split_off(..5).ok_or(short)?;
        }
        let length = payload.len().checked_sub(usize::from(padding));
        let length = length.ok_or(Fault::protocol("HEADERS with more padding than payload"))?;
        let fragment = payload.get(..length).unwrap_or_default();
        let end_stream = head.has(frame::END_STREAM);
        if head.has(frame::END_HEADERS) {
            return self.header_block(head.stream, end_stream, fragment);
        }
        self.block = Some(Block { stream: head.stream, end_stream, bytes: fragment.to_vec() });
        Ok(())
    }

    fn continuation(&mut self, head: Head, payload: &[u8]) -> Result<(), Fault> {
        let unexpected = Fault::protocol("CONTINUATION without HEADERS before it");
        let mut block = self.block.take().filter(|block| block.stream == head.stream).ok_or(unexpected)?;
        if payload.is_empty() {
            self.idle_frame()?;
        }
        block.bytes.extend_from_slice(payload);
        // Compressed headers are not longer than the list: a block that is cannot be taken, and without it no other.
        if block.bytes.len() > self.options.header_list {
            return Err(calm("a header block longer than the limit"));
        }
        if head.has(frame::END_HEADERS) {
            return self.header_block(block.stream, block.end_stream, &block.bytes);
        }
        self.block = Some(block);
        Ok(())
    }

    fn header_block(&mut self, id: u32, end_stream: bool, block: &[u8]) -> Result<(), Fault> {
        let purpose = self.purpose(id, end_stream)?;
        // Whatever becomes of the stream, the block changes the table that later ones refer to.
        let list = self.headers.decode(block, self.options.header_list)?;
        let part = match purpose {
            Purpose::Request => Part::Request,
            Purpose::Answer => Part::Answer,
            Purpose::Trailers => Part::Trailers,
            Purpose::Nothing => return Ok(()),
        };
        let taken = match list {
            None => Err(Reason::ENHANCE_YOUR_CALM),
            Some(list) => headers::check(&list, part)
                .and_then(|()| self.take_headers(id, list, part, end_stream))
                .map_err(|Malformed| Reason::PROTOCOL_ERROR),
        };
        match taken {
            Ok(()) => Ok(()),
            // The application has not heard of the stream.
            Err(reason) if part == Part::Request => {
                self.reset_stream(id, reason);
                self.answers += frame::HEAD + 4;
                self.early_reset()
            }
            Err(reason) => {
                self.refuse(id, reason);
                Ok(())
            }
        }
    }

    /// What HEADERS on a stream mean now. A new request has a stream from here on, refused or not.
    fn purpose(&mut self, id: u32, end_stream: bool) -> Result<Purpose, Fault> {
        if let Some(stream) = self.streams.get(&id) {
            return Ok(match stream.remote {
                Remote::BeforeHead => Purpose::Answer,
                Remote::Open if end_stream => Purpose::Trailers,
                Remote::Open => self.nothing(id, Reason::PROTOCOL_ERROR),
                Remote::Ended(_) => self.nothing(id, Reason::STREAM_CLOSED),
            });
        }
        if !self.is_unused(id) {
            self.idle_frame()?;
            // A server may still answer what its client has given up; a client knows which streams it has opened.
            if self.role == Role::Client || self.reset_here.contains(&id) {
                return Ok(Purpose::Nothing);
            }
            return Err(Fault::new(Reason::STREAM_CLOSED, "HEADERS on a stream that has ended"));
        }
        if self.role == Role::Client || id.is_multiple_of(2) {
            return Err(Fault::protocol("HEADERS on a stream that was not opened"));
        }
        self.newest = id;
        if self.leaving || self.streams.len() >= self.options.streams as usize {
            self.early_reset()?;
            return Ok(self.nothing(id, Reason::REFUSED_STREAM));
        }
        self.streams.insert(id, Stream::new(Remote::Open, Local::BeforeHead, self.options.stream_window));
        Ok(Purpose::Request)
    }

    fn nothing(&mut self, id: u32, reason: Reason) -> Purpose {
        self.refuse(id, reason);
        Purpose::Nothing
    }

    fn take_headers(&mut self, id: u32, list: Headers, part: Part, end_stream: bool) -> Result<(), Malformed> {
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        match part {
            Part::Trailers => self.end_of_stream(id, Some(list)),
            // Interim answers are not passed on; one that ends the stream is none.
            Part::Answer if list.status().is_some_and(|status| status < 200) => {
                return if end_stream { Err(Malformed) } else { Ok(()) };
            }
            Part::Request | Part::Answer => {
                stream.remote = Remote::Open;
                stream.announced = list.content_length()?;
                self.events.push_back(Event::Headers(StreamId(id), list));
                if end_stream {
                    self.end_of_stream(id, None);
                }
            }
        }
        Ok(())
    }

    fn rst_stream(&mut self, id: u32, code: u32) -> Result<(), Fault> {
        if id == 0 || self.is_unused(id) {
            return Err(Fault::protocol("RST_STREAM on a stream that was not opened"));
        }
        let Some(stream) = self.streams.get_mut(&id) else { return self.idle_frame() };
        if self.role == Role::Client && matches!(stream.remote, Remote::Ended(_)) {
            // The whole answer is here; the server only wants no more of the request.
            stream.local = Local::Ended;
            stream.queued.clear();
            stream.queued_bytes = 0;
            return Ok(());
        }
        let unanswered = self.role == Role::Server && matches!(stream.local, Local::BeforeHead);
        self.forget(id);
        self.events.push_back(Event::Reset(StreamId(id), Reason(code)));
        if unanswered { self.early_reset() } else { Ok(()) }
    }

    /// A request that made work and was given up, or refused, before it had an answer.
    fn early_reset(&mut self) -> Result<(), Fault> {
        self.early_resets = self.early_resets.checked_sub(1).ok_or(calm("too many requests that were given up"))?;
        Ok(())
    }

    fn settings(&mut self, head: Head, payload: &[u8]) -> Result<(), Fault> {
        if head.stream != 0 {
            return Err(Fault::protocol("SETTINGS on a stream"));
        }
        self.idle_frame()?;
        let wrong_length = Fault::new(Reason::FRAME_SIZE_ERROR, "SETTINGS of a length that they cannot have");
        if head.has(frame::ACK) {
            return if payload.is_empty() { Ok(()) } else { Err(wrong_length) };
        }
        let (settings, []) = payload.as_chunks::<6>() else { return Err(wrong_length) };
        for [i0, i1, v0, v1, v2, v3] in settings {
            self.setting(u16::from_be_bytes([*i0, *i1]), u32::from_be_bytes([*v0, *v1, *v2, *v3]))?;
        }
        self.greeted = true;
        frame::head(&mut self.control, frame::SETTINGS, frame::ACK, 0, 0);
        self.answers += frame::HEAD;
        Ok(())
    }

    fn setting(&mut self, id: u16, value: u32) -> Result<(), Fault> {
        match id {
            state::ENABLE_PUSH if value > 1 || value == 1 && self.role == Role::Client => {
                Err(Fault::protocol("SETTINGS_ENABLE_PUSH has a value that it cannot have"))
            }
            state::MAX_CONCURRENT_STREAMS => {
                self.allowed = Some(value);
                Ok(())
            }
            state::INITIAL_WINDOW_SIZE if value > frame::MAX_31 => Err(WINDOW_OVERFLOW),
            state::INITIAL_WINDOW_SIZE => {
                self.first_send_window = i64::from(value);
                self.windows_changed = true;
                Ok(())
            }
            state::MAX_FRAME_SIZE if !(frame::MAX_PAYLOAD as u32..1 << 24).contains(&value) => {
                Err(Fault::protocol("SETTINGS_MAX_FRAME_SIZE has a value that it cannot have"))
            }
            // Longer frames, a larger table and longer header lists than are used here.
            _ => Ok(()),
        }
    }

    fn ping_frame(&mut self, head: Head, payload: &[u8]) -> Result<(), Fault> {
        if head.stream != 0 {
            return Err(Fault::protocol("PING on a stream"));
        }
        let payload: [u8; 8] =
            payload.try_into().map_err(|_| Fault::new(Reason::FRAME_SIZE_ERROR, "PING without 8 bytes"))?;
        self.idle_frame()?;
        if head.has(frame::ACK) {
            self.events.push_back(Event::Pong(payload));
        } else {
            frame::head(&mut self.control, frame::PING, frame::ACK, 0, payload.len());
            self.control.extend_from_slice(&payload);
            self.answers += frame::HEAD + payload.len();
        }
        Ok(())
    }

    fn goaway(&mut self, stream: u32, payload: &[u8]) -> Result<(), Fault> {
        let short = Fault::new(Reason::FRAME_SIZE_ERROR, "GOAWAY that is too short");
        let ([l0, l1, l2, l3, c0, c1, c2, c3], text) = payload.split_first_chunk().ok_or(short)?;
        if stream != 0 {
            return Err(Fault::protocol("GOAWAY on a stream"));
        }
        self.idle_frame()?;
        self.going_away = true;
        let last = u32::from_be_bytes([*l0, *l1, *l2, *l3]) & frame::MAX_31;
        if self.role == Role::Client {
            let mut unprocessed: Vec<u32> = self.streams.keys().copied().filter(|id| *id > last).collect();
            unprocessed.sort_unstable();
            for id in unprocessed {
                self.forget(id);
                self.events.push_back(Event::Reset(StreamId(id), Reason::REFUSED_STREAM));
            }
        }
        self.events.push_back(Event::GoAway(Reason(u32::from_be_bytes([*c0, *c1, *c2, *c3])), text.into()));
        Ok(())
    }

    fn window_update(&mut self, id: u32, value: u32) -> Result<(), Fault> {
        let more = i64::from(value & frame::MAX_31);
        if id == 0 {
            if more == 0 {
                return Err(Fault::protocol("WINDOW_UPDATE of 0"));
            }
            self.send_window += more;
            return if self.send_window > i64::from(frame::MAX_31) { Err(WINDOW_OVERFLOW) } else { Ok(()) };
        }
        if self.is_unused(id) {
            return Err(Fault::protocol("WINDOW_UPDATE on a stream that was not opened"));
        }
        let first = self.first_send_window;
        // On a stream that has ended it is not unusual.
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        stream.send_window += more;
        if more == 0 {
            self.refuse(id, Reason::PROTOCOL_ERROR);
        } else if stream.send_window + first > i64::from(frame::MAX_31) {
            self.refuse(id, Reason::FLOW_CONTROL_ERROR);
        } else {
            self.line_up(id);
        }
        Ok(())
    }
}

const fn calm(text: &'static str) -> Fault {
    Fault::new(Reason::ENHANCE_YOUR_CALM, text)
}

/// A payload that is one 32-bit number.
fn number(payload: &[u8]) -> Result<u32, Fault> {
    let wrong = |_| Fault::new(Reason::FRAME_SIZE_ERROR, "a frame of a length that it cannot have");
    payload.try_into().map(u32::from_be_bytes).map_err(wrong)
}
