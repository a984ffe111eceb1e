//! Sockets as ztunnel opens them in a pod: all with its mark, so that the pod's rules let its own traffic through.

use nix::sys::socket::sockopt::{
    Ip6tOriginalDst, IpTransparent, Ipv6V6Only, Mark, OriginalDst, ReuseAddr, ReusePort, SendTimeout,
};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, SockaddrIn6, bind, connect, getsockopt, listen, setsockopt,
    socket,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// The mark that says "this is ztunnel".
pub const MARK: u32 = 0x539;

const CONNECT_TIMEOUT_SECONDS: i64 = 5;

fn open(address: SocketAddr, kind: SockType) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&fd, Mark, &MARK)?;
    if address.is_ipv6() {
        setsockopt(&fd, Ipv6V6Only, &true)?;
    }
    Ok(fd)
}

fn bind_to(fd: &OwnedFd, address: SocketAddr) -> io::Result<()> {
    Ok(match address {
        SocketAddr::V4(a) => bind(fd.as_raw_fd(), &SockaddrIn::from(a)),
        SocketAddr::V6(a) => bind(fd.as_raw_fd(), &SockaddrIn6::from(a)),
    }?)
}

/// A listener that may also be reached under addresses that are not the pod's (IP_TRANSPARENT), beside another
/// ztunnel's (SO_REUSEPORT, as during a rolling restart).
pub fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let fd = open(address, SockType::Stream)?;
    setsockopt(&fd, IpTransparent, &true)?;
    setsockopt(&fd, ReuseAddr, &true)?;
    setsockopt(&fd, ReusePort, &true)?;
    bind_to(&fd, address)?;
    listen(&fd, Backlog::new(128)?)?;
    let listener = TcpListener::from(fd);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A UDP socket.
pub fn udp(address: SocketAddr) -> io::Result<UdpSocket> {
    let fd = open(address, SockType::Datagram)?;
    setsockopt(&fd, ReusePort, &true)?;
    bind_to(&fd, address)?;
    let socket = UdpSocket::from(fd);
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Connects, under a foreign source address when one is given: the application then sees its client and not us, and
/// its answer comes back only if the pod's routes bring it here.
pub fn stream(to: SocketAddr, source: Option<IpAddr>) -> io::Result<TcpStream> {
    let fd = open(to, SockType::Stream)?;
    if let Some(source) = source {
        setsockopt(&fd, IpTransparent, &true)?;
        bind_to(&fd, SocketAddr::new(source, 0))?;
    }
    setsockopt(&fd, SendTimeout, &TimeVal::seconds(CONNECT_TIMEOUT_SECONDS))?;
    match to {
        SocketAddr::V4(a) => connect(fd.as_raw_fd(), &SockaddrIn::from(a)),
        SocketAddr::V6(a) => connect(fd.as_raw_fd(), &SockaddrIn6::from(a)),
    }?;
    Ok(TcpStream::from(fd))
}

/// Where a redirected connection was going.
pub fn original_destination(stream: &TcpStream) -> io::Result<SocketAddr> {
    if stream.local_addr()?.is_ipv4() {
        let raw = getsockopt(&stream.as_fd(), OriginalDst)?;
        let ip = Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr));
        Ok(SocketAddr::new(ip.into(), u16::from_be(raw.sin_port)))
    } else {
        let raw = getsockopt(&stream.as_fd(), Ip6tOriginalDst)?;
        let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
        Ok(SocketAddr::new(ip.into(), u16::from_be(raw.sin6_port)))
    }
}
