//! HPACK, the compression of headers (RFC 7541).
//!
//! The decoder keeps the dynamic table that the peer builds, at most [`TABLE_SIZE`] bytes. The encoder builds none: it
//! names what the static table has and writes the rest as it is, so nothing of what was sent is kept. A block costs
//! work in proportion to its bytes: once a list is longer than its limit, its fields are counted and not copied.

mod huffman;
mod table;

use super::fault::{Fault, Reason};
use super::headers::Headers;
use table::{Dynamic, OVERHEAD, STATIC};

/// Size of the peer's dynamic table at most, the value that both sides begin with.
const TABLE_SIZE: usize = 4096;

/// Bits of the index of a field that is in a table as a whole.
const INDEXED: u32 = 7;

/// Reads header blocks.
#[derive(Debug)]
pub struct Decoder {
    table: Dynamic,
    /// Holds a Huffman-coded name while the value is read; kept to save an allocation for each field.
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder { table: Dynamic::new(TABLE_SIZE), name: Vec::new(), value: Vec::new() }
    }
}

const fn bad(text: &'static str) -> Fault {
    Fault::new(Reason::COMPRESSION_ERROR, text)
}

const NO_ENTRY: Fault = bad("an index that no table has");

impl Decoder {
    /// Reads one whole block. `None` when the list is longer than `limit` (its names, values, and 32 bytes for each
    /// field): the block was read all the same, as the next one depends on it. A fault is one of the connection.
    pub fn decode(&mut self, mut block: &[u8], limit: usize) -> Result<Option<Headers>, Fault> {
        let mut headers = Headers::default();
        let (mut size, mut begun) = (0usize, false);
        while let Some(first) = block.first() {
            let (prefix, kept) = match first {
                0x80.. => (INDEXED, false),
                0x40..0x80 => (6, true),
                0x20..0x40 => {
                    let capacity = integer(&mut block, 5)?;
                    if begun || capacity > TABLE_SIZE {
                        return Err(bad("a dynamic table size out of place or above the limit"));
                    }
                    self.table.set_capacity(capacity);
                    continue;
                }
                // Without indexing, or never indexed: the same for who reads.
                _ => (4, false),
            };
            begun = true;
            let index = integer(&mut block, prefix)?;
            let mut add = |name: &[u8], value: &[u8]| {
                size = size.saturating_add(name.len() + value.len() + OVERHEAD);
                if size <= limit {
                    headers.push_bytes(name, value);
                }
            };
            if prefix == INDEXED {
                let (name, value) = self.table.get(index).ok_or(NO_ENTRY)?;
                add(name, value);
                continue;
            }
            let name = match index {
                0 => string(&mut block, &mut self.name)?,
                _ => self.table.get(index).ok_or(NO_ENTRY)?.0,
            };
            let value = string(&mut block, &mut self.value)?;
            add(name, value);
            if kept {
                // The name may be that of an entry which the insertion removes.
                let name = name.to_vec();
                self.table.insert(&name, value);
            }
        }
        Ok((size <= limit).then_some(headers))
    }
}

/// An integer with a prefix of so many bits (RFC 7541, section 5.1), at most 2^28 and a little.
fn integer(input: &mut &[u8], prefix: u32) -> Result<usize, Fault> {
    let cut = bad("a header block that ends within an integer");
    let mask = (1u8 << prefix) - 1;
    let mut next = || input.split_off_first().ok_or(cut);
    let mut value = usize::from(next()? & mask);
    if value < usize::from(mask) {
        return Ok(value);
    }
    for shift in [0, 7, 14, 21] {
        let byte = next()?;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(bad("an integer in a header block that is too large"))
}

/// A string (RFC 7541, section 5.2): a slice of the input, or decoded into the buffer.
fn string<'a, 'i: 'a>(input: &mut &'i [u8], buffer: &'a mut Vec<u8>) -> Result<&'a [u8], Fault> {
    let coded = input.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(input, 7)?;
    let bytes = input.split_off(..length).ok_or(bad("a header block that ends within a string"))?;
    if !coded {
        return Ok(bytes);
    }
    buffer.clear();
    huffman::decode(bytes, buffer).ok_or(bad("a header string with a bad Huffman code"))?;
    Ok(buffer)
}

/// Writes header blocks.
#[derive(Debug, Default)]
pub struct Encoder {
    /// The peer knows that the dynamic table is not used.
    begun: bool,
}

impl Encoder {
    /// Appends the block of these headers. Credentials are marked as never to be indexed (RFC 7541, section 7.1.3).
    pub fn encode(&mut self, headers: &Headers, out: &mut Vec<u8>) {
        if !self.begun {
            // A dynamic table of size 0: whatever limit the peer sets later is kept already.
            out.push(0x20);
            self.begun = true;
        }
        for (name, value) in headers.iter() {
            let mut named = (1..).zip(&STATIC).filter(|(_, entry)| entry.0.as_bytes() == name);
            let first = named.next();
            if let Some((index, _)) = first.into_iter().chain(named).find(|(_, entry)| entry.1.as_bytes() == value) {
                write_integer(0x80, INDEXED, index, out);
                continue;
            }
            let never = if matches!(name, b"authorization" | b"cookie") { 0x10 } else { 0 };
            let index = first.map_or(0, |(index, _)| index);
            write_integer(never, 4, index, out);
            if index == 0 {
                write_string(name, out);
            }
            write_string(value, out);
        }
    }
}

fn write_integer(flags: u8, prefix: u32, value: usize, out: &mut Vec<u8>) {
    let mask = (1usize << prefix) - 1;
    if value < mask {
        out.push(flags | value as u8);
        return;
    }
    out.push(flags | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn write_string(bytes: &[u8], out: &mut Vec<u8>) {
    write_integer(0, 7, bytes.len(), out);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests;
