//! One side of a connection: the socket, TLS where there is some, the state machine, and the deadlines.
//!
//! Nothing here blocks but [`wait`] and [`Endpoint::next`]. One thread owns an endpoint, or several: it waits for all of
//! them and for other threads at once, so that none of its peers can hold the others up, and reading never waits for
//! writing.

use super::transport::{Moved, Socket, Transport};
use super::{Connection, Event};
use crate::error::{Error, Kind, Result};
use crate::sys::clock;
use crate::sys::fd;
use crate::sys::wakeup::Wakeup;
use nix::poll::{PollFd, PollFlags};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How much is read from a socket at a time, bytes.
const READ: usize = 32 << 10;
/// How much is read before others have their turn, bytes.
const TURN: usize = 256 << 10;
/// How much is taken from the streams' queues at a time, bytes; what is taken waits for the socket.
const WRITE: usize = 64 << 10;
/// How often the peer's allowance of useless frames begins anew.
const REPLENISH: Duration = Duration::from_secs(1);

/// Deadlines of one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deadlines {
    /// How long the peer may take to show that it speaks HTTP/2, the TLS handshake included.
    pub greeting: Duration,
    /// When the peer has been silent this long, it is asked for a sign of life. A client asks only while it has a
    /// stream open (servers of gRPC object to more, and to an interval below their own).
    pub silence: Duration,
    /// What it then has to give one.
    pub sign: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        let [greeting, silence, sign] = [10, 30, 10].map(Duration::from_secs);
        Deadlines { greeting, silence, sign }
    }
}

/// One side of a connection. The streams are those of the [`Connection`] that it is made of; what is sent on them goes
/// out with the next [`wait`].
pub struct Endpoint {
    transport: Transport,
    connection: Connection,
    client: bool,
    deadlines: Deadlines,
    /// Taken from the connection and not written yet, from `written` on.
    output: Vec<u8>,
    written: usize,
    begun: Instant,
    /// The last time that bytes came.
    heard: Instant,
    /// A sign of life was asked for.
    asked: Option<Instant>,
    replenished: Instant,
    /// The last turn of reading ended before the bytes did; TLS may hold some, which no poll would tell of.
    more_to_read: bool,
    failure: Option<Error>,
}

impl Endpoint {
    /// The server's side of a connection that was accepted.
    pub fn server(socket: impl Socket + 'static, options: &super::Options, deadlines: Deadlines) -> Result<Self> {
        Self::new(Transport::new(Box::new(socket), None)?, Connection::server(options), false, deadlines)
    }

    /// The server's side over TLS; its configuration must offer [`super::ALPN`].
    pub fn tls_server(
        socket: impl Socket + 'static,
        tls: rustls::ServerConnection,
        options: &super::Options,
        deadlines: Deadlines,
    ) -> Result<Self> {
        let transport = Transport::new(Box::new(socket), Some(tls.into()))?;
        Self::new(transport, Connection::server(options), false, deadlines)
    }

    /// The client's side of a connection that was made, with prior knowledge that the server speaks HTTP/2.
    pub fn client(socket: impl Socket + 'static, options: &super::Options, deadlines: Deadlines) -> Result<Self> {
        Self::new(Transport::new(Box::new(socket), None)?, Connection::client(options), true, deadlines)
    }

    /// The client's side over TLS; its configuration must offer [`super::ALPN`].
    pub fn tls_client(
        socket: impl Socket + 'static,
        tls: rustls::ClientConnection,
        options: &super::Options,
        deadlines: Deadlines,
    ) -> Result<Self> {
        let transport = Transport::new(Box::new(socket), Some(tls.into()))?;
        Self::new(transport, Connection::client(options), true, deadlines)
    }

    fn new(transport: Transport, connection: Connection, client: bool, deadlines: Deadlines) -> Result<Self> {
        let now = clock::now();
        Ok(Endpoint {
            transport,
            connection,
            client,
            deadlines,
            output: Vec::new(),
            written: 0,
            begun: now,
            heard: now,
            asked: None,
            replenished: now,
            more_to_read: false,
            failure: None,
        })
    }

