//! Frames on the wire: their heads, those that are written here, and the decoder that cuts them out of the bytes
//! received (RFC 9113, sections 3.4, 4 and 6).

use super::fault::{Fault, Reason};

/// What a client sends before its first frame.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length of a frame's head, bytes.
pub(super) const HEAD: usize = 9;
/// Longest payload that is taken, and the longest that any peer must take, bytes.
pub(super) const MAX_PAYLOAD: usize = 16_384;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PUSH_PROMISE: u8 = 5;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const ACK: u8 = 1;
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
pub(super) const PADDED: u8 = 8;
pub(super) const WITH_PRIORITY: u8 = 0x20;

/// Highest stream identifier and largest window.
pub(super) const MAX_31: u32 = 0x7fff_ffff;

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl Head {
    fn parse(bytes: [u8; HEAD]) -> Self {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = bytes;
        Head {
            length: u32::from_be_bytes([0, l0, l1, l2]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & MAX_31,
        }
    }

    pub(super) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Appends the head of a frame.
pub(super) fn head(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, length: usize) {
    debug_assert!(length <= MAX_PAYLOAD);
    out.extend_from_slice(&(length as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
}

/// Appends a frame whose payload is a 32-bit number.
pub(super) fn number(out: &mut Vec<u8>, kind: u8, stream: u32, value: u32) {
    head(out, kind, 0, stream, 4);
    out.extend_from_slice(&value.to_be_bytes());
}

/// Appends a SETTINGS frame.
pub(super) fn settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    head(out, SETTINGS, 0, 0, settings.len() * 6);
    for (id, value) in settings {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends a header block: HEADERS, and CONTINUATION for what does not fit.
pub(super) fn header_block(out: &mut Vec<u8>, stream: u32, end_stream: bool, block: &[u8]) {
    let mut kind = HEADERS;
    let mut flags = if end_stream { END_STREAM } else { 0 };
    let mut rest = block;
    loop {
        let (piece, after) = rest.split_at(rest.len().min(MAX_PAYLOAD));
        if after.is_empty() {
            flags |= END_HEADERS;
        }
        head(out, kind, flags, stream, piece.len());
        out.extend_from_slice(piece);
        if after.is_empty() {
            return;
        }
        (kind, flags, rest) = (CONTINUATION, 0, after);
    }
}

/// What the decoder found next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// A DATA frame begins; all of its payload counts for flow control.
    DataStart { stream: u32, payload: usize },
    /// Some of its bytes; so many more follow at most.
    Data { stream: u32, bytes: &'a [u8], more: usize },
    /// It ends; so many bytes of it were padding. `empty` says that it had no others.
    DataEnd { stream: u32, padding: usize, empty: bool, end_stream: bool },
    /// Any other frame, whole.
    Frame(Head, &'a [u8]),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// This many bytes of the client's preface have come.
    Preface(usize),
    Head,
    /// A frame that is held until it is whole.
    Payload(Head),
    /// A padded DATA frame, before the octet that says how much.
    PadLength(Head),
    Data {
        head: Head,
        left: usize,
        padding: usize,
    },
    /// Padding that is left to be skipped.
    Padding {
        head: Head,
        left: usize,
        padding: usize,
    },
}

/// Cuts the bytes received into frames. The payload of DATA frames is passed on as it comes, other frames are held
/// until they are whole, which is at most [`MAX_PAYLOAD`] bytes.
#[derive(Debug)]
pub(super) struct Decoder {
    state: State,
    held: Vec<u8>,
    /// The payload in `held` was given out.
    used: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder { state: State::Head, held: Vec::new(), used: false }
    }
}

impl Decoder {
    /// A decoder for what a client sends.
    pub(super) fn with_preface() -> Self {
        Decoder { state: State::Preface(0), ..Decoder::default() }
    }

    /// The next piece; `None` when all bytes are used. What comes after a fault is not decoded.
    pub(super) fn next<'a, 'i: 'a>(&'a mut self, input: &mut &'i [u8]) -> Result<Option<Piece<'a>>, Fault> {
        if std::mem::take(&mut self.used) {
            // A connection at rest holds no buffer.
            self.held = Vec::new();
        }
        loop {
            match self.state {
                State::Preface(seen) => {
                    let expected = PREFACE.get(seen..).unwrap_or_default();
                    let length = expected.len().min(input.len());
                    if input.split_off(..length) != expected.get(..length) {
                        return Err(Fault::protocol("what the peer sent first is not HTTP/2"));
                    }
                    if length < expected.len() {
                        self.state = State::Preface(seen + length);
                        return Ok(None);
                    }
                    self.state = State::Head;
                }
                State::Head => {
                    let Some(head) = self.head(input) else { return Ok(None) };
                    if head.length > MAX_PAYLOAD {
                        return Err(Fault::new(Reason::FRAME_SIZE_ERROR, "a frame longer than 16384 bytes"));
                    }
                    if head.kind != DATA {
                        self.state = State::Payload(head);
                        continue;
                    }
                    if head.stream == 0 {
                        return Err(Fault::protocol("DATA on stream 0"));
                    }
                    self.state = if head.has(PADDED) {
                        State::PadLength(head)
                    } else {
                        State::Data { head, left: head.length, padding: 0 }
                    };
                    return Ok(Some(Piece::DataStart { stream: head.stream, payload: head.length }));
                }
                State::Payload(head) => {
                    if self.held.is_empty()
                        && let Some(payload) = input.split_off(..head.length)
                    {
                        self.state = State::Head;
                        return Ok(Some(Piece::Frame(head, payload)));
                    }
                    if !self.fill(input, head.length) {
                        return Ok(None);
                    }
                    self.state = State::Head;
                    self.used = true;
                    return Ok(Some(Piece::Frame(head, &self.held)));
                }
                State::PadLength(head) => {
                    let left = head.length.checked_sub(1);
                    let left = left.ok_or(Fault::new(Reason::FRAME_SIZE_ERROR, "padded DATA without a length"))?;
                    let Some(pad) = input.split_off_first() else { return Ok(None) };
                    let left = left.checked_sub(usize::from(*pad));
                    let left = left.ok_or(Fault::protocol("DATA with more padding than payload"))?;
                    self.state = State::Data { head, left, padding: usize::from(*pad) };
                }
                State::Data { head, left: 0, padding } => self.state = State::Padding { head, left: padding, padding },
                State::Data { head, left, padding } => {
                    let bytes = input.split_off(..left.min(input.len())).unwrap_or_default();
                    if bytes.is_empty() {
                        return Ok(None);
                    }
                    let more = left - bytes.len();
                    self.state = State::Data { head, left: more, padding };
                    return Ok(Some(Piece::Data { stream: head.stream, bytes, more }));
                }
                State::Padding { head, left, padding } => {
                    let skipped = input.split_off(..left.min(input.len())).unwrap_or_default().len();
                    if skipped < left {
                        self.state = State::Padding { head, left: left - skipped, padding };
                        return Ok(None);
                    }
                    self.state = State::Head;
                    let padding = padding + usize::from(head.has(PADDED));
                    return Ok(Some(Piece::DataEnd {
                        stream: head.stream,
                        padding,
                        empty: padding == head.length,
                        end_stream: head.has(END_STREAM),
                    }));
                }
            }
        }
    }

    fn head(&mut self, input: &mut &[u8]) -> Option<Head> {
        if self.held.is_empty()
            && let Some((bytes, rest)) = input.split_first_chunk()
        {
            *input = rest;
            return Some(Head::parse(*bytes));
        }
        if !self.fill(input, HEAD) {
            return None;
        }
        let head = self.held.first_chunk().map(|bytes| Head::parse(*bytes));
        self.held.clear();
        head
    }

    /// Moves input into `held` until it has `length` bytes; returns whether it has.
    fn fill(&mut self, input: &mut &[u8], length: usize) -> bool {
        let missing = length.saturating_sub(self.held.len()).min(input.len());
        self.held.extend_from_slice(input.split_off(..missing).unwrap_or_default());
        self.held.len() >= length
    }
}

#[cfg(test)]
mod tests;
