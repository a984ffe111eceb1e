//! What is enrolled and yet carries no traffic: ztunnel's listeners are gone from the pod though it is connected, or the
//! pod's `lo` is down.

use super::*;
use crate::support::netns::run_in;

const IP: &str = "10.44.0.2";

fn enrolled() -> (World, PodNetns) {
    let mut world = World::without_ztunnel(&["--verify-interval", "1s"]);
    world.start_ztunnel();
    let netns = world.make_pod("web", IP);
    world.add("web", "c1", &netns, IP);
    world.assert_enrolled("web", &netns);
    (world, netns)
}

/// Closes listening sockets under whoever has them.
fn close(netns: &PodNetns, port: &str) {
    run_in(netns.netns(), "ss", &["-HKtl", "sport", "=", port]);
}

/// The ports of ztunnel on which somebody listens.
fn listening(netns: &PodNetns) -> Vec<u16> {
    let text = run_in(netns.netns(), "ss", &["-Htln"]);
    [15001, 15006, 15008].into_iter().filter(|port| text.contains(&format!(":{port} "))).collect()
}

#[test]
fn listeners_that_are_gone_come_back() {
    for gone in [&["15001", "15006", "15008"][..], &["15008"], &["15006", "15001"]] {
        let (world, netns) = enrolled();
        assert_eq!(listening(&netns), [15001, 15006, 15008]);
        gone.iter().for_each(|port| close(&netns, port));
        assert_eq!(listening(&netns).len(), 3 - gone.len());
        eventually("told anew", || world.agent().log().contains("it is told of it anew"));
        eventually("listens again", || listening(&netns) == [15001, 15006, 15008]);
        eventually("enrolled", || world.state("web") == "enrolled");
        assert!(!world.pod("web").unwrap().unheard);
        let log = world.agent().log();
        assert!(log.contains("does not listen in it (port ") && !log.contains("though it was told"), "{log}");
    }
}

#[test]
fn a_ztunnel_that_does_not_listen_though_told_anew_is_told_to_people() {
    let (mut world, netns) = enrolled();
    let close_all = || ["15001", "15006"].iter().for_each(|port| close(&netns, port));
    eventually("told", || {
        close_all();
        world.pod("web").is_some_and(|pod| pod.unheard)
    });
    let pod = world.pod("web").unwrap();
    assert!(
        pod.reason.ends_with("but ztunnel has acknowledged the pod and does not listen in it (port 15001, 15006)"),
        "{}",
        pod.reason
    );
    assert_eq!(world.state("web"), "enrolled");
    world.ztunnel = None;
    world.start_ztunnel();
    eventually("listens again", || listening(&netns) == [15001, 15006, 15008]);
    eventually("over", || world.pod("web").is_some_and(|pod| !pod.unheard));
    eventually("told", || {
        world.agent().log().contains("it is over: ztunnel has acknowledged the pod and does not listen")
    });
}

#[test]
fn a_loopback_that_is_down_is_brought_up() {
    let (world, netns) = enrolled();
    for _ in 0..2 {
        let told = world.agent().log().matches("lo is down").count();
        run_in(netns.netns(), "ip", &["link", "set", "lo", "down"]);
        eventually("up again", || run_in(netns.netns(), "ip", &["link", "show", "lo"]).contains("LOOPBACK,UP"));
        eventually("told", || world.agent().log().matches("lo is down").count() > told);
        eventually("enrolled", || world.state("web") == "enrolled");
        world.assert_enrolled("web", &netns);
    }
}
