//! What is sent, in which order, and what of the peer's packets is accepted.

use super::*;
use ferrule::error::Kind;
use std::sync::OnceLock;
use std::time::Instant;

#[test]
fn snapshot_first_each_request_acknowledged_before_the_next() {
    let agent = Agent::start(LONG);
    let (a, c) = (pod_netns(), pod_netns());
    let (raw, id) = agent.raw();
    agent.server.send(id, del("gone"));
    raw.nothing_comes();
    agent.server.snapshot(id, vec![add("a", &a), keep("b"), add("c", &c)]);
    agent.server.snapshot(id, vec![add("second", &a)]);

    for (uid, netns) in [("a", Some(&a)), ("b", None), ("c", Some(&c))] {
        let (payload, fd) = raw.request();
        match (&payload, fd, netns) {
            (Payload::Add(got), Some(fd), Some(netns)) => {
                assert_eq!(got.uid, uid);
                assert_eq!(got.workload_info.as_ref().unwrap(), &info(&format!("pod-{uid}")));
                assert_eq!(Netns::from_fd(fd).unwrap().id(), netns.id());
            }
            (Payload::Keep(got), None, None) => assert_eq!(got.uid, uid),
            other => panic!("for {uid}: {other:?}"),
        }
        raw.nothing_comes();
        agent.no_notice();
        raw.send(ACK);
        agent.acked(id, uid);
    }
    assert!(matches!(raw.request(), (Payload::SnapshotSent(_), None)));
    raw.nothing_comes();
    agent.no_notice();
    raw.send(ACK);
    agent.snapshot_done(id);
    assert_eq!(raw.uid(), "gone", "neither a second snapshot nor a second snapshot_sent");
    raw.send(ACK);
    agent.acked(id, "gone");
    raw.nothing_comes();
    agent.no_notice();
}

#[test]
fn requests_of_one_pod_keep_their_order() {
    let agent = Agent::start(LONG);
    let netns = pod_netns();
    let (raw, id) = agent.raw_ready();
    for _ in 0..50 {
        agent.server.send(id, add("a", &netns));
        agent.server.send(id, del("a"));
    }
    for _ in 0..50 {
        assert!(matches!(raw.request(), (Payload::Add(_), Some(_))));
        raw.send(ACK);
        assert!(matches!(raw.request(), (Payload::Del(_), None)));
        raw.send(ACK);
    }
}

#[test]
fn refusal_fails_one_request_and_not_the_connection() {
    let agent = Agent::start(LONG);
    let netns = pod_netns();
    let (raw, id) = agent.raw();
    agent.server.snapshot(id, vec![add("a", &netns), add("b", &netns)]);
    assert_eq!(raw.uid(), "a");
    raw.send(b"\x0a\x0c\x0a\x0aport taken");
    let (uid, result) = agent.answered(id);
    let error = result.unwrap_err();
    assert_eq!((uid.as_str(), error.kind(), error.to_string().as_str()), ("a", Kind::Refused, "port taken"));
    assert_eq!(raw.uid(), "b");
    raw.send(ACK);
    agent.acked(id, "b");
    assert_eq!(raw.uid(), "snapshot_sent");
    raw.send(ACK);
    agent.snapshot_done(id);
    agent.serves(&raw, id);
}

#[test]
fn what_cannot_be_sent_fails_alone() {
    let agent = Agent::start(LONG);
    let (raw, id) = agent.raw_ready();
    agent.server.send(id, del(&"u".repeat(2000)));
    agent.server.send(id, keep("late"));
    for _ in 0..2 {
        assert_eq!(agent.answered(id).1.unwrap_err().kind(), Kind::Invalid);
    }
    raw.nothing_comes();
    agent.serves(&raw, id);
}

/// The late acknowledgement must not be taken for the answer to the next request, so the connection ends.
#[test]
fn silence_ends_the_connection() {
    let agent = Agent::start(Duration::from_secs(1));
    let (good, good_id) = agent.raw_ready();
    let (raw, id) = agent.raw_ready();
    agent.server.send(id, del("a"));
    agent.server.send(id, del("b"));
    assert_eq!(raw.uid(), "a");
    let asked = Instant::now();
    agent.serves(&good, good_id);
    assert!(agent.disconnected(id).contains("no acknowledgement within"), "the reason is told");
    assert!(asked.elapsed() >= Duration::from_millis(900), "not before its time");
    raw.is_closed();
    agent.serves(&good, good_id);
}

#[test]
fn no_hello_no_connection() {
    let agent = Agent::start(Duration::from_secs(1));
    Raw::connect(&agent).is_closed();
    agent.no_notice();
    let (raw, id) = agent.raw_ready();
    agent.serves(&raw, id);
}

