//! Connections that come, go, stall and storm; the socket; the end.

use super::*;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

#[test]
fn socket_and_directory() {
    let agent = Agent::start(LONG);
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(agent.socket().parent().unwrap()), 0o755);
    assert_eq!(mode(&agent.socket()), 0o600);
    assert!(agent.server.still_ours());
    let path = agent.socket();
    agent.server.stop();
    assert!(!path.exists(), "the socket is removed at the end");
}

#[test]
fn socket_taken_over_by_another_agent() {
    let agent = Agent::start(LONG);
    let (old, old_id) = agent.raw_ready();
    let (send, notices) = channel();
    let options = Options { socket: agent.socket(), timeout: LONG };
    let successor = Server::start(options, move |notice| drop(send.send(notice))).unwrap();
    assert!(!agent.server.still_ours());
    assert!(successor.still_ours());
    agent.serves(&old, old_id);
    let raw = Raw::connect(&agent);
    raw.send(HELLO);
    assert!(matches!(notices.recv_timeout(LONG), Ok(Notice::Connected(_))), "new connections are the successor's");
    let path = agent.socket();
    agent.server.stop();
    assert!(path.exists() && successor.still_ours(), "the successor's socket stays");
}

#[test]
fn a_peer_that_leaves_is_noticed_at_once() {
    let agent = Agent::start(LONG);
    let (idle, idle_id) = agent.raw_ready();
    let (asked, asked_id) = agent.raw_ready();
    let (waiting, waiting_id) = agent.raw();
    agent.server.send(asked_id, del("a"));
    assert_eq!(asked.uid(), "a");
    for (raw, id) in [(idle, idle_id), (asked, asked_id), (waiting, waiting_id)] {
        let begin = Instant::now();
        drop(raw);
        agent.disconnected(id);
        assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
        // What comes too late for a connection is no trouble.
        agent.server.send(id, del("b"));
        agent.server.snapshot(id, Vec::new());
    }
    agent.no_notice();
}

#[test]
fn connections_are_numbered_by_their_hello() {
    let agent = Agent::start(LONG);
    let first = Raw::connect(&agent);
    let (_second, second_id) = agent.raw();
    first.send(HELLO);
    assert!(agent.connected() > second_id, "the newest is the one that said hello last");
}

#[test]
fn a_stalled_ztunnel_with_a_full_queue_stalls_nobody() {
    let agent = Agent::start(LONG);
    let (good, good_id) = agent.raw_ready();
    let (stalled, id) = agent.raw_ready();
    agent.server.send(id, del("first"));
    assert_eq!(stalled.uid(), "first");
    let begin = Instant::now();
    for _ in 0..4096 {
        agent.server.send(id, del("more"));
    }
    assert!(begin.elapsed() < Duration::from_secs(1), "send never blocks: {:?}", begin.elapsed());
    agent.serves(&good, good_id);
    agent.server.send(id, del("one too many"));
    assert!(agent.disconnected(id).contains("too many requests"));
    agent.serves(&good, good_id);
}

#[test]
fn a_reconnect_storm_is_slowed_down_and_harms_nobody() {
    let agent = Agent::start(LONG);
    let (good, good_id) = agent.raw_ready();
    let end = AtomicBool::new(false);
    let socket = agent.socket();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Ordering::SeqCst) {
                // The backlog is full most of the time.
                if let Ok(c) = Connection::connect(&socket, SocketType::SeqPacket, MOMENT) {
                    let _ = send_with_fd(c.as_fd(), HELLO, None);
                }
            }
        });
        let begin = Instant::now();
        let (mut connected, mut slowest) = (0, Duration::ZERO);
        while begin.elapsed() < Duration::from_secs(2) {
            let asked = Instant::now();
            agent.server.send(good_id, del("probe"));
            assert_eq!(good.uid(), "probe");
            good.send(ACK);
            loop {
                match agent.notice() {
                    Notice::Answered { connection, .. } if connection == good_id => break,
                    Notice::Connected(_) => connected += 1,
                    _ => {}
                }
            }
            slowest = slowest.max(asked.elapsed());
            std::thread::sleep(Duration::from_millis(5));
        }
        end.store(true, Ordering::SeqCst);
        assert!((2..=11).contains(&connected), "{connected} accepts in two seconds, at most five in each");
        assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    });
}

#[test]
fn stops_within_a_second_whatever_the_peers_do() {
    let agent = Agent::start(LONG);
    let silent = Raw::connect(&agent);
    let (idle, _) = agent.raw_ready();
    let (stalled, id) = agent.raw_ready();
    let (waiting, _) = agent.raw();
    agent.server.send(id, del("a"));
    assert_eq!(stalled.uid(), "a");
    let begin = Instant::now();
    agent.server.stop();
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    for raw in [silent, idle, stalled, waiting] {
        raw.is_closed();
    }
    let ended = agent.notices.iter().filter(|n| matches!(n, Notice::Disconnected(..))).count();
    assert_eq!(ended, 3, "every connection that said hello is reported, and no thread holds the other end any more");
}
