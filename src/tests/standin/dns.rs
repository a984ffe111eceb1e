//! Answers DNS queries (RFC 1035) with one address nobody else would answer with.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The answer to every query for A (TEST-NET-1).
pub const ANSWER_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);
/// The answer to every query for AAAA (documentation prefix).
pub const ANSWER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x53);

const HEADER: usize = 12;
const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;

/// The answer to a query with one question; `None` when it is none.
pub fn answer(query: &[u8]) -> Option<Vec<u8>> {
    let mut end = HEADER;
    while *query.get(end)? != 0 {
        end += usize::from(query[end]) + 1;
    }
    let question = query.get(HEADER..end + 5)?;
    let kind = u16::from_be_bytes([question[question.len() - 4], question[question.len() - 3]]);
    let address = match kind {
        TYPE_A => Some(ANSWER_V4.octets().to_vec()),
        TYPE_AAAA => Some(ANSWER_V6.octets().to_vec()),
        _ => None,
    };
    let mut packet = query[..2].to_vec();
    // Response, recursion desired and available, no error; one question, one answer or none.
    packet.extend_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(address.is_some()), 0, 0, 0, 0]);
    packet.extend_from_slice(question);
    if let Some(address) = address {
        packet.extend_from_slice(&[0xc0, HEADER as u8]);
        packet.extend_from_slice(&kind.to_be_bytes());
        packet.extend_from_slice(&[0, 1, 0, 0, 0, 5, 0, address.len() as u8]);
        packet.extend_from_slice(&address);
    }
    Some(packet)
}
