//! One pod's proxy: listeners inside its network namespace, connections forwarded to where they were going.
//!
//! A thread of its own enters the namespace and accepts; each connection has a thread that inherits the namespace.

use super::dns;
use super::socket;
use super::stats::{Board, Flow, PodStats};
use super::stop::Stop;
use nix::sched::{CloneFlags, setns};
use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

const OUTBOUND: u16 = 15001;
const INBOUND: u16 = 15006;
const HBONE: u16 = 15008;
const DNS: u16 = 15053;

/// Connections one pod may have open; more are closed at once.
const CONNECTION_LIMIT: usize = 256;

/// The longest first line of a connection from another proxy.
const CONNECT_LINE_LIMIT: u64 = 128;

/// Addresses of all pods that are served: connections between them go from proxy to proxy.
pub type Mesh = Arc<Mutex<HashSet<IpAddr>>>;

/// A running proxy. Dropping it cuts its connections at once and lets the namespace go.
pub struct Proxy {
    /// Device and inode of the namespace.
    pub netns: (u64, u64),
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Opens everything in the namespace; returns when the ports are open.
    pub fn start(netns: OwnedFd, uid: &str, board: &Arc<Board>, mesh: &Mesh, dns: bool) -> Result<Self, String> {
        let id = netns_id(&netns)?;
        let stop = Stop::new();
        let pod =
            Pod { uid: uid.into(), board: board.clone(), mesh: mesh.clone(), stop: stop.clone(), live: Arc::default() };
        let (opened, result) = mpsc::sync_channel(1);
        let body = move || {
            let ports =
                setns(&netns, CloneFlags::CLONE_NEWNET).map_err(io::Error::from).and_then(|()| Ports::open(dns));
            drop(netns);
            match ports {
                Ok(ports) => {
                    // Whoever hears that it is open may connect at once.
                    let own = own_addresses();
                    pod.mesh.lock().unwrap().extend(&own);
                    let _ = opened.send(Ok(()));
                    drop(opened);
                    pod.run(ports, &own);
                }
                Err(e) => {
                    let _ = opened.send(Err(e.to_string()));
                }
            }
        };
        let thread = std::thread::Builder::new().name("standin-pod".into()).spawn(body).map_err(|e| e.to_string())?;
        let proxy = Proxy { netns: id, stop, thread: Some(thread) };
        result.recv().map_err(|e| e.to_string())??;
        Ok(proxy)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.now();
        let _ = self.thread.take().unwrap().join();
    }
}

/// Device and inode.
pub fn netns_id(netns: &OwnedFd) -> Result<(u64, u64), String> {
    let stat = nix::sys::stat::fstat(netns).map_err(|e| e.to_string())?;
    Ok((stat.st_dev, stat.st_ino))
}

#[derive(Clone, Copy)]
enum Direction {
    Outbound,
    Inbound,
    Hbone,
    Dns,
}

/// What is open in a namespace.
struct Ports {
    tcp: Vec<(Direction, TcpListener)>,
    udp: Vec<UdpSocket>,
}

impl Ports {
    fn open(dns: bool) -> io::Result<Self> {
        // Fails while the loopback interface is down, as ztunnel does.
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.connect((Ipv4Addr::LOCALHOST, 9))?;
        let v6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
        let mut ports = Ports { tcp: Vec::new(), udp: Vec::new() };
        for (direction, port) in
            [(Direction::Outbound, OUTBOUND), (Direction::Inbound, INBOUND), (Direction::Hbone, HBONE)]
        {
            ports.tcp.push((direction, socket::listener((Ipv4Addr::UNSPECIFIED, port).into())?));
            if v6 {
                ports.tcp.push((direction, socket::listener((Ipv6Addr::UNSPECIFIED, port).into())?));
            }
        }
        if dns {
            let mut open = |address: IpAddr| -> io::Result<()> {
                ports.udp.push(socket::udp((address, DNS).into())?);
                ports.tcp.push((Direction::Dns, socket::listener((address, DNS).into())?));
                Ok(())
            };
            open(Ipv4Addr::LOCALHOST.into())?;
            if v6 {
                open(Ipv6Addr::LOCALHOST.into())?;
            }
        }
        Ok(ports)
    }
}

/// What the threads of a pod share.
#[derive(Clone)]
struct Pod {
    uid: String,
    board: Arc<Board>,
    mesh: Mesh,
    stop: Stop,
    /// Sockets to cut at the end, by connection.
    live: Arc<Mutex<HashMap<u64, Vec<TcpStream>>>>,
}

