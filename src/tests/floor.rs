//! The doors in `sys`, against the real kernel.

use crate::support::eventually;
use crate::support::netns::{Backend, PodNetns, iptables_save, run_in};
use ferrule::dataplane::routing::{add_route, add_rule, has_route, has_rule, remove_route, remove_rule};
use ferrule::error::Kind;
use ferrule::rules::family::Family;
use ferrule::rules::routing::{LocalRoute, MarkRule};
use ferrule::sys::exec;
use ferrule::sys::fd::{recv_with_fds, send_with_fd};
use ferrule::sys::file::HostRoot;
use ferrule::sys::netlink::{add_address, addresses, netfilter, set_link_up};
use ferrule::sys::netns::{Netns, Owner};
use ferrule::sys::unix::{Connection, Listener, SocketType};
use std::fs::{File, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(10);

#[test]
fn namespaces_are_told_from_everything_else() {
    assert_eq!(Netns::open(Path::new("/proc/self/ns/net")).unwrap().id(), Netns::own().unwrap().id());
    for other in ["/proc/self/ns/mnt", "/proc/self/stat", "/dev/null", "/"] {
        assert_eq!(Netns::open(Path::new(other)).unwrap_err().kind(), Kind::Invalid, "{other}");
    }
    assert_eq!(Netns::open(Path::new("/no/such")).unwrap_err().kind(), Kind::NotFound);
    assert_eq!(Netns::from_fd(File::open("/dev/null").unwrap().into()).unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn a_closure_runs_inside_and_leaves_nothing_behind() {
    let (a, b) = (Netns::scratch().unwrap(), Netns::scratch().unwrap());
    assert_ne!(a.id(), b.id());
    let here = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let inside = a.enter(|| std::fs::read_link("/proc/thread-self/ns/net").unwrap()).unwrap();
    assert_eq!(inside.to_str().unwrap(), format!("net:[{}]", a.id().ino));
    assert_eq!(std::fs::read_link("/proc/thread-self/ns/net").unwrap(), here);
    // A child spawned inside is inside.
    let seen = a.enter(|| Command::new("readlink").arg("/proc/self/ns/net").output().unwrap().stdout).unwrap();
    assert_eq!(String::from_utf8(seen).unwrap().trim(), inside.to_str().unwrap());
    assert_eq!(a.try_clone().unwrap().id(), a.id());
    assert_eq!(a.owner().unwrap(), Owner::Own);
}

/// A user namespace is known by who made it, not by who is root there.
#[test]
fn the_user_namespace_of_a_network_is_known() {
    let check = |command: &[&str], maps: bool, expected: Owner| {
        let mut child = Command::new(command[0]).args(&command[1..]).args(["sleep", "60"]).spawn().unwrap();
        let path = format!("/proc/{}", child.id());
        let is_there = || std::fs::read_to_string(format!("{path}/comm")).is_ok_and(|comm| comm.trim() == "sleep");
        eventually("the child has its namespaces", is_there);
        for map in ["uid_map", "gid_map"].iter().filter(|_| maps) {
            std::fs::write(format!("{path}/{map}"), "0 1000000 65536").unwrap();
        }
        let owner = Netns::open(Path::new(&format!("{path}/ns/net"))).and_then(|netns| netns.owner());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(owner.unwrap(), expected, "{command:?}");
    };
    check(&["unshare", "-n"], false, Owner::Own);
    check(&["unshare", "-U", "-n"], true, Owner::Child { maker: 0 });
    check(&["unshare", "-U", "-r", "-n"], false, Owner::Child { maker: 0 });
    let nobody = ["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups"];
    check(&[&nobody[..], &["unshare", "-U", "-n"]].concat(), true, Owner::Child { maker: 1000 });
    check(&["unshare", "-U", "-r", "unshare", "-n"], false, Owner::Child { maker: 0 });
    check(&["unshare", "-U", "-r", "unshare", "-U", "-r", "-n"], false, Owner::Deeper);
}

/// Started by the next test as a process of its own.
const KILLED: &str = "FERRULE_TEST_PID_FILE";

#[test]
fn programs_die_with_the_process_that_ran_them() {
    if let Some(file) = std::env::var_os(KILLED) {
        let script = format!("echo $$ > {0}.tmp && mv {0}.tmp {0} && exec sleep 1000", file.display());
        let args = vec!["-c".into(), script.into()];
        let env = vec![("PATH".into(), "/usr/bin:/bin".into())];
        let sleeper =
            exec::Command { program: "/bin/sh".into(), args, env, deadline: 10 * LONG, ..exec::Command::default() };
        panic!("{:?}", exec::run(&sleeper));
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let mut runner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "floor::programs_die_with_the_process_that_ran_them"])
        .env(KILLED, &file)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    eventually("the program runs", || file.exists());
    let stat = format!("/proc/{}/stat", std::fs::read_to_string(&file).unwrap().trim());
    assert!(Path::new(&stat).exists());
    runner.kill().unwrap();
    runner.wait().unwrap();
    eventually("the program is gone", || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ")));
}

#[test]
fn rules_and_routes_come_and_go_and_are_idempotent() {
    let ns = Netns::scratch().unwrap();
    ns.enter(|| {
        set_link_up("lo").unwrap();
        for family in [Family::V4, Family::V6] {
            let rule = MarkRule { family, mark: 0x111, mask: 0xfff, priority: Some(32764), table: 100 };
            let route = LocalRoute { family, table: 100 };
            let any = MarkRule { priority: None, table: 1000, ..rule };
            let shown = |what: &str| ip(family, what);
            let (rules, routes) = (shown("rule"), shown("route show table all"));
            assert!(!has_rule(rule).unwrap() && !has_route(route).unwrap());
            assert!(!remove_rule(rule).unwrap() && !remove_route(route).unwrap());
            for _ in 0..2 {
                add_rule(rule).unwrap();
                add_rule(any).unwrap();
                add_route(route).unwrap();
            }
            assert!(has_rule(rule).unwrap() && has_rule(any).unwrap() && has_route(route).unwrap());
            assert!(!has_rule(MarkRule { mask: 0xff, ..rule }).unwrap());
            assert!(!has_rule(MarkRule { priority: Some(1), ..rule }).unwrap());
            assert!(!has_route(LocalRoute { table: 101, ..route }).unwrap());
            assert_eq!(shown("rule").matches("fwmark 0x111/0xfff lookup 100\n").count(), 1, "{}", shown("rule"));
            assert_eq!(shown("rule").matches("fwmark 0x111/0xfff lookup 1000\n").count(), 1, "{}", shown("rule"));
            let default = match family {
                Family::V4 => "local default dev lo scope host",
                Family::V6 => "local default dev lo metric 1024 pref medium",
            };
            assert_eq!(shown("route show table 100").trim(), default);
            assert!(remove_rule(rule).unwrap() && remove_rule(any).unwrap() && remove_route(route).unwrap());
            assert_eq!((shown("rule"), shown("route show table all")), (rules, routes), "no residue");
        }
    })
    .unwrap();
}

#[test]
fn a_rule_that_matches_more_is_not_ours() {
    let ns = Netns::scratch().unwrap();
    ns.enter(|| {
        let rule = MarkRule { family: Family::V4, mark: 0x111, mask: 0xfff, priority: Some(32764), table: 100 };
        let add = "rule add from 10.0.0.0/8 fwmark 0x111/0xfff pref 32764 lookup 100";
        let before = ip(Family::V4, add) + &ip(Family::V4, "rule");
        assert!(!has_rule(rule).unwrap() && !remove_rule(rule).unwrap());
        assert_eq!(ip(Family::V4, "rule"), before);
    })
    .unwrap();
}

#[test]
fn addresses_are_added_and_listed() {
    let ns = Netns::scratch().unwrap();
    ns.enter(|| {
        assert_eq!(addresses().unwrap(), Vec::<IpAddr>::new());
        set_link_up("lo").unwrap();
        for _ in 0..2 {
            add_address("lo", "::6".parse().unwrap(), 128).unwrap();
            add_address("lo", "10.1.2.3".parse().unwrap(), 32).unwrap();
        }
        let mut found = addresses().unwrap();
        found.sort();
        let expected: Vec<IpAddr> =
            ["10.1.2.3", "127.0.0.1", "::1", "::6"].iter().map(|address| address.parse().unwrap()).collect();
        assert_eq!(found, expected);
        assert_eq!(set_link_up("nothing0").unwrap_err().kind(), Kind::NotFound);
    })
    .unwrap();
}

#[test]
fn a_large_dump_arrives_whole() {
    let ns = Netns::scratch().unwrap();
    ns.enter(|| {
        let chains: String = (0..3000).map(|n| format!("add chain inet t c{n}\n")).collect();
        feed(Command::new("nft").args(["-f", "-"]), &format!("add table inet t\n{chains}"));
        // NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETCHAIN, and a nfgenmsg for every family.
        let dump = netfilter(10 << 8 | 4, libc::NLM_F_DUMP as u16, &[0; 4]).unwrap();
        assert_eq!(dump.len(), 3000);
        // A table that is not there, asked for by name: NFTA_TABLE_NAME "x".
        let one = [1, 0, 0, 0, 6, 0, 1, 0, b'x', 0, 0, 0];
        assert_eq!(netfilter(10 << 8 | 1, 0, &one).unwrap_err().kind(), Kind::NotFound);
    })
    .unwrap();
}

#[test]
fn descriptors_travel_and_a_surplus_is_closed() {
    let (a, b) = UnixDatagram::pair().unwrap();
    let file = tempfile::tempfile().unwrap();
    send_with_fd(a.as_fd(), b"one", Some(file.as_fd())).unwrap();
    send_with_fd(a.as_fd(), b"none", None).unwrap();
    let mut buf = [0; 4];
    let got = recv_with_fds(b.as_fd(), &mut buf).unwrap();
    assert_eq!((got.len, got.truncated, got.fds_lost, got.fds.len()), (3, false, false, 1));
    assert_eq!(inode(&got.fds[0]), inode(file.as_fd()));
    let flags = nix::fcntl::fcntl(&got.fds[0], nix::fcntl::FcntlArg::F_GETFD).unwrap();
    assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    assert!(recv_with_fds(b.as_fd(), &mut buf).unwrap().fds.is_empty());
    send_with_fd(a.as_fd(), b"longer", None).unwrap();
    assert!(recv_with_fds(b.as_fd(), &mut buf).unwrap().truncated);

    // The file is held open only by what was received: when that is gone, so is the lock.
    let dir = tempfile::tempdir().unwrap();
    let held =
        |lock: &File| File::open(dir.path().join("lock")).unwrap().try_lock().is_err() && lock.metadata().is_ok();
    let lock = File::create(dir.path().join("lock")).unwrap();
    lock.try_lock().unwrap();
    send_many(&a, &lock, 40);
    let got = recv_with_fds(b.as_fd(), &mut buf).unwrap();
    assert_eq!((got.fds_lost, got.fds.len() >= 16), (true, true));
    let probe = File::open(dir.path().join("lock")).unwrap();
    drop(lock);
    assert!(held(&probe));
    drop(got);
    assert!(!held(&probe));
}

#[test]
fn a_listener_takes_over_and_removes_only_what_is_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    for kind in [SocketType::Stream, SocketType::SeqPacket] {
        let first = Listener::bind(&path, kind).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert!(first.accept(SHORT).unwrap().is_none());
        let client = Connection::connect(&path, kind, LONG).unwrap();
        let server = first.accept(LONG).unwrap().unwrap();
        (&client).write_all(b"hello").unwrap();
        let mut buf = [0; 16];
        assert_eq!((&server).read(&mut buf).unwrap(), 5);

        let second = Listener::bind(&path, kind).unwrap();
        assert!(!first.still_ours() && second.still_ours());
        drop(first);
        Connection::connect(&path, kind, LONG).unwrap();
        assert!(second.accept(LONG).unwrap().is_some());
        drop(second);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(Connection::connect(&path, kind, LONG).unwrap_err().kind(), Kind::NotFound);
    }
}

#[test]
fn paths_of_sockets_have_a_limit_that_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let longest = dir.path().join("x".repeat(107 - dir.path().as_os_str().len() - 1));
    let listener = Listener::bind(&longest, SocketType::Stream).unwrap();
    Connection::connect(listener.path(), SocketType::Stream, LONG).unwrap();
    let longer = dir.path().join("x".repeat(107 - dir.path().as_os_str().len()));
    for e in [
        Listener::bind(&longer, SocketType::Stream).unwrap_err(),
        Connection::connect(&longer, SocketType::Stream, LONG).unwrap_err(),
    ] {
        assert_eq!(e.kind(), Kind::Invalid);
        assert!(e.to_string().contains("has 108 bytes"), "{e}");
    }
}

#[test]
fn a_peer_that_is_not_root_is_turned_away() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("s.sock");
    let listener = Listener::bind(&path, SocketType::Stream).unwrap();
    // The file's mode alone keeps it out …
    assert!(!connects_as_nobody(&path));
    // … and where it does not, the check of the peer does.
    std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    assert!(connects_as_nobody(&path));
    let e = listener.accept(LONG).unwrap_err();
    assert_eq!(e.kind(), Kind::Refused);
    assert!(e.to_string().contains("uid 65534"), "{e}");
}

