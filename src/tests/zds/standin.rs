//! The server and the ztunnel stand-in, and the stand-in against a server that does what ours must never do.

use super::*;
use crate::standin::{Approach, Event, Fault, On, Standin};

fn standin(agent: &Agent, faults: Vec<(On, Fault)>) -> Standin {
    let options = crate::standin::Options { socket: agent.socket(), faults, ..Default::default() };
    Standin::start(options)
}

/// Without connects and disconnects: what was asked of it.
fn requests(standin: &Standin) -> Vec<String> {
    let name = |event| match event {
        Event::Add { uid, .. } => Some(format!("add {uid}")),
        Event::Keep { uid } => Some(format!("keep {uid}")),
        Event::Del { uid } => Some(format!("del {uid}")),
        Event::SnapshotSent => Some("snapshot_sent".into()),
        _ => None,
    };
    standin.stats().events.into_iter().filter_map(name).collect()
}

#[test]
fn pods_are_served_and_let_go() {
    let agent = Agent::start(LONG);
    let (a, b) = (pod_netns(), pod_netns());
    let standin = standin(&agent, Vec::new());
    let id = agent.connected();
    agent.server.snapshot(id, vec![add("a", &a), keep("k")]);
    agent.acked(id, "a");
    agent.acked(id, "k");
    agent.snapshot_done(id);
    assert!(standin.stats().ready);
    agent.server.send(id, add("b", &b));
    agent.acked(id, "b");
    let pods = standin.stats().pods;
    assert_eq!((pods["a"].netns, pods["b"].netns), (a.id().ino, b.id().ino));
    assert_eq!((pods["a"].namespace.as_str(), pods["a"].name.as_str()), ("shop", "pod-a"));
    let listening = |netns: &Netns| {
        let text = netns.enter(|| std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap()).unwrap();
        [15001_u16, 15006, 15008].iter().all(|port| text.contains(&format!("00000000:{port:04X} 00000000:0000 0A")))
    };
    assert!(listening(&a) && listening(&b));

    agent.server.send(id, del("a"));
    agent.acked(id, "a");
    assert!(!listening(&a), "closed before the acknowledgement");
    // The same namespace again: nothing happens. A new one: the proxy moves.
    agent.server.send(id, add("b", &b));
    agent.acked(id, "b");
    assert!(listening(&b));
    agent.server.send(id, add("b", &a));
    agent.acked(id, "b");
    assert!(listening(&a) && !listening(&b));
    let expected = ["add a", "keep k", "snapshot_sent", "add b", "del a", "add b", "add b"];
    assert_eq!(requests(&standin), expected);
}

#[test]
fn proxies_outlive_the_agent_and_the_next_snapshot_prunes_them() {
    let agent = Agent::start(LONG);
    let (a, b, c) = (pod_netns(), pod_netns(), pod_netns());
    let standin = standin(&agent, Vec::new());
    let id = agent.connected();
    agent.server.snapshot(id, vec![add("a", &a), add("b", &b), add("c", &c)]);
    for uid in ["a", "b", "c"] {
        agent.acked(id, uid);
    }
    agent.snapshot_done(id);
    let Agent { server, dir, .. } = agent;
    server.stop();
    eventually("the stand-in sees the agent go", || !standin.stats().connected);
    let served = || -> Vec<String> {
        standin.stats().pods.into_iter().filter(|(_, pod)| pod.netns != 0).map(|(uid, _)| uid).collect()
    };
    assert_eq!(served(), ["a", "b", "c"]);

    let agent = Agent::start_in(dir, LONG);
    let id = agent.connected();
    assert_eq!(served(), ["a", "b", "c"]);
    agent.server.snapshot(id, vec![add("a", &a), keep("c")]);
    agent.acked(id, "a");
    agent.acked(id, "c");
    agent.snapshot_done(id);
    assert_eq!(served(), ["a", "c"]);
}

