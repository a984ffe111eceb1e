//! Messages in the bytes of a stream: a flag, a length of 32 bits, and the message (PROTOCOL-HTTP2,
//! "Length-Prefixed-Message").

use super::status::{Code, Status};
use crate::h2::Chunk;
use std::collections::VecDeque;

/// Length of what stands before each message, bytes.
pub const PREFIX: usize = 5;

/// What stands before a message of this length. A message of 4 GiB or more cannot be sent; its length is cut short.
pub fn prefix(length: usize) -> [u8; PREFIX] {
    debug_assert!(u32::try_from(length).is_ok());
    let [a, b, c, d] = (length as u32).to_be_bytes();
    [0, a, b, c, d]
}

/// A message with its prefix, to be sent.
pub fn encode(message: &[u8]) -> Vec<u8> {
    [&prefix(message.len()), message].concat()
}

/// A message as it came: in pieces, which are passed on as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// The pieces in their order; none is empty.
    pub pieces: Vec<Chunk>,
}

impl Message {
    /// Its length, bytes.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len()).sum()
    }

    /// Whether it has no bytes: a message of nothing but defaults.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// All of it in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
        bytes
    }
}

/// What is found next in a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// A message of this length begins.
    Start(usize),
    /// Some of its bytes.
    Body(Chunk),
    /// It is complete.
    End,
}

/// Cuts a stream into messages without putting them together.
#[derive(Debug)]
pub struct Deframer {
    /// Longest message that is taken, bytes.
    limit: usize,
    /// What a compressed message is answered with.
    compressed: Code,
    chunks: VecDeque<Chunk>,
    prefix: Vec<u8>,
    /// Bytes that are missing to the end of the message, within one.
    left: Option<usize>,
}

impl Deframer {
    /// Begins a stream of messages that have at most `limit` bytes each, to a server or to a client.
    pub fn new(limit: usize, to_server: bool) -> Self {
        let compressed = if to_server { Code::Unimplemented } else { Code::Internal };
        Deframer { limit, compressed, chunks: VecDeque::new(), prefix: Vec::new(), left: None }
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, chunk: Chunk) {
        self.chunks.push_back(chunk);
    }

    /// The next piece; `None` when more bytes are needed. After an error the stream is of no use.
    pub fn piece(&mut self) -> Result<Option<Piece>, Status> {
        if self.left == Some(0) {
            self.left = None;
            return Ok(Some(Piece::End));
        }
        while let Some(chunk) = self.chunks.front_mut() {
            if chunk.is_empty() {
                self.chunks.pop_front();
                continue;
            }
            if let Some(left) = &mut self.left {
                let body = if chunk.len() <= *left {
                    self.chunks.pop_front().unwrap_or_default()
                } else {
                    chunk.split_to(*left)
                };
                *left -= body.len();
                return Ok(Some(Piece::Body(body)));
            }
            let missing = PREFIX.saturating_sub(self.prefix.len()).min(chunk.len());
            self.prefix.extend_from_slice(chunk.get(..missing).unwrap_or_default());
            chunk.advance(missing);
            if let [flag, a, b, c, d] = *self.prefix {
                self.prefix.clear();
                let length = self.check(flag, u32::from_be_bytes([a, b, c, d]) as usize)?;
                self.left = Some(length);
                return Ok(Some(Piece::Start(length)));
            }
        }
        Ok(None)
    }

    fn check(&self, flag: u8, length: usize) -> Result<usize, Status> {
        match flag {
            0 if length <= self.limit => Ok(length),
            0 => {
                let text = format_args!("received message larger than max ({length} vs. {})", self.limit);
                Err(Status::new(Code::ResourceExhausted, text))
            }
            1 => Err(Status::new(self.compressed, "the message is compressed, and only identity is understood")),
            _ => Err(Status::new(Code::Internal, format_args!("a message with the unknown flag {flag}"))),
        }
    }

    /// Whether the stream may end here: not within a message.
    pub fn is_between(&self) -> bool {
        self.left.is_none() && self.prefix.is_empty() && self.chunks.iter().all(|chunk| chunk.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(deframer: &mut Deframer) -> Result<(Vec<Vec<u8>>, bool), Status> {
        let (mut messages, mut open) = (Vec::new(), None);
        while let Some(piece) = deframer.piece()? {
            match piece {
                Piece::Start(length) => open = Some(Vec::with_capacity(length)),
                Piece::Body(body) => open.as_mut().unwrap().extend_from_slice(&body),
                Piece::End => messages.push(open.take().unwrap()),
            }
        }
        Ok((messages, open.is_none()))
    }

    #[test]
    fn cuts_do_not_matter() {
        let sent = [b"".to_vec(), b"a".to_vec(), vec![7; 300], b"".to_vec(), vec![8; 3]];
        let stream: Vec<u8> = sent.iter().flat_map(|message| encode(message)).collect();
        for step in 1..=stream.len() {
            let mut deframer = Deframer::new(300, true);
            stream.chunks(step).for_each(|part| deframer.push(part.into()));
            assert_eq!(pieces(&mut deframer).unwrap().0, sent, "{step} bytes at a time");
            assert!(deframer.is_between());
        }
        for end in 1..stream.len() {
            let mut deframer = Deframer::new(300, true);
            deframer.push(stream[..end].into());
            let (messages, _) = pieces(&mut deframer).unwrap();
            let whole: usize = messages.iter().map(|message| message.len() + PREFIX).sum();
            assert_eq!(deframer.is_between(), whole == end, "cut at {end}");
        }
    }

    #[test]
    fn what_is_too_long_or_compressed_is_refused() {
        let refused = |bytes: &[u8], to_server| {
            let mut deframer = Deframer::new(300, to_server);
            deframer.push(bytes.into());
            pieces(&mut deframer).unwrap_err()
        };
        let status = refused(&[0, 0, 0, 1, 45], true);
        assert_eq!(status.code, Code::ResourceExhausted);
        assert_eq!(status.message, "received message larger than max (301 vs. 300)");
        assert_eq!(refused(&[0, 255, 255, 255, 255], true).code, Code::ResourceExhausted);
        assert_eq!(refused(&[1, 0, 0, 0, 1], true).code, Code::Unimplemented);
        assert_eq!(refused(&[1, 0, 0, 0, 1], false).code, Code::Internal);
        assert_eq!(refused(&[2, 0, 0, 0, 1], true).code, Code::Internal);
    }

    #[test]
    fn large_pieces_are_not_copied() {
        let mut deframer = Deframer::new(usize::MAX, true);
        deframer.push(prefix(40_000).as_slice().into());
        let body = vec![1; 40_000];
        let address = body.as_ptr();
        deframer.push(body.into());
        deframer.push(encode(b"next").into());
        assert_eq!(deframer.piece().unwrap(), Some(Piece::Start(40_000)));
        let Ok(Some(Piece::Body(body))) = deframer.piece() else { panic!("no body") };
        assert_eq!((body.as_ptr(), body.len()), (address, 40_000));
    }
}
