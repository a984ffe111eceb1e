//! The messages of nf_tables: their types, their attributes, and how one is opened.
//!
//! Formats: `linux/netfilter/nf_tables.h`. Numbers in attributes are big endian.

use crate::error::Result;
use crate::invalid;
use crate::sys::netlink::RawMessage;
use crate::sys::netlink::attributes::{Attributes, HEADER_SIZE};

/// `NFNL_SUBSYS_NFTABLES`.
pub(super) const SUBSYSTEM: u8 = 10;
pub(super) const NEWTABLE: u16 = kind(0);
pub(super) const GETTABLE: u16 = kind(1);
pub(super) const NEWCHAIN: u16 = kind(3);
pub(super) const GETCHAIN: u16 = kind(4);
pub(super) const NEWRULE: u16 = kind(6);
pub(super) const GETRULE: u16 = kind(7);

/// A message type: the subsystem and the number of the message within it.
pub(super) const fn kind(message: u8) -> u16 {
    u16::from_be_bytes([SUBSYSTEM, message])
}

pub(super) const TABLE_NAME: u16 = 1;
pub(super) const TABLE_FLAGS: u16 = 2;
/// Flag of a table that is switched off.
pub(super) const TABLE_F_DORMANT: u32 = 1;

pub(super) const CHAIN_TABLE: u16 = 1;
pub(super) const CHAIN_NAME: u16 = 3;
pub(super) const CHAIN_HOOK: u16 = 4;
pub(super) const CHAIN_POLICY: u16 = 5;
/// How many rules it has, and how many lead to it.
pub(super) const CHAIN_USE: u16 = 6;
pub(super) const CHAIN_TYPE: u16 = 7;
pub(super) const HOOK_NUMBER: u16 = 1;
pub(super) const HOOK_PRIORITY: u16 = 2;

pub(super) const RULE_TABLE: u16 = 1;
pub(super) const RULE_CHAIN: u16 = 2;
pub(super) const RULE_EXPRESSIONS: u16 = 4;
/// The protocol a rule is for, as iptables tells it to the kernel's x_tables modules.
pub(super) const RULE_COMPAT: u16 = 5;
/// Comments.
pub(super) const RULE_USERDATA: u16 = 7;

/// `NFPROTO_INET`: tables that IPv4 and IPv6 share.
pub(super) const INET: u8 = libc::NFPROTO_INET as u8;

/// Number of the family, and attributes, of a message of type `kind`; `None` for another type.
pub(super) fn open(message: &RawMessage, kind: u16) -> Result<Option<(u8, Attributes<'_>)>> {
    let Some((header, attributes)) = message.payload.split_first_chunk::<HEADER_SIZE>() else {
        return Err(invalid!("nf_tables message of {} bytes", message.payload.len()));
    };
    let known = message.kind == kind
        && matches!(i32::from(header[0]), libc::NFPROTO_INET | libc::NFPROTO_IPV4 | libc::NFPROTO_IPV6);
    if known { Ok(Some((header[0], Attributes::parse(attributes)?))) } else { Ok(None) }
}
