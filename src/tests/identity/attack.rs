//! An unprivileged user who wants to be handed to ztunnel as a pod of the node: he was there first, his cgroup has the
//! pod's name, his network has the pod's address.

use super::{CONTAINER, DELEGATED, UNPRIVILEGED, USER};
use crate::standalone::{SELECTOR, is_right, netns};
use crate::standin::{self, Standin};
use crate::support::container::{Container, Process, V2};
use crate::support::eventually;
use crate::support::netns::run_in;
use crate::support::node::{Agent, Node};
use ferrule::node::view::PodStatus;
use serde_json::json;

const UID: &str = "2c48913c-b29f-11e7-9350-020968147796";
const IP: &str = "10.77.1.7";

/// All that he does himself, in the part of the hierarchy that systemd has given him. Only the ids of his user
/// namespace come from a program that may: he is root there, as in any rootless container.
fn attacker(container: &Container) -> Process<'_> {
    container.delegate(V2, DELEGATED, USER);
    let pod = container.cgroup(V2, &format!("{DELEGATED}/pod{UID}"));
    let inside = format!(
        "until [ $(id -u) = 0 ]; do sleep 0.01; done; ip link set lo up; ip address add {IP}/32 dev lo; exec sleep 100000"
    );
    let (setpriv, unshare) = UNPRIVILEGED.split_at(UNPRIVILEGED.find("unshare").unwrap());
    let script = format!(
        "exec {setpriv} sh -ec 'mkdir {0}; echo 0 >{0}/cgroup.procs; exec {unshare} sh -c \"$0\"' '{inside}'",
        pod.display()
    );
    let process = container.run(&[(V2, DELEGATED)], None, &script, &[]);
    let own = ferrule::sys::netns::Netns::own().unwrap().id();
    eventually("he has a network of his own", || process.netns().id() != own);
    process.map_users("0 4242 1\n1 100000 65535");
    process.wait_for("the attacker", "sleep");
    assert!(run_in(&process.netns(), "ip", &["address"]).contains(IP), "he has the pod's address");
    process
}

fn start_agent(node: &Node) -> Agent {
    let agent = node.start_agent(&["--ambient-enablement-selector", SELECTOR, "--verify-interval", "300ms"]);
    node.wait_for_agent();
    agent
}

fn status(node: &Node) -> Option<PodStatus> {
    node.status()?.pods.into_iter().find(|pod| pod.uid == UID)
}

#[test]
fn an_unprivileged_user_does_not_get_a_pods_identity() {
    let container = Container::new();
    let attacker = attacker(&container);
    let mut node = Node::new();
    node.host_root = container.root().to_owned();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "uid": UID, "namespace": "default",
                     "labels": {"istio.io/dataplane-mode": "ambient"}},
        "status": {"podIP": IP, "podIPs": [{"ip": IP}]},
    });
    node.write_pod("web.json", &pod.to_string());
    let agent = start_agent(&node);
    let ztunnel = Standin::start(standin::Options { socket: node.ztunnel(), ..Default::default() });
    let untouched = || {
        let rules = run_in(&attacker.netns(), "nft", &["list", "ruleset"]);
        assert!(!rules.to_lowercase().contains("istio"), "{rules}");
    };

    // As long as the pod has no process, nobody is the pod; and people read who would have liked to be.
    let why = format!("user@4242.service/pod{UID}, which is not where a kubelet puts a pod");
    eventually("the pod is not found", || status(&node).is_some_and(|pod| pod.reason.contains(&why)));
    let pod = status(&node).unwrap();
    assert_eq!((format!("{:?}", pod.state).to_lowercase().as_str(), pod.netns), ("lost", None));
    assert_eq!(pod.redirection, None);
    untouched();
    assert!(!ztunnel.stats().pods.contains_key(UID));

    let victim = netns(IP);
    let cgroup = format!("/kubepods/burstable/pod{UID}/{CONTAINER}");
    let _process = container.run(&[(V2, &cgroup)], Some(victim.path()), "exec sleep 100000", &[]);
    let enrolled = || {
        let pod = status(&node)?;
        (format!("{:?}", pod.state).to_lowercase() == "enrolled").then_some(pod)
    };
    eventually("the pod is enrolled", || enrolled().is_some());
    let inode = victim.netns().id().ino;
    assert_eq!(enrolled().unwrap().netns, Some(inode));
    assert_eq!(ztunnel.stats().pods[UID].netns, inode);
    assert!(is_right(&victim));
    untouched();
    let log = agent.log();
    let told = log.lines().filter(|line| line.contains(&why) && !line.contains("it is over")).count();
    assert_eq!(told, 2, "while it was lost, and when it was found:\n{log}");

    // The next agent finds it among the same processes.
    agent.kill();
    let agent = start_agent(&node);
    eventually("the pod is enrolled again", || enrolled().is_some_and(|pod| pod.netns == Some(inode)));
    // Verified meanwhile, more than once.
    eventually("it was looked for", || agent.log().contains("running pod found"));
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(enrolled().unwrap().netns, Some(inode));
    assert_eq!(ztunnel.stats().pods[UID].netns, inode);
    assert!(is_right(&victim));
    untouched();
    assert_eq!(agent.log().lines().filter(|line| line.contains(&why)).count(), 1, "told once:\n{}", agent.log());
}
