//! Netlink in the calling thread's network namespace: links and addresses by rtnetlink, and raw requests to it and to the
//! netfilter subsystems. Sockets live only as long as a call, or as a thread that is inside a namespace for the rest of its
//! life (an open one keeps the namespace alive).
//!
//! Formats: rtnetlink(7), `linux/rtnetlink.h`, `linux/if_addr.h`. A family that the kernel does not have (IPv6 off at
//! boot) is an error of kind `Unsupported`.

pub mod attributes;
pub mod message;
pub mod sock_diag;
pub mod socket;

use crate::error::{Context, Error, Kind, Result};
use attributes::{Attributes, put};
pub use message::{Change, RawMessage};
use nix::sys::socket::SockProtocol;
use std::net::IpAddr;

/// Every address of every interface.
pub fn addresses() -> Result<Vec<IpAddr>> {
    let found = dump(libc::RTM_GETADDR, &[0; ADDRESS_HEADER]).context("list addresses")?;
    Ok(found.iter().filter_map(address).collect())
}

/// Attributes of `struct ifaddrmsg`.
mod ifa {
    pub const ADDRESS: u16 = 1;
    pub const LOCAL: u16 = 2;
}

/// Size of `struct ifaddrmsg`: family, prefix length, flags, scope, interface.
const ADDRESS_HEADER: usize = 8;

/// The address that a message tells of, if it is one that does.
pub fn address(message: &RawMessage) -> Option<IpAddr> {
    let attributes = Attributes::parse(message.payload.get(ADDRESS_HEADER..)?).ok()?;
    // On a point-to-point link `ADDRESS` is the peer's, and `LOCAL` ours (rtnetlink(7)).
    let bytes = attributes.get(ifa::LOCAL).or_else(|| attributes.get(ifa::ADDRESS))?;
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let address = v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()?;
    (message.kind == libc::RTM_NEWADDR).then_some(address)
}

/// Adds an address to an interface; one that is there is fine.
pub fn add_address(interface: &str, address: IpAddr, prefix: u8) -> Result<()> {
    let what = || format!("add address {address}/{prefix} to {interface}");
    let payload = address_payload(interface, address, prefix).with_context(what)?;
    let added = change(libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &payload);
    unless(added, libc::EEXIST).map(drop).with_context(what)
}

/// Removes an address from an interface; returns whether it was there.
pub fn remove_address(interface: &str, address: IpAddr, prefix: u8) -> Result<bool> {
    let what = || format!("remove address {address}/{prefix} from {interface}");
    let payload = address_payload(interface, address, prefix).with_context(what)?;
    unless(change(libc::RTM_DELADDR, 0, &payload), libc::EADDRNOTAVAIL).with_context(what)
}

fn address_payload(interface: &str, address: IpAddr, prefix: u8) -> Result<Vec<u8>> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut payload = vec![family as u8, prefix, 0, 0];
    payload.extend(index(interface)?.to_ne_bytes());
    for kind in [ifa::LOCAL, ifa::ADDRESS] {
        match address {
            IpAddr::V4(v4) => put(&mut payload, kind, &v4.octets()),
            IpAddr::V6(v6) => put(&mut payload, kind, &v6.octets()),
        }
    }
    Ok(payload)
}

/// Brings an interface up.
pub fn set_link_up(interface: &str) -> Result<()> {
    let what = || format!("set interface {interface} up");
    // struct ifinfomsg: family, padding, type, interface, flags, and which flags are meant.
    let mut payload = vec![0; 4];
    let up = libc::IFF_UP.cast_unsigned();
    for number in [index(interface).with_context(what)?, up, up] {
        payload.extend(number.to_ne_bytes());
    }
    change(libc::RTM_NEWLINK, 0, &payload).with_context(what)
}

/// Whether `lo` is up.
pub fn loopback_is_up() -> Result<bool> {
    /// `struct ifinfomsg`: family, padding, type, interface, flags, changed flags.
    const HEADER: usize = 16;
    /// The index of `lo` in every network namespace (`LOOPBACK_IFINDEX` in the kernel's net/flow.h).
    const LOOPBACK: u32 = 1;
    let links = dump(libc::RTM_GETLINK, &[0; HEADER]).context("list interfaces")?;
    let number = |link: &RawMessage, at: usize| {
        link.payload.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes)
    };
    let it = links.iter().find(|link| link.kind == libc::RTM_NEWLINK && number(link, 4) == Some(LOOPBACK));
    Ok(it.and_then(|link| number(link, 8)).is_some_and(|flags| flags & libc::IFF_UP.cast_unsigned() != 0))
}

fn index(interface: &str) -> Result<u32> {
    nix::net::if_::if_nametoindex(interface).map_err(|e| Error::from(e).with_kind(Kind::NotFound))
}

/// Sends one request to `NETLINK_ROUTE` that changes something, with `flags` besides `NLM_F_REQUEST`.
pub fn change(kind: u16, flags: i32, payload: &[u8]) -> Result<()> {
    socket::exchange(SockProtocol::NetlinkRoute, kind, flags as u16, payload).map(drop)
}

/// Everything that the kernel answers to one request to `NETLINK_ROUTE` for a dump.
pub fn dump(kind: u16, payload: &[u8]) -> Result<Vec<RawMessage>> {
    socket::exchange(SockProtocol::NetlinkRoute, kind, libc::NLM_F_DUMP as u16, payload)
}

/// Turns one errno into "it was so already" (`false`).
pub fn unless(result: Result<()>, errno: i32) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(e) if e.errno() == Some(errno) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Sends one request to `NETLINK_NETFILTER` with `NLM_F_REQUEST | flags` and collects the answers until done; a dump
/// that the kernel marks interrupted (`NLM_F_DUMP_INTR`) is repeated. A refusal carries its errno
/// ([`Error::errno`]); one that is not there is `NotFound`.
pub fn netfilter(kind: u16, flags: u16, payload: &[u8]) -> Result<Vec<RawMessage>> {
    socket::exchange(SockProtocol::NetlinkNetFilter, kind, flags, payload)
}

/// Sends changes of one subsystem of `NETLINK_NETFILTER` (`NFNL_SUBSYS_…`) as one batch, of which the kernel takes all
/// or nothing.
pub fn netfilter_batch(subsystem: u8, changes: &[Change]) -> Result<()> {
    socket::batch(subsystem, changes)
}
