//! What stands between an enrolled pod and the mesh, and is not the agent's to repair: people are told by an Event and in
//! the status, and when it is over the status says so.

use super::*;

const IP: &str = "10.46.8.2";

fn enrolled() -> (World, PodNetns) {
    World::enrolled(&["--verify-interval", "1s"], IP)
}

fn event(world: &World, reason: &str) -> Option<String> {
    let event = world.server.events().into_iter().find(|event| event["reason"] == reason);
    event.and_then(|event| event["message"].as_str().map(str::to_owned))
}

#[test]
fn a_base_chain_of_the_same_priority_that_comes_later() {
    let (world, netns) = enrolled();
    // The first look has seen what was there.
    eventually("looked at", || world.pod("web").is_some_and(|pod| !pod.preceded && pod.seconds >= 3));
    run_in(netns.netns(), "nft", &["add table inet theirs"]);
    run_in(netns.netns(), "nft", &["add chain inet theirs c { type nat hook output priority -100; }"]);
    run_in(netns.netns(), "nft", &["add rule inet theirs c tcp dport 80 accept"]);
    eventually("told", || event(&world, "RedirectionOvertaken").is_some());
    let message = event(&world, "RedirectionOvertaken").unwrap();
    assert!(message.contains("base chain c of nf_tables' table inet theirs"), "{message}");
    eventually("in the status", || world.pod("web").is_some_and(|pod| pod.preceded));
    run_in(netns.netns(), "nft", &["delete table inet theirs"]);
    eventually("over", || world.pod("web").is_some_and(|pod| !pod.preceded));
}

#[test]
fn a_ztunnel_that_does_not_listen() {
    let (world, netns) = enrolled();
    eventually("told", || {
        run_in(netns.netns(), "ss", &["-HKtl", "sport", "=", "15008"]);
        event(&world, "RedirectionUnheard").is_some()
    });
    let message = event(&world, "RedirectionUnheard").unwrap();
    assert_eq!(message, "ztunnel has acknowledged the pod and does not listen in it (port 15008)");
    assert!(world.pod("web").is_some_and(|pod| pod.unheard && pod.reason.ends_with(&message)));
    let repaired = "ferrule_verification_repairs_total{kind=\"ztunnel\"} ";
    assert!(world.metrics().lines().any(|line| line.starts_with(repaired) && !line.ends_with(" 0")));
}
