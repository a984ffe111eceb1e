//! The two protocol families that rules are made for.

use std::net::IpAddr;

/// IPv4 or IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both of them.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// The family with this number.
    pub fn numbered(number: u8) -> Option<Self> {
        Family::ALL.into_iter().find(|family| family.number() == number)
    }

    /// `AF_INET` or `AF_INET6` (`linux/socket.h`). Netfilter's `NFPROTO_IPV4` and `NFPROTO_IPV6` are the same numbers.
    pub fn number(self) -> u8 {
        match self {
            Family::V4 => libc::AF_INET as u8,
            Family::V6 => libc::AF_INET6 as u8,
        }
    }

    /// What a person calls it.
    pub fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }
}
