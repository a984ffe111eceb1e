//! The stand-in for Envoy, and clients that run as other users: processes of their own, since a process has one user.

use crate::support::eventually;
use ferrule::sys::netlink::set_link_up;
use ferrule::sys::netns::Netns;
use ferrule::sys::tcp::original_destination;
use nix::sys::socket::sockopt::{IpTransparent, Mark, ReuseAddr};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, connect, listen, setsockopt, socket,
};
use std::io::{self, BufRead, BufReader, Lines, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Envoy's user and group.
pub(super) const ENVOY: u32 = 1337;
const OUTBOUND: u16 = 15001;
const INBOUND: u16 = 15006;
const DNS: u16 = 15053;
/// For one answer; one that was passed on twice may take as long three times.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A running stand-in; ends with the value.
pub(super) struct Envoy {
    process: Child,
    /// Not closed before it ends.
    _lines: Lines<BufReader<ChildStdout>>,
}

impl Envoy {
    /// Starts it in a pod and waits until it listens.
    pub(super) fn start(pod: &Netns) -> Self {
        let mut command = run_as(ENVOY, ENVOY, "envoy_runs");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = pod.enter(|| command.spawn().unwrap()).unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("envoy listens")), "it ended before it listened");
        Envoy { process, _lines: lines }
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        // The end of its standard input is its own.
        drop(self.process.stdin.take());
        eventually("envoy ends", || self.process.try_wait().unwrap().is_some());
    }
}

/// A test body of this file as a process of another user, who may set marks and use addresses of others.
fn run_as(uid: u32, gid: u32, body: &str) -> Command {
    let module = module_path!().split_once("::").unwrap().1;
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={uid}"), format!("--regid={gid}")]);
    command.args(["--clear-groups", "--inh-caps=+net_admin", "--ambient-caps=+net_admin", "--"]);
    command.arg(std::env::current_exe().unwrap());
    command.args([&format!("{module}::{body}"), "--exact", "--nocapture", "--test-threads=1"]);
    command.env("SIDECAR_TEST", "1");
    command
}

/// What a process of another user is answered, from inside a namespace.
#[track_caller]
pub(super) fn ask_as((uid, gid): (u32, u32), netns: &Netns, to: &str) -> String {
    let mut command = run_as(uid, gid, "client_asks");
    command.env("SIDECAR_TEST_TO", to);
    let output = netns.enter(|| command.output().unwrap()).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let answer = text.lines().find_map(|line| line.split_once("answer: "));
    answer.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr))).1.to_owned()
}

/// What is answered at an address; `udp:` in front of it asks by UDP, `IP>` from that address, which may be another's.
pub(super) fn ask(to: &str) -> String {
    let answer = match (to.strip_prefix("udp:"), to.split_once('>')) {
        (Some(to), _) => ask_udp(to.parse().unwrap()),
        (_, Some((from, to))) => ask_tcp(stream(to.parse().unwrap(), Some((from.parse().unwrap(), true))), TIMEOUT),
        (None, None) => ask_tcp(stream(to.parse().unwrap(), None), 3 * TIMEOUT),
    };
    answer.unwrap_or_else(|e| format!("none ({e})"))
}

fn ask_tcp(stream: io::Result<TcpStream>, timeout: Duration) -> io::Result<String> {
    let mut stream = stream?;
    stream.set_read_timeout(Some(timeout))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Only an answer from the address that was asked counts.
fn ask_udp(to: SocketAddr) -> io::Result<String> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.send(b"?")?;
    let mut text = [0; 128];
    let len = socket.recv(&mut text)?;
    Ok(String::from_utf8_lossy(&text[..len]).into_owned())
}

fn open(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    Ok(socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?)
}

/// Connects; from this address and with Envoy's mark, if an address is given.
fn stream(to: SocketAddr, source: Option<(IpAddr, bool)>) -> io::Result<TcpStream> {
    let fd = open(to)?;
    if let Some((source, transparent)) = source {
        if transparent {
            setsockopt(&fd, IpTransparent, &true)?;
            setsockopt(&fd, Mark, &1337)?;
        }
        bind(fd.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source, 0)))?;
    }
    let stream = TcpStream::from(fd);
    stream.set_write_timeout(Some(TIMEOUT))?;
    connect(stream.as_raw_fd(), &SockaddrStorage::from(to))?;
    Ok(stream)
}