#[test]
fn waits_on_sockets_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let listener = Listener::bind(&path, SocketType::Stream).unwrap();
    let client = Connection::connect(&path, SocketType::Stream, LONG).unwrap();
    client.set_timeouts(SHORT, SHORT).unwrap();
    let begin = Instant::now();
    // Signals of other tests in this process may interrupt it, as they may any read.
    let mut reads = std::iter::repeat_with(|| (&client).read(&mut [0; 1]).unwrap_err().kind());
    assert_eq!(reads.find(|kind| *kind != ErrorKind::Interrupted), Some(ErrorKind::WouldBlock));
    assert_eq!(recv_with_fds(client.as_fd(), &mut [0; 1]).unwrap_err().kind(), Kind::TimedOut);
    assert!(begin.elapsed() >= SHORT && begin.elapsed() < LONG);
    // Nobody accepts: connects beyond the backlog fail in time instead of waiting.
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
    let refused = (0..3).find_map(|_| match Connection::connect(&path, SocketType::Stream, SHORT) {
        Ok(connection) => {
            std::mem::forget(connection);
            None
        }
        Err(e) => Some(e.kind()),
    });
    assert_eq!(refused, Some(Kind::TimedOut));
}

#[test]
fn a_peer_that_left_is_noticed_and_one_that_only_stopped_writing_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let listener = Listener::bind(&path, SocketType::Stream).unwrap();
    let client = Connection::connect(&path, SocketType::Stream, LONG).unwrap();
    let server = listener.accept(LONG).unwrap().unwrap();
    assert!(!server.peer_gone());
    let raw = client.as_fd().try_clone_to_owned().unwrap();
    nix::sys::socket::shutdown(std::os::fd::AsRawFd::as_raw_fd(&raw), nix::sys::socket::Shutdown::Write).unwrap();
    assert_eq!((&server).read(&mut [0; 1]).unwrap(), 0);
    assert!(!server.peer_gone());
    drop((client, raw));
    assert!(server.peer_gone());
    assert_eq!((&server).write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn a_blocked_reader_wakes_up_on_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let listener = Listener::bind(&path, SocketType::SeqPacket).unwrap();
    let client = Connection::connect(&path, SocketType::SeqPacket, LONG).unwrap();
    let server = std::sync::Arc::new(listener.accept(LONG).unwrap().unwrap());
    let reader = {
        let server = server.clone();
        std::thread::spawn(move || (&*server).read(&mut [0; 1]).unwrap())
    };
    server.shutdown();
    assert_eq!(reader.join().unwrap(), 0);
    drop(client);
}