    /// Why the connection is over, once it is: `PeerGone` when it was closed, `TimedOut` when the peer gave no sign of
    /// life, `Invalid` when it broke the protocol. Events that came before, and bytes that arrived, can still be had.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Waits for the next event of this connection alone; `None` when none came in time. An error is the end, and is
    /// given once all events were.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Event>> {
        let deadline = clock::now() + timeout;
        loop {
            if let Some(event) = self.connection.event() {
                return Ok(Some(event));
            }
            if let Some(failure) = self.failure.take() {
                self.failure = Some(Error::of(failure.kind(), &failure));
                return Err(failure);
            }
            let left = clock::until(deadline);
            wait(&mut [self], None, left)?;
            if left.is_zero() {
                return Ok(self.connection.event());
            }
        }
    }

    /// Writes what there is, and returns whether all of it went: nothing waits but what flow control holds.
    fn write(&mut self) -> Result<bool> {
        loop {
            if self.written == self.output.len() {
                self.output.clear();
                self.written = 0;
                self.connection.output(&mut self.output, WRITE);
            }
            let rest = self.output.get(self.written..).unwrap_or_default();
            if rest.is_empty() && !self.transport.is_holding() {
                // A connection at rest holds no buffer.
                self.output = Vec::new();
                return Ok(true);
            }
            match self.transport.write(rest)? {
                Moved::Bytes(bytes) => self.written += bytes,
                Moved::Blocked if rest.is_empty() && !self.transport.is_holding() => return Ok(true),
                Moved::Blocked | Moved::End => return Ok(false),
            }
        }
    }

    /// Reads one turn.
    fn read(&mut self) -> Result<()> {
        let mut buffer = [0; READ];
        let mut turn = 0;
        self.more_to_read = false;
        while turn < TURN {
            match self.transport.read(&mut buffer)? {
                Moved::Bytes(bytes) => {
                    turn += bytes;
                    self.heard = clock::now();
                    self.asked = None;
                    let received = self.connection.receive(buffer.get(..bytes).unwrap_or_default());
                    received.map_err(|fault| Error::of(Kind::Invalid, fault).context("HTTP/2"))?;
                }
                Moved::Blocked => return Ok(()),
                Moved::End => return Err(Error::of(Kind::PeerGone, "the peer closed the connection")),
            }
        }
        self.more_to_read = true;
        Ok(())
    }

    /// Moves what can be moved without blocking, both ways.
    fn pump(&mut self, readable: bool) {
        if self.failure.is_some() {
            return;
        }
        let moved = self.pump_once(readable);
        if let Err(failure) = moved {
            // The GOAWAY that says why, if it can be sent at once.
            if failure.kind() == Kind::Invalid {
                let _ = self.write();
            }
            self.end(failure);
        }
    }

    fn pump_once(&mut self, readable: bool) -> Result<()> {
        let written = self.write();
        // A peer that closes in the middle of our writing may have said why before.
        if readable {
            self.read()?;
        }
        let all = written? && self.write()?;
        self.keep_time(clock::now())?;
        if all && self.connection.is_over() {
            self.transport.close();
            return Err(Error::of(Kind::PeerGone, "the connection was closed: nothing more was to come"));
        }
        Ok(())
    }

    fn end(&mut self, failure: Error) {
        self.output = Vec::new();
        self.written = 0;
        self.failure = Some(failure);
    }

    fn keep_time(&mut self, now: Instant) -> Result<()> {
        if now >= self.replenished + REPLENISH {
            self.replenished = now;
            self.connection.replenish();
        }
        let Some(due) = self.due() else { return Ok(()) };
        if now < due {
            return Ok(());
        }
        let silent = |time: Duration, what: &str| Error::of(Kind::TimedOut, format_args!("{what} within {time:?}"));
        if self.transport.is_handshaking() {
            return Err(silent(self.deadlines.greeting, "the TLS handshake did not end"));
        }
        if !self.connection.is_greeted() {
            return Err(silent(self.deadlines.greeting, "the peer did not speak HTTP/2"));
        }
        if self.asked.is_some() {
            return Err(silent(self.deadlines.sign, "the peer did not answer a PING"));
        }
        self.asked = Some(now);
        self.connection.ping(*b"alive?\0\0");
        self.write().map(drop)
    }

    /// When something has to be done although nothing came.
    fn due(&self) -> Option<Instant> {
        if !self.connection.is_greeted() {
            return Some(self.begun + self.deadlines.greeting);
        }
        match self.asked {
            Some(asked) => Some(asked + self.deadlines.sign),
            None if self.client && self.connection.open_streams() == 0 => None,
            None => Some(self.heard + self.deadlines.silence),
        }
    }

    fn has_output(&self) -> bool {
        self.written < self.output.len() || self.connection.has_output()
    }
}

