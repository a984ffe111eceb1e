//! DER, as much as keys, requests and certificates need (ITU-T X.690): a reader that trusts nothing, and a writer.
//!
//! The reader copies nothing and only goes forward; what it reads costs time in proportion to its length.

use crate::error::Result;
use crate::invalid;

/// BOOLEAN.
pub const BOOLEAN: u8 = 0x01;
/// INTEGER.
pub const INTEGER: u8 = 0x02;
/// BIT STRING.
pub const BIT_STRING: u8 = 0x03;
/// OCTET STRING.
pub const OCTET_STRING: u8 = 0x04;
/// OBJECT IDENTIFIER.
pub const OBJECT: u8 = 0x06;
/// UTCTime.
pub const UTC_TIME: u8 = 0x17;
/// GeneralizedTime.
pub const GENERALIZED_TIME: u8 = 0x18;
/// SEQUENCE and SEQUENCE OF.
pub const SEQUENCE: u8 = 0x30;
/// SET and SET OF.
pub const SET: u8 = 0x31;

/// The tag `[number]` around a whole element.
pub const fn explicit(number: u8) -> u8 {
    0xa0 | number
}

/// The tag `[number]` in place of a primitive element's own.
pub const fn implicit(number: u8) -> u8 {
    0x80 | number
}

/// Reads elements one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Starts at the beginning.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader(bytes)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tag of the next element.
    pub fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// The content of the next element, which must have this tag.
    pub fn read(&mut self, tag: u8) -> Result<&'a [u8]> {
        let (found, _, content) = self.any()?;
        if found != tag {
            return Err(invalid!("DER: tag {found:#04x} where {tag:#04x} was expected"));
        }
        Ok(content)
    }

    /// A reader of the content of the next element, which must have this tag.
    pub fn enter(&mut self, tag: u8) -> Result<Reader<'a>> {
        self.read(tag).map(Reader)
    }

    /// The content of the next element if it has this tag; otherwise it stays.
    pub fn optional(&mut self, tag: u8) -> Result<Option<&'a [u8]>> {
        if self.peek() == Some(tag) { self.read(tag).map(Some) } else { Ok(None) }
    }

    /// The next element: its tag, all of its bytes, its content.
    pub fn any(&mut self) -> Result<(u8, &'a [u8], &'a [u8])> {
        let all = self.0;
        let cut = || invalid!("DER: cut short");
        let [tag, length, ..] = *all else { return Err(cut()) };
        if tag & 0x1f == 0x1f {
            return Err(invalid!("DER: a tag of several bytes"));
        }
        let (length, head) = if length < 0x80 {
            (usize::from(length), 2)
        } else {
            let count = usize::from(length & 0x7f);
            // Three bytes are enough for anything that is read here.
            let bytes = all.get(2..2 + count).filter(|bytes| (1..=3).contains(&bytes.len()));
            let bytes = bytes.ok_or_else(|| invalid!("DER: a length that cannot be"))?;
            let length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            if length < 0x80 || bytes.first() == Some(&0) {
                return Err(invalid!("DER: a length that is not in its shortest form"));
            }
            (length, 2 + count)
        };
        let whole = all.get(..head + length).ok_or_else(cut)?;
        self.0 = all.get(whole.len()..).unwrap_or_default();
        Ok((tag, whole, whole.get(head..).unwrap_or_default()))
    }

    /// The bytes of an INTEGER that is not negative, without the zero in front.
    pub fn natural(&mut self) -> Result<&'a [u8]> {
        match self.read(INTEGER)? {
            [] => Err(invalid!("DER: an integer without bytes")),
            [first, ..] if *first >= 0x80 => Err(invalid!("DER: a negative integer")),
            [0, rest @ ..] if !rest.is_empty() => {
                if rest.first().is_some_and(|byte| *byte < 0x80) {
                    return Err(invalid!("DER: an integer that is not in its shortest form"));
                }
                Ok(rest)
            }
            bytes => Ok(bytes),
        }
    }

    /// The bytes of a BIT STRING of whole bytes.
    pub fn bits(&mut self) -> Result<&'a [u8]> {
        match self.read(BIT_STRING)? {
            [0, bytes @ ..] => Ok(bytes),
            _ => Err(invalid!("DER: a bit string that is not of whole bytes")),
        }
    }

    /// Fails when something is left.
    pub fn end(&self) -> Result<()> {
        if self.is_empty() { Ok(()) } else { Err(invalid!("DER: {} bytes too many", self.0.len())) }
    }
}

