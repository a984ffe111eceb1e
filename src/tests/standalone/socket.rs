//! Whoever may come to the plugin socket: nobody there keeps the agent from serving the others.

use super::*;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

const IP: &str = "10.44.3.2";

/// Sends bytes as they are and returns what comes back.
fn exchange(world: &World, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(world.node.events()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // The agent may refuse and close before all is sent.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

/// An ADD by the plugin, start to end.
#[track_caller]
fn timed_add(world: &World, netns: &PodNetns, container: &str) -> Duration {
    let began = Instant::now();
    world.add("web", container, netns, IP);
    began.elapsed()
}

#[test]
fn garbage_is_answered_and_forgotten() {
    let world = World::new();
    let request = b"POST /cmdadd HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\n{\"PodName\":1";
    for cut in 0..request.len() {
        let answer = exchange(&world, &request[..cut]);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "cut at {cut}: {answer}");
    }
    let check = |bytes: &[u8], expected: &str| {
        let answer = exchange(&world, bytes);
        let head = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected} ")), "{head}: {answer}");
    };
    check(request, "400");
    check(b"\x16\x03\x01\x02\x00\x01\x00", "400");
    check(b"GET /nothing HTTP/1.1\r\n\r\n", "404");
    check(b"GET /cmdadd HTTP/1.1\r\n\r\n", "405");
    check(b"POST /gc HTTP/1.1\r\nContent-Length: 1\r\n\r\n7", "400");
    let huge =
        [b"POST /cmdadd HTTP/1.1\r\nContent-Length: 10485760\r\n\r\n".as_slice(), &vec![b'x'; 10 << 20]].concat();
    check(&huge, "413");
    let head = [b"GET /status HTTP/1.1\r\nX: ".as_slice(), &vec![b'x'; 20 << 10]].concat();
    assert!(exchange(&world, &head).starts_with("HTTP/1.1 4"));
    let netns = world.make_pod("web", IP);
    world.add("web", "c1", &netns, IP);
}

#[test]
fn slow_peers_hold_up_nobody() {
    let world = World::new();
    let netns = world.make_pod("web", IP);
    let usual = timed_add(&world, &netns, "c1");
    let before = open_files(&world);
    let mut slow: Vec<UnixStream> = (0..300).map(|_| UnixStream::connect(world.node.events()).unwrap()).collect();
    for stream in &mut slow {
        let _ = stream.write_all(b"POST /cmdadd HTTP/1.1\r\nX: ");
    }
    let loaded = timed_add(&world, &netns, "c1");
    assert!(loaded < usual * 10 + Duration::from_millis(500), "{loaded:?} instead of {usual:?}");
    // A byte now and then does not help: a request has to be complete in time.
    eventually("they are cut off", || {
        slow.retain_mut(|stream| stream.write_all(b"x").is_ok());
        slow.is_empty()
    });
    eventually("and forgotten", || open_files(&world) <= before);
}

#[test]
fn a_peer_that_is_not_root_is_refused() {
    let world = World::new();
    let script = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
                  s.sendall(b'GET /status HTTP/1.1\\r\\n\\r\\n')\nsys.stdout.buffer.write(s.recv(100))";
    let ask = |user: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(user).args(["python3", "-c", script]).arg(world.node.events());
        String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
    };
    assert!(ask(&["--clear-groups"]).starts_with("HTTP/1.1 200"), "as root");
    let other = ["--reuid=4242", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"];
    assert_eq!(ask(&other), "", "as another user, with the right to open the socket");
    assert_eq!(ask(&["--clear-groups"]).get(..12), Some("HTTP/1.1 200"), "root is still served");
}

#[test]
fn descriptors_that_are_no_namespace() {
    let world = World::new();
    let netns = world.make_pod("web", IP);
    let before = open_files(&world);
    let body = json!({"Netns": netns.path(), "PodName": "web", "PodNamespace": "default", "PodUID": "web",
                      "ContainerID": "c1", "Decide": true})
    .to_string();
    let request = format!("POST /cmdadd HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let send = |fds: &[RawFd]| {
        let mut stream = UnixStream::connect(world.node.events()).unwrap();
        let rights = [ControlMessage::ScmRights(fds)];
        sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(request.as_bytes())], &rights, MsgFlags::empty(), None)
            .unwrap();
        let mut answer = String::new();
        match stream.read_to_string(&mut answer) {
            Err(e) if e.kind() != ErrorKind::ConnectionReset => panic!("{e}"),
            _ => answer,
        }
    };
    let null = File::open("/dev/null").unwrap();
    let pids = File::open("/proc/self/ns/pid").unwrap();
    let right = File::open(netns.path()).unwrap();
    for (fds, expected) in [
        (vec![null.as_raw_fd()], "the descriptor that came with the request"),
        (vec![pids.as_raw_fd()], "the descriptor that came with the request"),
        (vec![right.as_raw_fd(); 2], "more than one descriptor came with the request"),
    ] {
        let answer = send(&fds);
        assert!(answer.starts_with("HTTP/1.1 500") && answer.contains(expected), "{answer}");
        assert!(!has_rules(&netns));
    }
    let answer = send(&[right.as_raw_fd()]);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("ambient"), "{answer}");
    world.del("web", "c1", &netns);
    eventually("no descriptor stays", || open_files(&world) <= before);
}

#[test]
fn plugins_hand_in_their_log_lines() {
    let world = World::new();
    let line = r#"{"level":"warn","time":"2026-01-02T03:04:05.678901Z","msg":"from the plugin","pod":"web"}"#;
    let socket = world.node.run().join("log.sock");
    for body in [json!([line]).to_string(), "no list".to_owned(), "[1,2]".to_owned()] {
        assert_eq!(http::request(&socket, "POST", "/log", &body).unwrap().0, 200);
    }
    eventually("printed", || {
        world.agent().log().lines().any(|l| l.contains("from the plugin") && l.contains("cni-plugin"))
    });
}

/// Descriptors that the agent has open.
pub(super) fn open_files(world: &World) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", world.agent().pid())).unwrap().count()
}
