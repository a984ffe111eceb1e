//! A piece of a stream's bytes that moves from hand to hand without being copied.

use std::fmt;
use std::ops::Deref;

/// Bytes of a stream: what one or a few DATA frames carried.
#[derive(Clone, Default)]
pub struct Chunk {
    bytes: Vec<u8>,
    /// The bytes before were taken already.
    start: usize,
}

impl Chunk {
    /// An empty chunk with room for so many bytes.
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Chunk { bytes: Vec::with_capacity(capacity), start: 0 }
    }

    /// Takes the first `length` bytes off (all, when there are fewer). The smaller part is copied.
    #[must_use]
    pub fn split_to(&mut self, length: usize) -> Chunk {
        let length = length.min(self.len());
        if length > self.len() / 2 {
            let rest = self.get(length..).unwrap_or_default().to_vec();
            let mut head = std::mem::replace(self, Chunk::from(rest));
            head.bytes.truncate(head.start + length);
            return head;
        }
        let head = self.get(..length).unwrap_or_default().to_vec();
        self.advance(length);
        head.into()
    }

    /// Drops the first `length` bytes.
    pub fn advance(&mut self, length: usize) {
        self.start = self.bytes.len().min(self.start + length);
    }

    /// Appends bytes that belong to the same stream.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The memory that it holds, bytes.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}

impl From<Vec<u8>> for Chunk {
    fn from(bytes: Vec<u8>) -> Self {
        Chunk { bytes, start: 0 }
    }
}

impl From<&[u8]> for Chunk {
    fn from(bytes: &[u8]) -> Self {
        bytes.to_vec().into()
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }
}

impl PartialEq for Chunk {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Chunk {}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_the_whole() {
        let whole: Vec<u8> = (0..100).collect();
        for first in 0..=101 {
            for second in [0, 1, 3, 50, 200] {
                let mut rest = Chunk::from(whole.clone());
                let parts = [rest.split_to(first), rest.split_to(second), rest];
                assert_eq!(parts.iter().flat_map(|part| part.to_vec()).collect::<Vec<_>>(), whole);
                assert_eq!(parts[0].len(), first.min(100));
            }
        }
        let mut chunk = Chunk::from(&whole[..]);
        chunk.advance(99);
        assert_eq!(*chunk, [99]);
        chunk.advance(2);
        assert!(chunk.is_empty());
    }
}