/// An element of a tag and its content.
pub fn write(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let zeros = length.iter().take_while(|byte| **byte == 0).count();
    let mut element = Vec::with_capacity(content.len() + 2 + length.len());
    element.push(tag);
    if content.len() >= 0x80 {
        element.push(0x80 | (length.len() - zeros) as u8);
        element.extend_from_slice(length.get(zeros..).unwrap_or_default());
    } else {
        element.push(content.len() as u8);
    }
    element.extend_from_slice(content);
    element
}

/// A SEQUENCE of elements.
pub fn sequence(elements: &[&[u8]]) -> Vec<u8> {
    // It may be part of a private key.
    write(SEQUENCE, &zeroize::Zeroizing::new(elements.concat()))
}

/// An INTEGER of big-endian bytes without zeros in front; none are zero.
pub fn integer(bytes: &[u8]) -> Vec<u8> {
    let sign = bytes.first().is_none_or(|byte| *byte >= 0x80);
    let mut content = Vec::with_capacity(bytes.len() + 1);
    content.extend(sign.then_some(0));
    content.extend_from_slice(bytes);
    write(INTEGER, &content)
}

/// A BIT STRING of whole bytes.
pub fn bits(bytes: &[u8]) -> Vec<u8> {
    write(BIT_STRING, &[&[0], bytes].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_and_read() {
        for length in [0, 1, 127, 128, 255, 256, 65_535, 65_536, 0xff_ffff] {
            let element = write(OCTET_STRING, &vec![7; length]);
            let mut reader = Reader::new(&element);
            assert_eq!(reader.read(OCTET_STRING).unwrap().len(), length);
            reader.end().unwrap();
        }
        assert_eq!(write(SET, &[1; 130])[..3], [0x31, 0x81, 130]);
        assert_eq!(integer(&[]), [2, 1, 0]);
        assert_eq!(integer(&[0x80]), [2, 2, 0, 0x80]);
        assert_eq!(bits(&[5]), [3, 2, 0, 5]);
    }

    #[test]
    fn what_is_not_der_is_refused() {
        let refused: [(&[u8], &str); 9] = [
            (&[], "nothing"),
            (&[0x30], "no length"),
            (&[0x30, 1], "cut short"),
            (&[0x30, 0x80, 0, 0], "without a length"),
            (&[0x30, 0x81, 1, 0], "a length longer than it must be"),
            (&[0x30, 0x82, 0, 0x80], "a zero in front of the length"),
            (&[0x30, 0x84, 1, 0, 0, 0], "a length of 16 MiB"),
            (&[0x30, 0xff], "a length that is reserved"),
            (&[0x1f, 1, 0], "a tag of several bytes"),
        ];
        for (bytes, why) in refused {
            assert!(Reader::new(bytes).any().is_err(), "{why}");
        }
        for bytes in [&[2, 0][..], &[2, 1, 0x80], &[2, 2, 0, 1]] {
            assert!(Reader::new(bytes).natural().is_err(), "{bytes:?}");
        }
        assert!(Reader::new(&[3, 1, 1]).bits().is_err());
        assert!(Reader::new(&[3, 0]).bits().is_err());
        assert!(Reader::new(&[0]).end().is_err());
    }

    #[test]
    fn elements_are_read_in_order() {
        let inner = [write(BOOLEAN, &[0xff]), integer(&[1, 2])].concat();
        let whole = [sequence(&[&inner]), write(explicit(1), &[])].concat();
        let mut reader = Reader::new(&whole);
        let mut sequence = reader.enter(SEQUENCE).unwrap();
        assert_eq!(sequence.optional(INTEGER).unwrap(), None);
        assert_eq!(sequence.optional(BOOLEAN).unwrap(), Some(&[0xff][..]));
        assert_eq!(sequence.natural().unwrap(), [1, 2]);
        sequence.end().unwrap();
        assert!(reader.read(implicit(1)).is_err());
        assert!(reader.is_empty(), "what had another tag is passed over");
    }
}
