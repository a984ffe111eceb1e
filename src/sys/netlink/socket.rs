//! One request to the kernel and its answers (netlink(7)), whatever the protocol on top.

use super::message::{Change, RawMessage};
use crate::error::{Context, Error, Kind, Result};
use crate::invalid;
use crate::sys::thread::ThreadNetns;
use nix::errno::Errno;
use nix::sys::socket::sockopt::{ReceiveTimeout, SndBufForce};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send, setsockopt, socket,
};
use nix::sys::time::TimeVal;
use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd};

/// The kernel answers at once; this only bounds what should not happen.
const TIMEOUT_SECONDS: i64 = 5;

/// Dumps come in packets of up to 32 KiB (netlink_dump in af_netlink.c); a single message may be larger.
const BUFFER: usize = 128 << 10;

/// Most messages a dump may have, all attempts counted.
const MAX_MESSAGES: usize = 1 << 20;

/// A batch up to this size fits into what a socket may send by itself (`net.core.wmem_default`).
const USUAL_BATCH: usize = 64 << 10;

/// How often a dump that was interrupted by a change is started again.
const DUMP_TRIES: u32 = 20;

/// `struct nlmsghdr`.
const HEADER: usize = 16;

/// Sends one request and collects the answers until the kernel says that it is done. Errors of the kernel carry its
/// errno; what callers branch on is `NotFound` (ENOENT, ESRCH, ENODEV) and `Unsupported` (a family or a protocol that
/// this kernel does not have).
pub(super) fn exchange(protocol: SockProtocol, kind: u16, flags: u16, payload: &[u8]) -> Result<Vec<RawMessage>> {
    let dump = flags & libc::NLM_F_DUMP as u16 == libc::NLM_F_DUMP as u16;
    // Without a dump, the acknowledgement is what says that nothing more will come.
    let flags = flags | libc::NLM_F_REQUEST as u16 | if dump { 0 } else { libc::NLM_F_ACK as u16 };
    let mut link = Link::take(protocol)?;
    for _ in 0..DUMP_TRIES {
        let seq = link.number();
        link.send(&encode(kind, flags, seq, payload))?;
        if let Some(answers) = link.collect(seq)? {
            link.keep(protocol);
            return Ok(answers);
        }
    }
    Err(Error::new(format_args!("a netlink dump was interrupted by changes {DUMP_TRIES} times in a row")))
}

