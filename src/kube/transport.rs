//! TCP below the HTTP client: connections that notice a dead peer and that another thread can cut.
//!
//! A peer whose machine or path is gone is noticed by the kernel: keepalive probes on an idle connection, and an upper
//! bound for how long sent bytes may stay unacknowledged (tcp(7)). [`Sockets::close`] ends reads, writes, connects and
//! waits of every connection made through it at once.

use crate::sys::lookup;
use crate::sys::sync;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{self, AddressFamily, MsgFlags, SockFlag, SockType, SockaddrStorage, sockopt};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;
use ureq::Error as UreqError;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, Transport,
};

/// An idle connection is probed after this long.
const PROBE_AFTER: Duration = Duration::from_secs(15);
/// Then this often.
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// A peer silent to probes, or to bytes sent, for this long is gone. With the first probe well below a minute.
const GONE_AFTER: Duration = Duration::from_secs(45);
/// At most this long for one address when the caller sets no limit.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// At most this long for a name when the caller sets no limit.
const RESOLVE_LIMIT: Duration = Duration::from_secs(5);
/// ureq's room for the addresses of one name.
const MAX_ADDRESSES: usize = 16;

/// The connections of one client, open or being opened, and whoever waits between two requests.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    state: Mutex<State>,
    closed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    open: Vec<Weak<TcpStream>>,
}

impl Sockets {
    /// Cuts every connection and every wait, and refuses new ones.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        for stream in state.open.drain(..).filter_map(|s| s.upgrade()) {
            // Fails only if the connection is already over.
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.closed.notify_all();
    }

    /// Whether [`Sockets::close`] was called.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Waits, or less when closed; returns whether it was closed.
    pub(super) fn wait(&self, time: Duration) -> bool {
        sync::wait_while(&self.closed, self.lock(), time, |state| !state.closed).closed
    }

    fn add(&self, stream: &Arc<TcpStream>) -> io::Result<()> {
        let mut state = self.lock();
        if state.closed {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "this client was closed"));
        }
        state.open.retain(|s| s.strong_count() > 0);
        state.open.push(Arc::downgrade(stream));
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        sync::lock(&self.state)
    }
}

/// Opens TCP connections for ureq.
#[derive(Debug)]
pub(super) struct TcpConnector(pub(super) Arc<Sockets>);

impl<In: Transport> Connector<In> for TcpConnector {
    type Out = Either<In, Tcp>;

    fn connect(&self, details: &ConnectionDetails<'_>, chained: Option<In>) -> Result<Option<Self::Out>, UreqError> {
        if let Some(proxied) = chained {
            return Ok(Some(Either::A(proxied)));
        }
        let limit = details.timeout.not_zero().map_or(CONNECT_LIMIT, |t| *t);
        let share = limit / u32::try_from(details.addrs.len().max(1)).unwrap_or(1);
        let mut failure = UreqError::ConnectionFailed;
        for address in &details.addrs {
            match self.open(*address, share) {
                Ok(stream) => {
                    let (input, output) = (details.config.input_buffer_size(), details.config.output_buffer_size());
                    return Ok(Some(Either::B(Tcp { stream, buffers: LazyBuffers::new(input, output) })));
                }
                Err(e) => failure = UreqError::Io(e),
            }
        }
        Err(failure)
    }
}

impl TcpConnector {
    fn open(&self, address: SocketAddr, limit: Duration) -> io::Result<Arc<TcpStream>> {
        let family = if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let stream = Arc::new(TcpStream::from(socket::socket(family, SockType::Stream, flags, None)?));
        self.0.add(&stream)?;
        notice_a_dead_peer(&stream)?;
        stream.set_nodelay(true)?;
        match socket::connect(stream.as_raw_fd(), &SockaddrStorage::from(address)) {
            Ok(()) => {}
            Err(Errno::EINPROGRESS) => {
                wait_writable(&stream, limit)?;
                if let Some(e) = stream.take_error()? {
                    return Err(e);
                }
                // Also fails when the connection was cut meanwhile.
                stream.peer_addr()?;
            }
            Err(e) => return Err(e.into()),
        }
        stream.set_nonblocking(false)?;
        Ok(stream)
    }
}

