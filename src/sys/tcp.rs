//! TCP beyond the standard library: a connection from a chosen source address, and where a redirected one was going.

use crate::error::{Context, Error, Kind, Result};
use crate::sys::fd;
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::sockopt::{
    Ip6tOriginalDst, KeepAlive, OriginalDst, SocketError, TcpKeepCount, TcpKeepIdle, TcpKeepInterval, TcpUserTimeout,
};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect as connect_socket, getsockopt, setsockopt, socket,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Connects from an address of this machine, whichever the route would choose.
pub fn connect_from(source: IpAddr, to: SocketAddr, timeout: Duration) -> Result<TcpStream> {
    let what = || format!("connect from {source} to {to}");
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, SockType::Stream, flags, None).with_context(what)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source, 0))).with_context(what)?;
    match connect_socket(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) => {}
        Err(Errno::EINPROGRESS) => {
            if !fd::wait(socket.as_fd(), PollFlags::POLLOUT, timeout)? {
                return Err(Error::from(Errno::ETIMEDOUT)).with_context(what);
            }
            match getsockopt(&socket, SocketError).with_context(what)? {
                0 => {}
                code => return Err(std::io::Error::from_raw_os_error(code)).with_context(what),
            }
        }
        Err(e) => return Err(e).with_context(what),
    }
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false).with_context(what)?;
    Ok(stream)
}

/// A peer that leaves bytes unacknowledged, or does not answer probes of an idle connection, for this long is gone.
const GONE_AFTER: Duration = Duration::from_secs(30);

/// Connects to the first of several addresses that answers, each in its share of the time. The connection notices when
/// the peer's machine or the way to it is gone (tcp(7)), and sends what it is given at once.
pub fn connect(addresses: &[IpAddr], port: u16, timeout: Duration) -> Result<TcpStream> {
    let share = timeout / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
    let mut failure = Error::of(Kind::NotFound, "no address to connect to");
    for address in addresses {
        let connected =
            TcpStream::connect_timeout(&SocketAddr::new(*address, port), share.max(Duration::from_millis(1)));
        match connected.map_err(Error::from).and_then(|stream| notice_a_dead_peer(&stream).map(|()| stream)) {
            Ok(stream) => return Ok(stream),
            Err(e) => failure = e.context(format_args!("connect to {}", SocketAddr::new(*address, port))),
        }
    }
    Err(failure)
}

fn notice_a_dead_peer(stream: &TcpStream) -> Result<()> {
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    stream.set_nodelay(true)?;
    setsockopt(stream, KeepAlive, &true)?;
    setsockopt(stream, TcpKeepIdle, &(seconds(GONE_AFTER) / 3))?;
    setsockopt(stream, TcpKeepInterval, &(seconds(GONE_AFTER) / 6))?;
    setsockopt(stream, TcpKeepCount, &4)?;
    Ok(setsockopt(stream, TcpUserTimeout, &(seconds(GONE_AFTER) * 1000))?)
}

/// The next connection to a listener that does not block; `None` when none comes in time.
pub fn accept(listener: &TcpListener, timeout: Duration) -> Result<Option<TcpStream>> {
    if !fd::wait(listener.as_fd(), PollFlags::POLLIN, timeout)? {
        return Ok(None);
    }
    match listener.accept() {
        Ok((stream, _)) => {
            stream.set_nonblocking(false).context("accept")?;
            Ok(Some(stream))
        }
        // It went away again.
        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(e).context("accept"),
    }
}

/// Where a connection that was accepted here was going before the packet filter redirected it (`SO_ORIGINAL_DST`,
/// `IP6T_SO_ORIGINAL_DST`). Its own address, or an error, when nothing redirected it.
pub fn original_destination(stream: &TcpStream) -> Result<SocketAddr> {
    let what = "ask for the original destination of a connection";
    if stream.local_addr().context(what)?.is_ipv4() {
        let address = getsockopt(stream, OriginalDst).context(what)?;
        let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
        Ok(SocketAddr::new(ip.into(), u16::from_be(address.sin_port)))
    } else {
        let address = getsockopt(stream, Ip6tOriginalDst).context(what)?;
        let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
        Ok(SocketAddr::new(ip.into(), u16::from_be(address.sin6_port)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_destination_and_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let to = listener.local_addr().unwrap();
        assert!(accept(&listener, Duration::ZERO).unwrap().is_none());
        let stream = connect_from([127, 0, 0, 3].into(), to, Duration::from_secs(5)).unwrap();
        let accepted = accept(&listener, Duration::from_secs(5)).unwrap().unwrap();
        assert_eq!(accepted.peer_addr().unwrap(), stream.local_addr().unwrap());
        assert_eq!(accepted.peer_addr().unwrap().ip(), IpAddr::from([127, 0, 0, 3]));
        // Nothing redirected it.
        assert!(original_destination(&accepted).map_or(true, |address| address == to));
        let stream = connect(&[[127, 0, 0, 1].into()], to.port(), Duration::from_secs(5)).unwrap();
        assert!(stream.nodelay().unwrap());
        drop(listener);
        let e = connect(&[[127, 0, 0, 1].into()], to.port(), Duration::from_secs(5)).unwrap_err();
        assert_eq!(e.errno(), Some(libc::ECONNREFUSED));
        assert_eq!(connect(&[], 1, Duration::from_secs(5)).unwrap_err().kind(), Kind::NotFound);
        let e = connect_from([127, 0, 0, 3].into(), to, Duration::from_secs(5)).unwrap_err();
        assert_eq!(e.errno(), Some(libc::ECONNREFUSED));
    }
}
