//! One exchange over a Unix stream socket: a deadline for the whole of it, and the descriptors that come along.

use super::unix::Connection;
use super::{clock, fd};
use crate::error::Result;
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
}

/// One descriptor is what a request may carry; the second is kept so that the caller sees there was one too many.
const MAX_DESCRIPTORS: usize = 2;

impl<'a> Exchange<'a> {
    /// Starts an exchange that ends at `deadline`.
    pub fn new(connection: &'a Connection, deadline: Instant) -> Self {
        Exchange { connection, deadline, descriptors: Vec::new() }
    }

    /// The descriptors received so far, at most two: a third and later ones are closed on arrival.
    pub fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.descriptors)
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
