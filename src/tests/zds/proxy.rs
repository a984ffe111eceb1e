//! Traffic of pods that have their rules and are served by the stand-in: two pods `a` and `b` in the mesh and a
//! stranger, on one bridge.

use super::*;
use crate::standin::{ANSWER_V4, PodStats, Standin};
use crate::support::engine::programmer;
use crate::support::netns::run_in;
use ferrule::dataplane::backend::Backend;
use ferrule::dataplane::xtables::variant::Variant;
use ferrule::rules::inpod::Settings;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::process::{Command, Stdio};

const PORT: u16 = 8080;

/// Something that does not work fails after this long.
const PATIENCE: Duration = Duration::from_secs(2);

const A: u8 = 1;
const B: u8 = 2;
const STRANGER: u8 = 3;

fn v4(host: u8) -> IpAddr {
    Ipv4Addr::new(10, 77, 0, host).into()
}

fn v6(host: u8) -> IpAddr {
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host.into()).into()
}

/// Runs `ip -batch` in a namespace.
#[track_caller]
fn ip(netns: &Netns, commands: &str) {
    let run = || {
        let mut child = Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
        child.wait().unwrap().success()
    };
    assert!(netns.enter(run).unwrap(), "ip: {commands}");
}

struct World {
    a: Arc<Netns>,
    b: Arc<Netns>,
    stranger: Arc<Netns>,
    standin: Standin,
    agent: Agent,
    ztunnel: ConnectionId,
    /// The bridge.
    _node: Netns,
}

impl World {
    /// A test with each of the backends that differ.
    fn each(settings: &Settings, test: impl Fn(World)) {
        for backend in [Backend::Iptables(Variant::Nft), Backend::Nftables] {
            test(World::with(settings, backend));
        }
    }

    fn new(settings: &Settings) -> Self {
        Self::with(settings, Backend::Iptables(Variant::Nft))
    }

    /// Wires everything up; `a` and `b` get these settings and are enrolled.
    fn with(settings: &Settings, backend: Backend) -> Self {
        let node = Netns::scratch().unwrap();
        ip(&node, "link add br0 type bridge forward_delay 0\nlink set br0 up\n");
        let [a, b, stranger] = [A, B, STRANGER].map(|host| {
            let pod = pod_netns();
            let at = format!("/proc/{}/fd/{}", std::process::id(), pod.as_fd().as_raw_fd());
            ip(
                &node,
                &format!(
                    "link add pod{host} type veth peer name eth0 netns {at}\nlink set pod{host} master br0\n\
                     link set pod{host} up\n"
                ),
            );
            let (v4, v6) = (v4(host), v6(host));
            ip(&pod, &format!("addr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\nlink set eth0 up\n"));
            pod
        });
        for pod in [&a, &b] {
            programmer(backend).0.apply(pod, settings).unwrap();
        }
        let agent = Agent::start(LONG);
        let options =
            crate::standin::Options { socket: agent.socket(), dns: settings.dns_capture, ..Default::default() };
        let standin = Standin::start(options);
        let ztunnel = agent.connected();
        agent.server.snapshot(ztunnel, vec![add("a", &a), add("b", &b)]);
        agent.acked(ztunnel, "a");
        agent.acked(ztunnel, "b");
        agent.snapshot_done(ztunnel);
        World { a, b, stranger, standin, agent, ztunnel, _node: node }
    }

    fn pod(&self, uid: &str) -> PodStats {
        self.standin.stats().pods[uid].clone()
    }

    /// Connections of a and b so far: outbound, plain inbound, from another proxy.
    #[track_caller]
    fn counted(&self, a: [u64; 3], b: [u64; 3]) {
        let [got_a, got_b] =
            ["a", "b"].map(|uid| self.pod(uid)).map(|p| [&p.outbound, &p.inbound, &p.hbone].map(|f| f.connections));
        assert_eq!((got_a, got_b), (a, b), "outbound, inbound, hbone of a and of b");
    }
}

fn settings() -> Settings {
    Settings {
        dns_capture: false,
        ingress_mode: false,
        reroute_interfaces: Vec::new(),
        ipv6: true,
        probe_v4: Ipv4Addr::new(169, 254, 7, 127),
        probe_v6: "fd16:9254:7127:1337:ffff:ffff:ffff:ffff".parse().unwrap(),
    }
}

/// A server in a pod that tells each client its address and then returns what it sends. It ends with the test.
fn serve(pod: &Netns) {
    let listener = pod.enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT))).unwrap().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut client, peer)) = listener.accept() {
            std::thread::spawn(move || {
                let mut copy = client.try_clone().unwrap();
                if writeln!(client, "{}", peer.ip().to_canonical()).is_ok() {
                    let _ = std::io::copy(&mut copy, &mut client);
                    let _ = client.shutdown(std::net::Shutdown::Write);
                }
            });
        }
    });
}

/// Connects from a pod, and returns the connection and the address under which the server sees it.
fn call(from: &Netns, to: IpAddr) -> std::io::Result<(TcpStream, String)> {
    let to = SocketAddr::new(to, PORT);
    let mut stream = from.enter(|| TcpStream::connect_timeout(&to, PATIENCE)).unwrap()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte)?;
        match byte {
            [b'\n'] => return Ok((stream, line)),
            [byte] => line.push(byte.into()),
        }
    }
}