/// Sends changes between the marks of a batch (`NFNL_MSG_BATCH_BEGIN`, `…_END`) and waits for the verdict. All messages
/// share one sequence number, so that a refusal of any is seen; only the last change is acknowledged.
pub(super) fn batch(subsystem: u8, changes: &[Change]) -> Result<()> {
    const BEGIN: u16 = libc::NLMSG_MIN_TYPE as u16;
    const END: u16 = BEGIN + 1;
    let mut link = Link::take(SockProtocol::NetlinkNetFilter)?;
    let seq = link.number();
    // struct nfgenmsg: no family, version 0, the subsystem in network order.
    let mark = [0, 0, 0, subsystem];
    let request = libc::NLM_F_REQUEST as u16;
    let mut bytes = encode(BEGIN, request, seq, &mark);
    for (at, Change { kind, flags, payload }) in changes.iter().enumerate() {
        let last = if at + 1 == changes.len() { libc::NLM_F_ACK as u16 } else { 0 };
        bytes.extend(encode(*kind, flags | request | last, seq, payload));
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes.extend(encode(END, request, seq, &mark));
    if bytes.len() > USUAL_BATCH {
        setsockopt(&link.socket, SndBufForce, &(2 * bytes.len())).context("make room for a netlink batch")?;
    }
    link.send(&bytes)?;
    if link.collect(seq)?.is_some() {
        link.keep(SockProtocol::NetlinkNetFilter);
    }
    Ok(())
}

/// A socket with what an exchange over it needs.
struct Link {
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// The number of the last request.
    seq: u32,
}

thread_local! {
    /// On a thread that stays where it is until it ends: of each protocol one, over which nothing more is to come.
    static KEPT: RefCell<Vec<(SockProtocol, Link)>> = const { RefCell::new(Vec::new()) };
}

impl Link {
    /// A kept one, else a new one.
    fn take(protocol: SockProtocol) -> Result<Self> {
        let kept = KEPT.with_borrow_mut(|kept| {
            let at = kept.iter().position(|(of, _)| *of == protocol)?;
            Some(kept.swap_remove(at).1)
        });
        match kept {
            Some(link) => Ok(link),
            None => Self::open(protocol).map_err(|e| failed(e as i32, "open a netlink socket")),
        }
    }

    fn open(protocol: SockProtocol) -> nix::Result<Self> {
        let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        setsockopt(&socket, ReceiveTimeout, &TimeVal::new(TIMEOUT_SECONDS, 0))?;
        connect(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        Ok(Link { socket, buffer: vec![0; BUFFER], seq: 0 })
    }

    /// Keeps it for the next exchange, where it is not in the way of the namespace's end.
    fn keep(self, protocol: SockProtocol) {
        if ThreadNetns::get() == ThreadNetns::Away {
            KEPT.with_borrow_mut(|kept| kept.push((protocol, self)));
        }
    }

    /// Numbers a request.
    fn number(&mut self) -> u32 {
        self.seq += 1;
        self.seq
    }

    fn send(&self, request: &[u8]) -> Result<()> {
        let sent = send(self.socket.as_raw_fd(), request, MsgFlags::empty()).context("send a netlink request")?;
        if sent != request.len() {
            return Err(invalid!("a netlink request of {} bytes was cut to {sent}", request.len()));
        }
        Ok(())
    }

    /// Reads until done; `None` when the dump was interrupted and must be repeated.
    fn collect(&mut self, seq: u32) -> Result<Option<Vec<RawMessage>>> {
        let mut answers = Answers::new(seq);
        loop {
            let len = match recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::MSG_TRUNC) {
                Err(Errno::EINTR) => continue,
                other => other.context("receive a netlink answer")?,
            };
            let packet = self.buffer.get(..len).ok_or_else(|| invalid!("a netlink answer of {len} bytes"))?;
            if let Some(done) = answers.take(packet)? {
                return Ok((!done.interrupted).then_some(answers.messages));
            }
        }
    }
}

fn encode(kind: u16, flags: u16, seq: u32, payload: &[u8]) -> Vec<u8> {
    let len = HEADER + payload.len();
    let mut request = Vec::with_capacity(len);
    request.extend(u32::try_from(len).unwrap_or(u32::MAX).to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    request.extend(seq.to_ne_bytes());
    request.extend(0_u32.to_ne_bytes());
    request.extend(payload);
    request
}

/// The answers to one request as far as they have come.
#[derive(Debug)]
pub struct Answers {
    seq: u32,
    interrupted: bool,
    messages: Vec<RawMessage>,
}

/// The end of an exchange.
#[derive(Debug, PartialEq)]
pub struct Done {
    /// The kernel's tables changed during the dump, which must be repeated.
    pub interrupted: bool,
}

impl Answers {
    /// None yet to the request with this number.
    pub fn new(seq: u32) -> Self {
        Answers { seq, interrupted: false, messages: Vec::new() }
    }

    /// What has come.
    pub fn messages(&self) -> &[RawMessage] {
        &self.messages
    }

    /// Takes one packet in; says when it was the last. Pure.
    pub fn take(&mut self, packet: &[u8]) -> Result<Option<Done>> {
        let mut rest = packet;
        while !rest.is_empty() {
            let (header, payload, next) =
                split(rest).ok_or_else(|| invalid!("a netlink answer that ends in the middle of a message"))?;
            rest = next;
            if header.seq != self.seq {
                // A late answer to an attempt that was given up.
                continue;
            }
            self.interrupted |= header.flags & libc::NLM_F_DUMP_INTR as u16 != 0;
            match i32::from(header.kind) {
                libc::NLMSG_NOOP => {}
                libc::NLMSG_OVERRUN => return Err(Error::new("netlink answers were lost")),
                // Both begin with a negative errno; a dump may fail at its end.
                libc::NLMSG_ERROR | libc::NLMSG_DONE => {
                    let code = payload.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
                    return match code.saturating_neg() {
                        0 => Ok(Some(Done { interrupted: self.interrupted })),
                        libc::EINTR => Ok(Some(Done { interrupted: true })),
                        code => Err(failed(code, "the kernel refused")),
                    };
                }
                _ if self.messages.len() >= MAX_MESSAGES => {
                    return Err(invalid!("a netlink dump of more than {MAX_MESSAGES} messages"));
                }
                _ => self.messages.push(RawMessage { kind: header.kind, payload: payload.to_vec() }),
            }
        }
        Ok(None)
    }
}

struct Header {
    kind: u16,
    flags: u16,
    seq: u32,
}

/// The first message of a packet and what follows it.
fn split(packet: &[u8]) -> Option<(Header, &[u8], &[u8])> {
    let field = |at: usize| packet.get(at..).and_then(|rest| rest.first_chunk::<4>());
    let len = u32::from_ne_bytes(*field(0)?) as usize;
    let [k0, k1, f0, f1] = *field(4)?;
    let seq = u32::from_ne_bytes(*field(8)?);
    let payload = packet.get(HEADER..len)?;
    let next = packet.get(len.next_multiple_of(4)..).unwrap_or_default();
    let header = Header { kind: u16::from_ne_bytes([k0, k1]), flags: u16::from_ne_bytes([f0, f1]), seq };
    Some((header, payload, next))
}

/// The error for a system error number. Through `std::io::Error`, which also keeps numbers that no list has (ipset's).
fn failed(code: i32, what: &str) -> Error {
    let error = Error::from(std::io::Error::from_raw_os_error(code));
    let error = match code {
        libc::ENOENT | libc::ESRCH | libc::ENODEV => error.with_kind(Kind::NotFound),
        libc::EAFNOSUPPORT | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT => error.with_kind(Kind::Unsupported),
        _ => error,
    };
    error.context(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: i32, flags: i32, seq: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = encode(kind as u16, flags as u16, seq, payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn errno(code: i32) -> [u8; 4] {
        (-code).to_ne_bytes()
    }

    type Taken = (Result<Option<Done>>, Vec<(u16, Vec<u8>)>);

    fn take(packets: &[Vec<u8>]) -> Taken {
        let mut answers = Answers::new(7);
        let mut last = Ok(None);
        for packet in packets {
            last = answers.take(packet);
        }
        (last, answers.messages.into_iter().map(|message| (message.kind, message.payload)).collect())
    }

    #[test]
    fn answers_are_collected_until_done() {
        let dump = [
            [message(20, 2, 7, b"one"), message(20, 2, 6, b"old"), message(20, 2, 7, b"four")].concat(),
            message(libc::NLMSG_DONE, 2, 7, &errno(0)),
        ];
        let (end, messages) = take(&dump);
        assert_eq!(end.unwrap(), Some(Done { interrupted: false }));
        assert_eq!(messages, [(20, b"one".to_vec()), (20, b"four".to_vec())]);
        let (end, _) = take(&[message(20, libc::NLM_F_DUMP_INTR, 7, b""), message(libc::NLMSG_DONE, 2, 7, &errno(0))]);
        assert_eq!(end.unwrap(), Some(Done { interrupted: true }));
        let (end, _) = take(&[message(libc::NLMSG_DONE, 2, 7, &errno(libc::EINTR))]);
        assert_eq!(end.unwrap(), Some(Done { interrupted: true }));
        assert_eq!(take(&[message(libc::NLMSG_ERROR, 0, 7, &errno(0))]).0.unwrap(), Some(Done { interrupted: false }));
        assert_eq!(take(&[message(20, 0, 7, b"one")]).0.unwrap(), None);
    }

    #[test]
    fn refusals_carry_errno_and_kind() {
        let check = |code: i32, kind: Kind| {
            let e = take(&[message(libc::NLMSG_ERROR, 0, 7, &errno(code))]).0.unwrap_err();
            assert_eq!((e.kind(), e.errno()), (kind, Some(code)));
        };
        check(libc::ESRCH, Kind::NotFound);
        check(libc::ENOENT, Kind::NotFound);
        check(libc::EAFNOSUPPORT, Kind::Unsupported);
        check(libc::EOPNOTSUPP, Kind::Unsupported);
        check(libc::EPERM, Kind::Other);
        check(4103, Kind::Other);
    }

    #[test]
    fn a_packet_cut_anywhere_is_refused() {
        let packet = message(20, 2, 7, b"payload");
        for len in 1..packet.len() - 1 {
            let (end, messages) = take(&[packet[..len].to_vec()]);
            assert!(end.is_err() && messages.is_empty(), "cut to {len}");
        }
        // A length that would not move on.
        assert!(take(&[vec![0; 64]]).0.is_err());
    }
}
