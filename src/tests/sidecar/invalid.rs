//! `INVALID_DROP`: a packet that conntrack takes for invalid is not translated, so it reaches the port it names and not
//! Envoy. The pod answers it with a reset, by which the peer loses the connection that it belongs to.

use super::scene::{Scene, plain};
use crate::support::netns::run_in;
use crate::support::{DEADLINE, eventually};
use ferrule::rules::sidecar::Settings;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, recv, sendto, setsockopt, socket,
};
use nix::sys::time::TimeVal;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const POD: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);
const PORT: u16 = 80;
const ACK: u8 = 0x10;
const SYN: u8 = 0x02;

/// A raw TCP socket: sees what comes, and sends what it is given.
struct Wire(OwnedFd);

impl Wire {
    fn open() -> Self {
        let fd = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Tcp).unwrap();
        setsockopt(&fd, ReceiveTimeout, &TimeVal::new(DEADLINE.as_secs() as i64, 0)).unwrap();
        Wire(fd)
    }

    /// Sequence and acknowledgement number of the pod's answer to a connection from this port.
    fn handshake(&self, port: u16) -> (u32, u32) {
        let mut packet = [0; 2048];
        loop {
            let len = recv(self.0.as_raw_fd(), &mut packet, MsgFlags::empty()).expect("the pod answers");
            let tcp = &packet[usize::from(packet[0] & 0xf) * 4..len];
            let number = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
            if tcp[0..4] == [PORT.to_be_bytes(), port.to_be_bytes()].concat() && tcp[13] == SYN | ACK {
                return (number(4), number(8));
            }
        }
    }

    /// Sends the pod an acknowledgement with these numbers, as if it came from that connection.
    fn acknowledge(&self, port: u16, sequence: u32, acknowledgement: u32) {
        let mut tcp = [port.to_be_bytes(), PORT.to_be_bytes()].concat();
        tcp.extend([sequence.to_be_bytes(), acknowledgement.to_be_bytes()].concat());
        // 20 bytes of header; a window, no checksum yet, nothing urgent.
        tcp.extend([0x50, ACK, 0x10, 0, 0, 0, 0, 0]);
        let pseudo = [&CLIENT.octets()[..], &POD.octets(), &[0, 6, 0, 20], &tcp].concat();
        let sum: u32 = pseudo.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        let to = SockaddrIn::from(SocketAddrV4::new(POD, 0));
        assert_eq!(sendto(self.0.as_raw_fd(), &tcp, &to, MsgFlags::empty()).unwrap(), tcp.len());
    }
}

/// Packets that conntrack took for invalid in the pod, on whichever processor.
fn invalid(scene: &Scene) -> u64 {
    let said = run_in(scene.pod.netns(), "conntrack", &["-S"]);
    said.split_whitespace().filter_map(|word| word.strip_prefix("invalid=")?.parse::<u64>().ok()).sum()
}

#[test]
fn an_invalid_packet_resets_its_connection_unless_such_packets_are_dropped() {
    let scene = Scene::without_envoy();
    for drop_invalid in [false, true] {
        scene.with(&Settings { drop_invalid, ..plain() }, false, |scene| {
            let envoy = scene.pod.enter(|| TcpListener::bind("0.0.0.0:15006").unwrap());
            let wire = scene.world.enter(Wire::open);
            let mut client = scene.world.enter(|| TcpStream::connect((POD, PORT)).unwrap());
            client.set_read_timeout(Some(DEADLINE)).unwrap();
            let (mut inside, _) = envoy.accept().unwrap();
            let mut echo = |client: &mut TcpStream| {
                let mut word = [0; 4];
                client.write_all(b"ping").unwrap();
                inside.read_exact(&mut word).unwrap();
                inside.write_all(&word).unwrap();
                client.read_exact(&mut word).unwrap();
                word
            };
            let port = client.local_addr().unwrap().port();
            let (theirs, ours) = wire.handshake(port);
            assert_eq!(&echo(&mut client), b"ping");
            // Far beyond what the pod can take, and acknowledging what came: a reset made from it fits exactly.
            let before = invalid(scene);
            wire.acknowledge(port, ours.wrapping_add(1 << 30), theirs.wrapping_add(1 + 4));
            eventually("invalid", || invalid(scene) > before);
            if drop_invalid {
                assert_eq!(&echo(&mut client), b"ping");
                // A reset would have been one too.
                assert_eq!(invalid(scene), before + 1);
            } else {
                let lost = client.read(&mut [0]).unwrap_err();
                assert_eq!(lost.kind(), ErrorKind::ConnectionReset);
            }
        });
    }
}
