//! The TCP sockets that listen in the calling thread's network namespace (sock_diag(7)).

use super::RawMessage;
use super::socket;
use crate::error::{Context, Result};
use nix::sys::socket::SockProtocol;
use std::collections::BTreeSet;

/// `SOCK_DIAG_BY_FAMILY` (`linux/sock_diag.h`).
const BY_FAMILY: u16 = 20;
/// `TCP_LISTEN` (`net/tcp_states.h`).
const LISTEN: u8 = 10;
/// Size of `struct inet_diag_sockid` (`linux/inet_diag.h`).
const SOCKET_ID: usize = 48;

/// The ports on which somebody listens for TCP, in either family, at whatever address.
pub fn listening() -> Result<BTreeSet<u16>> {
    let mut ports = BTreeSet::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        // struct inet_diag_req_v2: family, protocol, extensions, padding, a set of states, any socket.
        let mut request = vec![family as u8, libc::IPPROTO_TCP as u8, 0, 0];
        request.extend((1_u32 << LISTEN).to_ne_bytes());
        request.resize(request.len() + SOCKET_ID, 0);
        let flags = libc::NLM_F_DUMP as u16;
        let found = socket::exchange(SockProtocol::NetlinkSockDiag, BY_FAMILY, flags, &request);
        ports.extend(found.context("list listening sockets")?.iter().filter_map(port));
    }
    Ok(ports)
}

/// The port of a listening socket that a message tells of (`struct inet_diag_msg`).
pub fn port(message: &RawMessage) -> Option<u16> {
    // Family, state, timer, retransmissions, then the socket, whose port comes first.
    let (&[_, state, _, _, high, low], _) = message.payload.split_first_chunk::<6>()?;
    (message.kind == BY_FAMILY && state == LISTEN).then(|| u16::from_be_bytes([high, low]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::netns::Netns;
    use std::net::TcpListener;

    #[test]
    fn listeners_of_both_families_are_seen_and_nothing_else() {
        let netns = Netns::scratch().unwrap();
        let ports = |netns: &Netns| netns.enter(|| listening().unwrap()).unwrap();
        assert_eq!(ports(&netns), BTreeSet::new());
        let bind = |address: &str| netns.enter(|| TcpListener::bind(address).unwrap()).unwrap();
        netns.enter(|| crate::sys::netlink::set_link_up("lo").unwrap()).unwrap();
        let listeners = ["0.0.0.0:15001", "[::]:15008", "127.0.0.1:80"].map(bind);
        let _connected = netns.enter(|| std::net::TcpStream::connect("127.0.0.1:80").unwrap()).unwrap();
        assert_eq!(ports(&netns), [80, 15001, 15008].into());
        drop(listeners);
        assert_eq!(ports(&netns), BTreeSet::new());
    }

    #[test]
    fn cut_anywhere_a_message_is_refused() {
        let whole = [2, LISTEN, 0, 0, 0x3a, 0x99];
        let read = |payload: &[u8]| port(&RawMessage { kind: BY_FAMILY, payload: payload.to_vec() });
        assert_eq!(read(&whole), Some(15001));
        assert_eq!(read(&[2, 1, 0, 0, 0x3a, 0x99]), None);
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]), None);
        }
        assert_eq!(port(&RawMessage { kind: 3, payload: whole.to_vec() }), None);
    }
}