impl Pod {
    fn run(self, ports: Ports, own: &[IpAddr]) {
        let mut fds: Vec<BorrowedFd<'_>> = ports.tcp.iter().map(|(_, l)| l.as_fd()).collect();
        fds.extend(ports.udp.iter().map(|u| u.as_fd()));
        let mut number = 0;
        while let Some(ready) = self.stop.wait(&fds, None) {
            for i in ready {
                match ports.tcp.get(i) {
                    Some((direction, listener)) => {
                        number += 1;
                        self.accept(*direction, listener, number);
                    }
                    None => self.answer_udp(&ports.udp[i - ports.tcp.len()]),
                }
            }
        }
        self.mesh.lock().unwrap().retain(|ip| !own.contains(ip));
        drop(ports);
        for socket in self.live.lock().unwrap().values().flatten() {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn accept(&self, direction: Direction, listener: &TcpListener, number: u64) {
        let Ok((client, _)) = listener.accept() else { return };
        let mut live = self.live.lock().unwrap();
        if live.len() >= CONNECTION_LIMIT || client.set_nonblocking(false).is_err() {
            return;
        }
        live.insert(number, client.try_clone().into_iter().collect());
        drop(live);
        let pod = self.clone();
        let body = move || {
            let _ = pod.forward(direction, client, number);
            pod.live.lock().unwrap().remove(&number);
        };
        if std::thread::Builder::new().name("standin-conn".into()).spawn(body).is_err() {
            self.live.lock().unwrap().remove(&number);
        }
    }

    fn forward(&self, direction: Direction, client: TcpStream, number: u64) -> io::Result<()> {
        let peer = client.peer_addr()?;
        let mut first_bytes = Vec::new();
        let mut greeting = None;
        let flow: fn(&mut PodStats) -> &mut Flow = match direction {
            Direction::Outbound => |pod| &mut pod.outbound,
            Direction::Inbound => |pod| &mut pod.inbound,
            Direction::Hbone => |pod| &mut pod.hbone,
            Direction::Dns => return self.answer_tcp(client),
        };
        let destination = match direction {
            Direction::Hbone => {
                client.set_read_timeout(Some(Duration::from_secs(5)))?;
                let mut reader = BufReader::new(&client);
                let mut line = String::new();
                (&mut reader).take(CONNECT_LINE_LIMIT).read_line(&mut line)?;
                first_bytes.extend_from_slice(reader.buffer());
                client.set_read_timeout(None)?;
                let address = line.strip_prefix("CONNECT ").and_then(|l| l.trim_end().parse().ok());
                address.ok_or_else(|| io::Error::other("no CONNECT line"))?
            }
            _ => socket::original_destination(&client)?,
        };
        if destination == client.local_addr()? {
            return Err(io::Error::other("connected to the proxy itself: forwarding would loop"));
        }
        self.board.pod(&self.uid, |pod| {
            let flow = flow(pod);
            flow.connections += 1;
            flow.last = Some((peer, destination));
        });
        let upstream = match direction {
            Direction::Outbound if self.mesh.lock().unwrap().contains(&destination.ip()) => {
                greeting = Some(format!("CONNECT {destination}\n"));
                socket::stream(SocketAddr::new(destination.ip(), HBONE), None)?
            }
            Direction::Outbound => socket::stream(destination, None)?,
            _ => socket::stream(destination, Some(peer.ip()))?,
        };
        if let Some(sockets) = self.live.lock().unwrap().get_mut(&number) {
            sockets.push(upstream.try_clone()?);
        }
        if self.stop.stopped() {
            return Ok(());
        }
        (&upstream).write_all(greeting.unwrap_or_default().as_bytes())?;
        (&upstream).write_all(&first_bytes)?;
        let count = |bytes: usize| self.board.pod(&self.uid, |pod| flow(pod).bytes += bytes as u64);
        count(first_bytes.len());
        std::thread::scope(|scope| {
            let back = std::thread::Builder::new().spawn_scoped(scope, || pump(&upstream, &client, &count));
            if back.is_ok() {
                pump(&client, &upstream, &count);
            }
        });
        Ok(())
    }

    fn answer_tcp(&self, mut client: TcpStream) -> io::Result<()> {
        client.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut len = [0; 2];
        client.read_exact(&mut len)?;
        let mut query = vec![0; usize::from(u16::from_be_bytes(len))];
        client.read_exact(&mut query)?;
        let Some(answer) = dns::answer(&query) else { return Ok(()) };
        self.board.pod(&self.uid, |pod| pod.dns += 1);
        client.write_all(&(answer.len() as u16).to_be_bytes())?;
        client.write_all(&answer)
    }

    fn answer_udp(&self, socket: &UdpSocket) {
        let mut query = [0; 1500];
        let Ok((len, from)) = socket.recv_from(&mut query) else { return };
        if let Some(answer) = dns::answer(&query[..len]) {
            self.board.pod(&self.uid, |pod| pod.dns += 1);
            let _ = socket.send_to(&answer, from);
        }
    }
}

/// Copies one way until the end, and passes the end on; a failure ends both ways.
fn pump(mut from: &TcpStream, mut to: &TcpStream, count: &impl Fn(usize)) {
    let mut buffer = [0; 16 * 1024];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            Ok(n) if to.write_all(&buffer[..n]).is_ok() => count(n),
            _ => {
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
                return;
            }
        }
    }
}

/// Addresses of the namespace this thread is in, without loopback and link-local ones.
fn own_addresses() -> Vec<IpAddr> {
    let Ok(all) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    all.filter_map(|i| i.address)
        .filter_map(|a| {
            let v4 = a.as_sockaddr_in().map(|a| IpAddr::from(a.ip()));
            v4.or_else(|| a.as_sockaddr_in6().map(|a| IpAddr::from(a.ip())))
        })
        .filter(|ip| !ip.is_loopback() && !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()))
        .collect()
}
