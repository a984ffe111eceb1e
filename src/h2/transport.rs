//! The bytes below HTTP/2: a socket that does not block, with TLS over it or without.

use crate::error::{Context, Error, Kind, Result};
use crate::invalid;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::PollFlags;
use rustls::Connection as Tls;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

/// A connected socket of any kind: `TcpStream`, `UnixStream`.
pub trait Socket: Read + Write + AsFd + Send {}

impl<T: Read + Write + AsFd + Send> Socket for T {}

/// What TLS negotiates for HTTP/2 (RFC 9113, section 3.2).
pub const ALPN: &[u8] = b"h2";

pub(super) struct Transport {
    socket: Box<dyn Socket>,
    tls: Option<Box<Tls>>,
}

/// What a read or a write came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moved {
    Bytes(usize),
    /// The socket has to become ready first.
    Blocked,
    /// The peer has closed; only when reading.
    End,
}

impl Transport {
    pub(super) fn new(socket: Box<dyn Socket>, tls: Option<Tls>) -> Result<Self> {
        let flags = fcntl(socket.as_fd(), FcntlArg::F_GETFL).context("F_GETFL")?;
        let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
        fcntl(socket.as_fd(), FcntlArg::F_SETFL(flags)).context("F_SETFL")?;
        Ok(Transport { socket, tls: tls.map(Box::new) })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What to wait for: always for input, and for room when there is output.
    pub(super) fn interest(&self, output: bool) -> PollFlags {
        // Until the handshake is done, it alone writes.
        let writes = self.tls.as_ref().map_or(output, |tls| tls.wants_write() || output && !tls.is_handshaking());
        if writes { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN }
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<Moved> {
        let Some(tls) = &mut self.tls else { return moved(self.socket.read(buffer)) };
        loop {
            match tls.reader().read(buffer) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                // Closed without a farewell: an end like any other.
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(Moved::End),
                other => return moved(other),
            }
            match moved(tls.read_tls(&mut self.socket))? {
                Moved::Bytes(_) => {}
                Moved::End if tls.is_handshaking() => {
                    return Err(Error::of(Kind::PeerGone, "TLS: the peer closed the connection during the handshake"));
                }
                other => return Ok(other),
            }
            let handshaking = tls.is_handshaking();
            if let Err(e) = tls.process_new_packets() {
                // The alert that tells the peer why, if it can be sent.
                let _ = tls.write_tls(&mut self.socket);
                return Err(Error::of(Kind::Invalid, e).context("TLS"));
            }
            if handshaking && !tls.is_handshaking() && tls.alpn_protocol() != Some(ALPN) {
                return Err(invalid!("TLS: the peer does not speak HTTP/2: it does not agree to h2 (ALPN)"));
            }
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<Moved> {
        let Some(tls) = &mut self.tls else { return moved(self.socket.write(bytes)) };
        // Records that wait go first; without room for them nothing is taken.
        let flushed = flush(tls, &mut self.socket)?;
        if flushed == Moved::Blocked || tls.is_handshaking() || bytes.is_empty() {
            return Ok(Moved::Blocked);
        }
        let taken = tls.writer().write(bytes).context("TLS")?;
        flush(tls, &mut self.socket)?;
        Ok(Moved::Bytes(taken))
    }

    /// Whether bytes that were taken wait for the socket.
    pub(super) fn is_holding(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Says farewell; what does not go at once is dropped.
    pub(super) fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _ = flush(tls, &mut self.socket);
        }
    }
}

fn flush(tls: &mut Tls, socket: &mut Box<dyn Socket>) -> Result<Moved> {
    while tls.wants_write() {
        if moved(tls.write_tls(socket))? == Moved::Blocked {
            return Ok(Moved::Blocked);
        }
    }
    Ok(Moved::Bytes(0))
}

fn moved(result: std::io::Result<usize>) -> Result<Moved> {
    match result {
        Ok(0) => Ok(Moved::End),
        Ok(bytes) => Ok(Moved::Bytes(bytes)),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(Moved::Blocked),
        Err(e) => Err(e.into()),
    }
}