/// Calls, exchanges `bytes` bytes, and returns the address under which the server saw the client.
fn talk(from: &Netns, to: IpAddr, bytes: usize) -> std::io::Result<String> {
    let (mut stream, seen) = call(from, to)?;
    let mut writer = stream.try_clone()?;
    let sent: Vec<u8> = (0..bytes).map(|i| i as u8).collect();
    let text = sent.clone();
    let writing = std::thread::spawn(move || {
        writer.write_all(&text)?;
        writer.shutdown(std::net::Shutdown::Write)
    });
    let mut back = Vec::new();
    stream.read_to_end(&mut back)?;
    writing.join().unwrap()?;
    assert!(back == sent, "{} of {bytes} bytes came back", back.len());
    Ok(seen)
}

#[test]
fn pod_to_pod_goes_through_both_proxies_and_keeps_its_address() {
    World::each(&settings(), |world| {
        serve(&world.b);
        for (n, address) in [v4 as fn(u8) -> IpAddr, v6].into_iter().enumerate() {
            assert_eq!(talk(&world.a, address(B), 1_000_000).unwrap(), address(A).to_string());
            let n = n as u64 + 1;
            world.counted([n, 0, 0], [0, 0, n]);
            let (peer, destination) = world.pod("a").outbound.last.unwrap();
            assert_eq!((peer.ip(), destination), (address(A), SocketAddr::new(address(B), PORT)));
            assert_eq!(world.pod("b").hbone.last.unwrap().0.ip(), address(A));
            eventually("all bytes are counted", || world.pod("a").outbound.bytes >= n * 2_000_000);
        }
    });
}

#[test]
fn strangers_reach_a_pod_through_its_proxy_under_their_own_address() {
    World::each(&settings(), |world| {
        serve(&world.b);
        serve(&world.stranger);
        for (n, address) in [v4 as fn(u8) -> IpAddr, v6].into_iter().enumerate() {
            assert_eq!(talk(&world.stranger, address(B), 100_000).unwrap(), address(STRANGER).to_string());
            let n = n as u64 + 1;
            world.counted([n - 1, 0, 0], [0, n, 0]);
            assert_eq!(talk(&world.a, address(STRANGER), 100_000).unwrap(), address(A).to_string());
            world.counted([n, 0, 0], [0, n, 0]);
        }
    });
}

#[test]
fn ingress_mode_lets_plain_text_in() {
    World::each(&Settings { ingress_mode: true, ..settings() }, |world| {
        serve(&world.b);
        assert_eq!(talk(&world.stranger, v4(B), 1000).unwrap(), v4(STRANGER).to_string());
        world.counted([0, 0, 0], [0, 0, 0]);
        assert_eq!(talk(&world.a, v4(B), 1000).unwrap(), v4(A).to_string());
        world.counted([1, 0, 0], [0, 0, 1]);
    });
}

#[test]
fn dns_is_answered_by_the_proxy_where_it_is_captured() {
    // A for `x.y`.
    let query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01x\x01y\x00\x00\x01\x00\x01";
    let nobody = SocketAddr::new(v4(53), 53);
    let udp = |from: &Netns| {
        let socket = from.enter(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        socket.send_to(query, nobody).unwrap();
        let mut answer = [0; 512];
        socket.recv_from(&mut answer).map(|(len, from)| (answer[..len].to_vec(), from))
    };
    World::each(&Settings { dns_capture: true, ..settings() }, |world| {
        let (answer, from) = udp(&world.a).unwrap();
        assert_eq!(from, nobody, "as if the resolver had answered");
        assert!(answer.starts_with(b"\x12\x34") && answer.ends_with(&ANSWER_V4.octets()));
        let mut tcp = world.a.enter(|| TcpStream::connect_timeout(&nobody, PATIENCE)).unwrap().unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        tcp.write_all(&[&[0, query.len() as u8][..], query].concat()).unwrap();
        let mut over_tcp = Vec::new();
        tcp.read_to_end(&mut over_tcp).unwrap();
        assert_eq!(over_tcp[2..], answer);
        assert_eq!(world.pod("a").dns, 2);
    });

    let world = World::new(&settings());
    udp(&world.a).unwrap_err();
    assert_eq!(world.pod("a").dns, 0);
}

#[test]
fn letting_a_pod_go_cuts_its_connections() {
    World::each(&settings(), |world| {
        serve(&world.b);
        let (mut stream, _) = call(&world.a, v4(B)).unwrap();
        world.agent.server.send(world.ztunnel, del("a"));
        world.agent.acked(world.ztunnel, "a");
        let mut byte = [0];
        assert!(matches!(stream.read(&mut byte), Ok(0) | Err(_)), "still open");
        // The rules are still there and nobody serves them: cut off, not let through.
        call(&world.a, v4(B)).unwrap_err();
    });
}

/// What the demonstration and other tests rely on: a missing piece shows.
#[test]
fn missing_pieces_do_not_stay_invisible() {
    let world = World::new(&settings());
    serve(&world.b);
    ip(&world.b, "rule del fwmark 0x111/0xfff lookup 100\n");
    call(&world.stranger, v4(B)).unwrap_err();

    let world = World::new(&settings());
    serve(&world.b);
    run_in(&world.a, "iptables-nft", &["-t", "nat", "-F", "ISTIO_OUTPUT"]);
    assert_eq!(talk(&world.a, v4(B), 1000).unwrap(), v4(A).to_string());
    world.counted([0, 0, 0], [0, 1, 0]);
}
