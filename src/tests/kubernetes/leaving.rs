//! Pods that leave the mesh with connections: whoever waits for an answer is told that there will be none.

use super::rollover::{Call, Inherited, POD_RULES};
use super::*;
use crate::standin::{Fault, On};
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Two pods, served by a ztunnel and by us.
fn served() -> Inherited {
    let mut node = Inherited::new(POD_RULES, &[]);
    node.served_by_an_agent_that_goes();
    node.world.start_agent();
    for name in ["client", "server"] {
        eventually("enrolled", || node.world.state(name) == "enrolled");
    }
    node
}

/// How long after this a client that waits learns that its connection has ended.
fn end_after(node: &Inherited, leave: impl FnOnce(&World)) -> Duration {
    let mut call = Call::new(&node.pods);
    call.lives();
    leave(&node.world);
    let began = Instant::now();
    let ended = match call.0.read(&mut [0; 1]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(e) => matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted),
    };
    assert!(ended, "the client still waits after {:?}", began.elapsed());
    began.elapsed()
}

fn mode(value: Value) -> Value {
    json!({ "metadata": { "labels": { "istio.io/dataplane-mode": value } } })
}

/// A pod that leaves, and what is done for that.
type Leave = (&'static str, fn(&World));

#[test]
fn a_client_that_waits_is_told_when_a_pod_leaves() {
    // A pod that leaves with its client, one with its server, and all of a namespace at once.
    let leaves: [Leave; 3] = [
        ("client", |world| world.server.merge(Kind::Pods, "mesh", "client", &mode(json!("none")))),
        ("server", |world| world.server.merge(Kind::Pods, "mesh", "server", &mode(json!("none")))),
        ("client", |world| world.server.merge(Kind::Namespaces, "", "mesh", &mode(Value::Null))),
    ];
    for (number, (name, leave)) in leaves.into_iter().enumerate() {
        let node = served();
        let took = end_after(&node, leave);
        assert!(took < Duration::from_secs(1), "case {number}: {took:?}");
        eventually("out", || node.world.state(name) == "none");
        let pod = &node.pods[usize::from(name == "server")];
        assert!(!has_rules(pod), "{}", rules(pod));
    }
}

/// Nobody who connects meanwhile waits: ztunnel's ports are closed already, and then the rules are gone.
#[test]
fn a_connection_made_meanwhile_is_refused_or_made_and_does_not_hang() {
    let node = served();
    node.world.server.merge(Kind::Pods, "mesh", "client", &mode(json!("none")));
    let to = SocketAddr::from(([10, 51, 1, 3], 9));
    let until = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < until {
        let began = Instant::now();
        let connected = node.pods[0].enter(|| TcpStream::connect_timeout(&to, Duration::from_secs(2)));
        let hung = matches!(&connected, Err(e) if e.kind() == ErrorKind::TimedOut);
        assert!(!hung && began.elapsed() < Duration::from_millis(900), "{connected:?} after {:?}", began.elapsed());
    }
    eventually("out", || node.world.state("client") == "none");
}

/// The rules of a pod must not stay for the sake of a ztunnel that says nothing: the pod would be cut off.
#[test]
fn a_ztunnel_that_does_not_answer_holds_nothing_up() {
    let node = served();

    node.world.ztunnel().set_faults(vec![(On::All, Fault::NoAck)]);
    node.world.server.merge(Kind::Pods, "mesh", "client", &mode(json!("none")));
    let began = Instant::now();
    eventually("out", || node.world.state("client") == "none" && !has_rules(&node.pods[0]));
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}