#[test]
fn a_namespace_given_by_path_is_the_one_that_is_entered() {
    let pod = PodNetns::new();
    assert_eq!(Netns::open(pod.path()).unwrap().id(), pod.netns().id());
    assert_eq!(
        HostRoot::new("/").open(pod.path()).map(|f| Netns::from_fd(f.into()).unwrap().id()).unwrap(),
        pod.netns().id()
    );
    for backend in Backend::ALL {
        assert!(!iptables_save(pod.netns(), backend, Family::V4).contains("-A "));
        run_in(pod.netns(), &backend.program(Family::V4, ""), &["-t", "nat", "-N", "SEEN"]);
        assert!(iptables_save(pod.netns(), backend, Family::V4).contains(":SEEN -"));
    }
}

#[test]
fn entering_is_enough_for_sockets() {
    let ns = Netns::scratch().unwrap();
    ns.enter(|| {
        set_link_up("lo").unwrap();
        let listener = TcpListener::bind("127.0.0.1:80").unwrap();
        TcpStream::connect("127.0.0.1:80").unwrap();
        listener.accept().unwrap();
    })
    .unwrap();
}

fn ip(family: Family, what: &str) -> String {
    let family = if family == Family::V4 { "-4" } else { "-6" };
    let out = Command::new("ip").arg(family).args(what.split(' ')).output().unwrap();
    // `ip` says that a table is not there on stderr, and that is then the answer.
    String::from_utf8(out.stdout).unwrap()
}

fn feed(command: &mut Command, stdin: &str) {
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

fn inode(fd: impl AsFd) -> u64 {
    File::from(fd.as_fd().try_clone_to_owned().unwrap()).metadata().unwrap().ino()
}

fn send_many(socket: &UnixDatagram, file: &File, count: usize) {
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    use std::os::fd::AsRawFd;
    let fds: Vec<OwnedFd> = (0..count).map(|_| file.as_fd().try_clone_to_owned().unwrap()).collect();
    let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let data = [std::io::IoSlice::new(b"many")];
    sendmsg::<()>(socket.as_raw_fd(), &data, &[ControlMessage::ScmRights(&raw)], MsgFlags::empty(), None).unwrap();
}

fn connects_as_nobody(path: &Path) -> bool {
    // Another uid without root's capabilities; python is not needed where perl's core is.
    let script = "use Socket; socket(S, PF_UNIX, SOCK_STREAM, 0) or exit 2; \
                  connect(S, sockaddr_un($ARGV[0])) or exit 1; exit 0";
    let status = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "perl", "-e", script])
        .arg(path)
        .status()
        .unwrap();
    assert!(matches!(status.code(), Some(0 | 1)), "{status}");
    status.success()
}