pub(super) fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let fd = open(address)?;
    setsockopt(&fd, ReuseAddr, &true)?;
    setsockopt(&fd, IpTransparent, &true)?;
    if address.is_ipv6() {
        setsockopt(&fd, nix::sys::socket::sockopt::Ipv6V6Only, &true)?;
    }
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
    listen(&fd, Backlog::new(64)?)?;
    Ok(fd.into())
}

/// Says where a connection was going, goes there, and passes on what is said there.
fn relay(mut client: TcpStream, inbound: bool) -> io::Result<()> {
    let (local, peer) = (client.local_addr()?, client.peer_addr()?);
    let transparent = inbound && local.port() != INBOUND;
    let seen = if transparent { format!(" of {}", peer.ip()) } else { String::new() };
    let to =
        if transparent { local } else { original_destination(&client).map_err(|e| io::Error::other(e.to_string()))? };
    let own: IpAddr = if to.is_ipv4() { [127, 0, 0, 6].into() } else { "::6".parse().unwrap() };
    let source = inbound.then_some((own, false));
    let said = ask_tcp(stream(to, source), TIMEOUT).unwrap_or_else(|e| format!("none ({e})"));
    write!(client, "{} {to}{seen} | {said}", if inbound { "inbound" } else { "outbound" })
}

/// A namespace of its own with the stand-in in it.
fn alone_with_envoy() -> (Netns, Envoy) {
    let netns = Netns::scratch().unwrap();
    netns.enter(|| set_link_up("lo").unwrap()).unwrap();
    let envoy = Envoy::start(&netns);
    (netns, envoy)
}

/// Answers queries; started as the process of another user, it is the stand-in.
#[test]
#[expect(clippy::print_stdout, reason = "whoever started it waits for this")]
fn envoy_runs() {
    if std::env::var_os("SIDECAR_TEST").is_none() {
        let (netns, _envoy) = alone_with_envoy();
        for to in ["127.0.0.1:15053", "[::1]:15053", "udp:127.0.0.1:15053"] {
            assert_eq!(netns.enter(|| ask(to)).unwrap(), "dns", "{to}");
        }
        return;
    }
    for ip in [IpAddr::from([0; 4]), IpAddr::from([0; 16])] {
        for port in [OUTBOUND, INBOUND] {
            let listener = listener((ip, port).into()).unwrap();
            std::thread::spawn(move || {
                for client in listener.incoming().flatten() {
                    // One at a time would wait for itself where traffic loops.
                    std::thread::spawn(move || relay(client, port == INBOUND));
                }
            });
        }
        let dns = listener((ip, DNS).into()).unwrap();
        std::thread::spawn(move || {
            for mut client in dns.incoming().flatten() {
                let _ = client.write_all(b"dns");
            }
        });
    }
    // Of one socket for both families the answer's source would be left to the routes.
    for ip in [IpAddr::from([127, 0, 0, 1]), "::1".parse().unwrap()] {
        let dns = UdpSocket::bind((ip, DNS)).unwrap();
        std::thread::spawn(move || {
            let mut query = [0; 512];
            while let Ok((_, from)) = dns.recv_from(&mut query) {
                let _ = dns.send_to(b"dns", from);
            }
        });
    }
    println!("envoy listens");
    let _ = io::stdin().read(&mut [0]);
}

/// Asks as another user; started as the process of one, it is the client.
#[test]
#[expect(clippy::print_stdout, reason = "this is the answer")]
fn client_asks() {
    if let Some(to) = std::env::var_os("SIDECAR_TEST_TO") {
        println!("answer: {}", ask(to.to_str().unwrap()));
        return;
    }
    let (netns, _envoy) = alone_with_envoy();
    assert_eq!(ask_as((7, 7), &netns, "udp:127.0.0.1:15053"), "dns");
    assert!(ask_as((7, 7), &netns, "127.0.0.1:1").starts_with("none"));
}