/// The streams and what is done with them.
impl Deref for Endpoint {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for Endpoint {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.client { "client" } else { "server" };
        write!(f, "{side} with {} streams, failure {:?}", self.connection.open_streams(), self.failure)
    }
}

/// Sends what the endpoints have to send and waits until something happened: an event or the end of one of them, a
/// wake-up by another thread, or the time being over. Returns whether another thread woke this one. Endpoints that are over are left out.
///
/// Fails only when the descriptors cannot be polled.
pub fn wait(endpoints: &mut [&mut Endpoint], wakeup: Option<&Wakeup>, timeout: Duration) -> Result<bool> {
    let deadline = clock::now() + timeout;
    loop {
        // An end that is known already is nothing to wait for; it must not turn the loop of its owner into a busy one.
        let live = |endpoints: &[&mut Endpoint]| endpoints.iter().filter(|e| e.failure.is_none()).count();
        let before = live(endpoints);
        endpoints.iter_mut().for_each(|endpoint| endpoint.pump(false));
        let happened = |endpoints: &[&mut Endpoint]| {
            live(endpoints) < before || endpoints.iter().any(|endpoint| endpoint.connection.has_events())
        };
        let at_once = happened(endpoints) || endpoints.iter().any(|e| e.more_to_read && e.failure.is_none());
        let due = endpoints.iter().filter(|e| e.failure.is_none()).filter_map(|endpoint| endpoint.due()).min();
        let until = due.map_or(deadline, |due| due.min(deadline));
        let ready = poll(endpoints, wakeup, if at_once { Duration::ZERO } else { clock::until(until) })?;
        for (endpoint, ready) in endpoints.iter_mut().zip(&ready.sockets) {
            endpoint.pump(*ready || endpoint.more_to_read);
        }
        let woken = ready.wakeup && wakeup.is_some_and(Wakeup::take);
        if woken || happened(endpoints) || clock::until(deadline).is_zero() {
            return Ok(woken);
        }
    }
}

struct Ready {
    wakeup: bool,
    /// Whether there is something to read on each endpoint, its end included.
    sockets: Vec<bool>,
}

fn poll(endpoints: &[&mut Endpoint], wakeup: Option<&Wakeup>, timeout: Duration) -> Result<Ready> {
    let mut fds: Vec<PollFd<'_>> = wakeup.iter().map(|wakeup| PollFd::new(wakeup.as_fd(), PollFlags::POLLIN)).collect();
    let live = || endpoints.iter().filter(|endpoint| endpoint.failure.is_none());
    fds.extend(live().map(|e| PollFd::new(e.transport.fd(), e.transport.interest(e.has_output()))));
    fd::wait_any(&mut fds, timeout)?;
    let mut ready = fds.iter().map(|fd| fd.revents().is_some_and(|r| r.intersects(!PollFlags::POLLOUT)));
    let wakeup = wakeup.is_some() && ready.next().unwrap_or(false);
    let sockets = endpoints.iter().map(|e| e.failure.is_none() && ready.next().unwrap_or(false)).collect();
    Ok(Ready { wakeup, sockets })
}
