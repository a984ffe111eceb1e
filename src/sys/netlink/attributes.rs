//! Netlink attributes, built and taken apart, and the header that precedes those of the netfilter subsystems.
//!
//! Formats: `linux/netlink.h`, `linux/netfilter/nfnetlink.h`.

use crate::error::Result;
use crate::invalid;
use std::borrow::Cow;

/// Size of `struct nfgenmsg`: family, version, resource id.
pub const HEADER_SIZE: usize = 4;

/// `struct nfgenmsg` of a family number.
pub fn header(family: u8) -> [u8; HEADER_SIZE] {
    [family, 0, 0, 0]
}

/// Flag of the type of an attribute that holds others (`NLA_F_NESTED`).
pub const NESTED: u16 = 1 << 15;

/// Length and type of an attribute.
pub const ATTRIBUTE_HEADER: usize = 4;

/// Appends an attribute, padded to a multiple of four.
pub fn put(buf: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(ATTRIBUTE_HEADER + value.len()).unwrap_or(u16::MAX);
    buf.extend_from_slice(&length.to_ne_bytes());
    buf.extend_from_slice(&kind.to_ne_bytes());
    buf.extend_from_slice(value);
    buf.resize(buf.len().next_multiple_of(4), 0);
}

/// Appends an attribute that is a text, with the zero that ends it.
pub fn put_text(buf: &mut Vec<u8>, kind: u16, text: &str) {
    put(buf, kind, &[text.as_bytes(), b"\0"].concat());
}

/// Attributes of one level, in order; each of them fits.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// Takes one level.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (_, next) = split(rest).ok_or_else(|| match rest.first_chunk::<ATTRIBUTE_HEADER>() {
                Some([l0, l1, ..]) => {
                    let length = u16::from_ne_bytes([*l0, *l1]);
                    invalid!("netlink attribute of {length} bytes where there are {}", rest.len())
                }
                None => invalid!("{} stray bytes after netlink attributes", rest.len()),
            })?;
            rest = next;
        }
        Ok(Attributes(bytes))
    }

    /// Every attribute with its type.
    pub fn iter(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (attribute, next) = split(rest)?;
            rest = next;
            Some(attribute)
        })
    }

    /// Every attribute of a type.
    pub fn all(self, kind: u16) -> impl Iterator<Item = &'a [u8]> {
        self.iter().filter(move |(other, _)| *other == kind).map(|(_, value)| value)
    }

    /// The first attribute of a type.
    pub fn get(self, kind: u16) -> Option<&'a [u8]> {
        self.all(kind).next()
    }

    /// Attributes inside an attribute; none when it is not there.
    pub fn nested(self, kind: u16) -> Result<Self> {
        Attributes::parse(self.get(kind).unwrap_or_default())
    }

    /// A 32-bit number as the netfilter subsystems write it, big endian.
    pub fn number(self, kind: u16) -> Result<Option<u32>> {
        let Some(value) = self.get(kind) else { return Ok(None) };
        let bytes = value.try_into().map_err(|_| invalid!("netlink attribute {kind}: no 32-bit number: {value:?}"))?;
        Ok(Some(u32::from_be_bytes(bytes)))
    }

    /// A text that must be there.
    pub fn text(self, kind: u16) -> Result<Cow<'a, str>> {
        let value = self.get(kind).ok_or_else(|| invalid!("netlink attribute {kind} is missing"))?;
        let value = value.strip_suffix(b"\0").unwrap_or(value);
        // Names of others may be anything; they need only differ from ours.
        Ok(String::from_utf8_lossy(value))
    }
}

/// An attribute with its type.
type Attribute<'a> = (u16, &'a [u8]);

/// The first attribute, and what follows it.
fn split(bytes: &[u8]) -> Option<(Attribute<'_>, &[u8])> {
    /// The two high bits of a type are flags (nested, byte order).
    const TYPE_MASK: u16 = 0x3fff;
    let (&[l0, l1, k0, k1], rest) = bytes.split_first_chunk::<ATTRIBUTE_HEADER>()?;
    let length = usize::from(u16::from_ne_bytes([l0, l1])).checked_sub(ATTRIBUTE_HEADER)?;
    let value = rest.get(..length)?;
    let next = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some(((u16::from_ne_bytes([k0, k1]) & TYPE_MASK, value), next))
}