/// Every connection costs the accept interval, so each kind of packet is tried once, at the place where it matters.
#[test]
fn malformed_packets_end_their_connection_and_no_other() {
    let agent = Agent::start(LONG);
    let (good, good_id) = agent.raw_ready();
    let null = std::fs::File::open("/dev/null").unwrap();
    // An acknowledgement, and fields of a later schema: good in itself, also when it is cut at 1024 bytes.
    let oversized = [ACK, &b"\x10\x01".repeat(600)].concat();
    let packets: [(&str, &[u8], bool); 7] = [
        ("garbage", b"\xff\xff\xff", false),
        ("too long", &oversized, false),
        ("with a descriptor", ACK, true),
        ("cut in the tag's length", b"\x0a", false),
        ("cut in the text", b"\x0a\x06\x0a\x04ab", false),
        ("without an answer", b"\x12\x00", false),
        ("empty", b"", false),
    ];
    for (what, packet, with_fd) in packets {
        let (raw, id) = agent.raw();
        agent.server.snapshot(id, vec![keep("a")]);
        assert_eq!(raw.uid(), "a", "{what}");
        raw.send_with(packet, with_fd.then_some(null.as_fd()));
        agent.disconnected(id);
        raw.is_closed();
    }
    for (what, packet, with_fd) in [("garbage", &b"\xff\xff\xff"[..], false), ("with a descriptor", HELLO, true)] {
        let raw = Raw::connect(&agent);
        raw.send_with(packet, with_fd.then_some(null.as_fd()));
        raw.is_closed();
        if let Ok(notice) = agent.notices.try_recv() {
            panic!("hello {what}: {notice:?}");
        }
    }
    agent.serves(&good, good_id);
}

#[test]
fn packets_nobody_asked_for_end_the_connection() {
    let agent = Agent::start(LONG);
    let (good, good_id) = agent.raw_ready();

    let (idle, id) = agent.raw_ready();
    idle.send(ACK);
    agent.disconnected(id);
    idle.is_closed();

    let (before_snapshot, id) = agent.raw();
    before_snapshot.send(ACK);
    agent.disconnected(id);
    before_snapshot.is_closed();

    agent.serves(&good, good_id);
}

#[test]
fn later_fields_and_versions_are_tolerated() {
    let agent = Agent::start(LONG);
    let raw = Raw::connect(&agent);
    raw.send(b"\x08\x02\x12\x03new");
    let id = agent.connected();
    agent.server.snapshot(id, vec![keep("a")]);
    assert_eq!(raw.uid(), "a");
    raw.send(b"\x0a\x05\x12\x03abc\x50\x01");
    agent.acked(id, "a");
}

/// The surplus answer is there before the next request goes out.
#[test]
fn an_answer_too_many_is_not_taken_for_the_next() {
    let dir = TempDir::new().unwrap();
    let socket = dir.path().join("zds");
    let peer: Arc<OnceLock<Raw>> = Arc::default();
    let (send, notices) = channel();
    let late = peer.clone();
    let notify = move |notice| {
        if matches!(notice, Notice::Answered { .. }) {
            late.get().unwrap().send(ACK);
        }
        drop(send.send(notice));
    };
    let server = Server::start(Options { socket: socket.clone(), timeout: LONG }, notify).unwrap();
    let raw = peer.get_or_init(|| Raw(Connection::connect(&socket, SocketType::SeqPacket, LONG).unwrap()));
    raw.send(HELLO);
    let Ok(Notice::Connected(id)) = notices.recv_timeout(LONG) else { panic!("not connected") };
    server.snapshot(id, vec![keep("a"), keep("b")]);
    assert_eq!(raw.uid(), "a");
    raw.send(ACK);
    assert!(matches!(notices.recv_timeout(LONG), Ok(Notice::Answered { .. })));
    match notices.recv_timeout(LONG) {
        Ok(Notice::Disconnected(_, why)) => assert!(why.contains("nobody asked for"), "{why}"),
        other => panic!("{other:?}"),
    }
    raw.is_closed();
}

/// A round trip costs tens of microseconds, so a snapshot is never what a restart waits for.
#[test]
fn a_thousand_pods_take_no_time() {
    let agent = Agent::start(LONG);
    let netns = pod_netns();
    let (raw, id) = agent.raw();
    let items = (0..1000).map(|i| add(&format!("uid-{i}"), &netns)).collect();
    let begin = Instant::now();
    agent.server.snapshot(id, items);
    while raw.uid() != "snapshot_sent" {
        raw.send(ACK);
    }
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
}
