//! One exchange over a Unix stream socket: a deadline for the whole of it, and the descriptors that come along.

use super::unix::Connection;
use super::{clock, fd};
use crate::error::{Error, Result};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// A connection whose every read and write ends by one point in time, however many there are: a peer that sends a
/// byte now and then cannot hold it longer. Past the deadline reads and writes fail with `TimedOut`.
#[derive(Debug)]
pub struct Exchange<'a> {
    connection: &'a Connection,
    deadline: Instant,
    descriptors: Vec<OwnedFd>,
    /// A descriptor came that this process could not take.
    lost: bool,
}

/// One descriptor is what a request may carry; the second is kept so that the caller sees there was one too many.
const MAX_DESCRIPTORS: usize = 2;

impl<'a> Exchange<'a> {
    /// Starts an exchange that ends at `deadline`.
    pub fn new(connection: &'a Connection, deadline: Instant) -> Self {
        Exchange { connection, deadline, descriptors: Vec::new(), lost: false }
    }

    /// The descriptors received so far, at most two: a third and later ones are closed on arrival. Fails when one was
    /// lost on the way: without it, the request means something else.
    pub fn take_descriptors(&mut self) -> Result<Vec<OwnedFd>> {
        if self.lost {
            return Err(Error::new("a descriptor that came along was lost: too many are open, or too many came"));
        }
        Ok(std::mem::take(&mut self.descriptors))
    }

    /// Sends bytes with a descriptor on the first of them.
    pub fn write_all_with_fd(&mut self, bytes: &[u8], descriptor: BorrowedFd<'_>) -> Result<()> {
        self.bound()?;
        let sent = fd::send_with_fd(self.connection.as_fd(), bytes, Some(descriptor))?;
        Ok(self.write_all(bytes.get(sent..).unwrap_or_default())?)
    }

    /// Gives the socket what is left of the time.
    fn bound(&self) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(clock::now());
        // A time-out of 0 would mean "for ever" to the kernel, and it counts in microseconds.
        if left < Duration::from_micros(1) {
            return Err(ErrorKind::TimedOut.into());
        }
        self.connection.set_timeouts(left, left).map_err(|e| io::Error::other(e.to_string()))
    }
}

impl Read for Exchange<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.bound()?;
        let received = fd::recv_with_fds(self.connection.as_fd(), buffer).map_err(to_io)?;
        self.lost |= received.fds_lost;
        let room = MAX_DESCRIPTORS.saturating_sub(self.descriptors.len());
        self.descriptors.extend(received.fds.into_iter().take(room));
        Ok(received.len)
    }
}

impl Write for Exchange<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bound()?;
        fd::send_with_fd(self.connection.as_fd(), bytes, None).map_err(to_io)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The kinds on which a caller of `Read` and `Write` branches.
fn to_io(e: crate::error::Error) -> io::Error {
    use crate::error::Kind;
    let kind = match e.kind() {
        Kind::TimedOut => ErrorKind::TimedOut,
        Kind::PeerGone => ErrorKind::BrokenPipe,
        _ => ErrorKind::Other,
    };
    io::Error::new(kind, e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::netns::Netns;
    use crate::sys::unix::{Listener, SocketType};
    use crate::sys::{fd, thread};
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    use std::io::IoSlice;
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(10);

    /// Both ends of a connection.
    fn pair() -> (Connection, Connection) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = Listener::bind(&path, SocketType::Stream).unwrap();
        let here = Connection::connect(&path, SocketType::Stream, LONG).unwrap();
        (here, listener.accept(LONG).unwrap().unwrap())
    }

    #[test]
    fn a_peer_that_trickles_does_not_move_the_deadline() {
        let (here, there) = pair();
        let start = clock::now();
        let trickle = thread::spawn("trickle", move || {
            while (&there).write_all(b"x").is_ok() {
                clock::sleep(Duration::from_millis(10));
            }
        });
        let mut stream = Exchange::new(&here, start + Duration::from_millis(200));
        let mut bytes = 0;
        let e = loop {
            match stream.read(&mut [0; 64]) {
                Ok(n) => bytes += n,
                Err(e) => break e,
            }
        };
        assert_eq!(e.kind(), ErrorKind::TimedOut);
        assert!(bytes > 1 && clock::now() - start < LONG / 2, "{bytes} bytes");
        drop(here);
        trickle.unwrap().join().unwrap();
    }

    #[test]
    fn a_peer_that_does_not_read_ends_the_write() {
        let (here, _there) = pair();
        let mut stream = Exchange::new(&here, clock::now() + Duration::from_millis(100));
        assert_eq!(stream.write_all(&vec![0; 64 << 20]).unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::TimedOut, "past the deadline");
    }

    #[test]
    fn a_peer_that_is_gone_is_told_from_one_that_is_slow() {
        let (here, there) = pair();
        drop(there);
        let mut stream = Exchange::new(&here, clock::now() + LONG);
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
        assert_eq!(stream.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_descriptor_that_is_lost_is_an_error() {
        let (here, there) = pair();
        let netns = Netns::own().unwrap();
        // More than there is room for, in one packet.
        let many = vec![netns.as_fd().as_raw_fd(); 40];
        let rights = [ControlMessage::ScmRights(&many)];
        sendmsg::<()>(there.as_fd().as_raw_fd(), &[IoSlice::new(b"x")], &rights, MsgFlags::empty(), None).unwrap();
        let mut stream = Exchange::new(&here, clock::now() + LONG);
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 1);
        assert!(stream.take_descriptors().unwrap_err().to_string().contains("was lost"));
    }

    #[test]
    fn descriptors_come_with_the_bytes_and_a_surplus_is_closed() {
        let (here, there) = pair();
        let netns = Netns::own().unwrap();
        let big = vec![b'y'; 1 << 20];
        let sent = big.clone();
        let sender = thread::spawn("sender", move || {
            Exchange::new(&there, clock::now() + LONG).write_all_with_fd(&sent, netns.as_fd()).unwrap();
            for _ in 0..4 {
                fd::send_with_fd(there.as_fd(), b"z", Some(netns.as_fd())).unwrap();
            }
        });
        let mut stream = Exchange::new(&here, clock::now() + LONG);
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        sender.unwrap().join().unwrap();
        assert_eq!(bytes, [big.as_slice(), b"zzzz"].concat());
        let descriptors = stream.take_descriptors().unwrap();
        assert_eq!(descriptors.len(), MAX_DESCRIPTORS);
        for descriptor in descriptors {
            assert_eq!(Netns::from_fd(descriptor).unwrap().id(), Netns::own().unwrap().id());
        }
    }
}