fn notice_a_dead_peer(stream: &TcpStream) -> nix::Result<()> {
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    socket::setsockopt(stream, sockopt::KeepAlive, &true)?;
    socket::setsockopt(stream, sockopt::TcpKeepIdle, &seconds(PROBE_AFTER))?;
    socket::setsockopt(stream, sockopt::TcpKeepInterval, &seconds(PROBE_EVERY))?;
    socket::setsockopt(stream, sockopt::TcpKeepCount, &(seconds(GONE_AFTER - PROBE_AFTER) / seconds(PROBE_EVERY)))?;
    socket::setsockopt(stream, sockopt::TcpUserTimeout, &(seconds(GONE_AFTER) * 1000))
}

fn wait_writable(stream: &TcpStream, limit: Duration) -> io::Result<()> {
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)];
    loop {
        match nix::poll::poll(&mut fds, PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer to the connection attempt")),
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// A TCP connection as ureq uses it.
#[derive(Debug)]
pub(super) struct Tcp {
    stream: Arc<TcpStream>,
    buffers: LazyBuffers,
}

impl Transport for Tcp {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), UreqError> {
        let timeout = timeout.for_write();
        self.stream.set_write_timeout(Some(left(&timeout)?))?;
        let output = self.buffers.output().get(..amount).unwrap_or_default();
        (&*self.stream).write_all(output).map_err(|e| failure(e, &timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, UreqError> {
        let timeout = timeout.for_read();
        self.stream.set_read_timeout(Some(left(&timeout)?))?;
        let room = self.buffers.input_append_buf();
        let amount = loop {
            match (&*self.stream).read(room) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => break other.map_err(|e| failure(e, &timeout))?,
            }
        };
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        // Nothing was asked, so nothing may have come: not even the end.
        let peek = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        socket::recv(self.stream.as_raw_fd(), &mut [0], peek) == Err(Errno::EAGAIN)
    }
}

/// The time left, never zero and never endless.
fn left(timeout: &NextTimeout) -> Result<Duration, UreqError> {
    const LONGEST: Duration = Duration::from_secs(3600);
    match timeout.not_zero() {
        _ if timeout.after.is_zero() => Err(UreqError::Timeout(timeout.reason)),
        None => Ok(LONGEST),
        Some(time) => Ok((*time).min(LONGEST)),
    }
}

fn failure(e: io::Error, timeout: &NextTimeout) -> UreqError {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => UreqError::Timeout(timeout.reason),
        _ => UreqError::Io(e),
    }
}

/// Finds the addresses of the host in a URI.
#[derive(Debug)]
pub(super) struct Names(pub(super) Arc<Sockets>);

impl Resolver for Names {
    fn resolve(&self, uri: &Uri, _config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, UreqError> {
        let target = uri
            .scheme()
            .zip(uri.authority())
            .and_then(|(scheme, authority)| DefaultResolver::host_and_port(scheme, authority))
            .ok_or_else(|| UreqError::BadUri(uri.to_string()))?;
        let mut found = self.empty();
        if let Ok(address) = target.parse::<SocketAddr>() {
            found.push(address);
            return Ok(found);
        }
        let (host, port) = target.rsplit_once(':').ok_or(UreqError::HostNotFound)?;
        let port = port.parse().map_err(|_| UreqError::BadUri(uri.to_string()))?;
        let limit = timeout.not_zero().map_or(RESOLVE_LIMIT, |t| *t);
        let addresses = lookup::look_up(host, limit, &|| self.0.is_closed())?;
        for address in addresses.into_iter().take(MAX_ADDRESSES) {
            found.push(SocketAddr::new(address, port));
        }
        if found.is_empty() { Err(UreqError::HostNotFound) } else { Ok(found) }
    }
}