#[test]
fn a_pod_whose_proxy_cannot_start_is_refused_alone() {
    let agent = Agent::start(LONG);
    let _standin = standin(&agent, vec![(On::Uid("told".into()), Fault::Nack("told so".into()))]);
    let id = agent.connected();
    let loopback_down = Arc::new(Netns::scratch().unwrap());
    let fine = pod_netns();
    agent.server.snapshot(id, vec![add("down", &loopback_down), add("told", &fine), add("fine", &fine)]);
    assert!(agent.answered(id).1.unwrap_err().to_string().starts_with("failure to start proxy"));
    assert_eq!(agent.answered(id).1.unwrap_err().to_string(), "told so");
    agent.acked(id, "fine");
    agent.snapshot_done(id);
}

/// After each fault ztunnel comes back and gets a whole new snapshot.
#[test]
fn faults_of_all_kinds_end_in_a_new_connection() {
    for fault in [
        Fault::NoAck,
        Fault::LateAck(Duration::from_millis(1500)),
        Fault::Close,
        Fault::Garbage,
        Fault::Oversized,
        Fault::Descriptor,
        Fault::TwoAcks,
    ] {
        let agent = Agent::start(Duration::from_secs(1));
        let netns = pod_netns();
        let standin = standin(&agent, vec![(On::Nth(3), fault.clone())]);
        let id = agent.connected();
        agent.server.snapshot(id, Vec::new());
        agent.snapshot_done(id);
        agent.server.send(id, add("a", &netns));
        agent.acked(id, "a");
        agent.server.send(id, del("a"));
        let next = loop {
            match agent.notice() {
                Notice::Connected(next) => break next,
                Notice::Answered { result: Ok(()), .. } => {
                    assert_eq!(fault, Fault::TwoAcks, "a fault was acknowledged")
                }
                Notice::Disconnected(of, _) => assert_eq!(of, id, "{fault:?}"),
                other => panic!("{fault:?}: {other:?}"),
            }
        };
        agent.server.snapshot(next, vec![add("a", &netns)]);
        agent.acked(next, "a");
        agent.snapshot_done(next);
        eventually("the stand-in is ready again", || standin.stats().ready);
    }
}

#[test]
fn strange_approaches_get_nowhere() {
    for approach in [Approach::Silent, Approach::Garbage, Approach::Storm] {
        let agent = Agent::start(Duration::from_secs(1));
        let options = crate::standin::Options { socket: agent.socket(), approach, ..Default::default() };
        let standin = Standin::start(options);
        let disconnects = || standin.stats().events.iter().filter(|e| matches!(e, Event::Disconnected(_))).count();
        eventually("it was thrown out twice", || disconnects() >= 2);
        agent.no_notice();
    }
}

/// What the real ztunnel exits on: our server cannot be made to do it, so a raw one does.
#[test]
fn the_standin_exits_where_ztunnel_does() {
    let netns = pod_netns();
    let sent = b"\x1a\x00";
    type Packet = (&'static [u8], bool);
    let cases: [(&str, Vec<Packet>); 3] = [
        ("received already", vec![(sent, false), (sent, false)]),
        ("keep received after snapshot", vec![(sent, false), (b"\x2a\x03\x0a\x01k", false)]),
        ("workload_info is required", vec![(b"\x0a\x03\x0a\x01a", true)]),
    ];
    for (reason, packets) in cases {
        let dir = TempDir::new().unwrap();
        let socket = dir.path().join("zds");
        let listener = ferrule::sys::unix::Listener::bind(&socket, SocketType::SeqPacket).unwrap();
        let standin = Standin::start(crate::standin::Options { socket, ..Default::default() });
        let peer = Raw(listener.accept(LONG).unwrap().unwrap());
        let mut buffer = [0; 1024];
        assert_eq!(recv_with_fds(peer.0.as_fd(), &mut buffer).unwrap().len, HELLO.len());
        for (packet, with_fd) in packets {
            peer.send_with(packet, with_fd.then_some(netns.as_fd()));
            assert!(recv_with_fds(peer.0.as_fd(), &mut buffer).unwrap().len > 0);
        }
        eventually(
            reason,
            || matches!(standin.stats().events.last(), Some(Event::Exited(why)) if why.contains(reason)),
        );
    }
}
