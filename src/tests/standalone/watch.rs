//! Pods that come, change and go as files while the agent runs, and what verification finds.

use super::*;
use crate::support::netns::run_in;
use nix::unistd::getpid;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::symlink;

const IP: &str = "10.44.1.2";

impl World {
    /// Pod `web`, enrolled by the plugin.
    fn with_pod(flags: &[&'static str]) -> (Self, PodNetns) {
        let mut world = World::without_ztunnel(flags);
        world.start_ztunnel();
        let netns = world.make_pod("web", IP);
        world.add("web", "c1", &netns, IP);
        world.assert_enrolled("web", &netns);
        (world, netns)
    }

    fn rewrite(&self, metadata: Value) {
        self.node.write_pod("web.json", &pod_json("web", IP, metadata));
    }

    #[track_caller]
    fn assert_taken_out(&self, netns: &PodNetns) {
        eventually("taken out", || self.published().is_empty());
        self.assert_nothing_left("web", netns);
    }
}

#[test]
fn labels_of_a_running_pod() {
    let (world, netns) = World::with_pod(&[]);
    for _ in 0..3 {
        world.rewrite(json!({"labels": {}}));
        world.assert_taken_out(&netns);
        world.rewrite(json!({}));
        world.assert_enrolled("web", &netns);
    }
    // A file that is removed is the end of its pod, not a way out of the mesh.
    std::fs::remove_file(world.node.pods().join("web.json")).unwrap();
    world.assert_ended("web", &netns);
    assert_eq!(world.state("web"), "unknown");
}

#[test]
fn labels_of_a_namespace() {
    let (world, netns) = World::with_pod(&[]);
    let namespace = |labels: Value| {
        let object = json!({"kind": "Namespace", "metadata": {"name": "default", "labels": labels}});
        world.node.write_pod("namespace.yaml", &object.to_string());
    };
    namespace(json!({"istio.io/dataplane-mode": "ambient"}));
    world.rewrite(json!({"labels": {}}));
    world.assert_enrolled("web", &netns);
    namespace(json!({}));
    world.assert_taken_out(&netns);
    namespace(json!({"istio.io/dataplane-mode": "ambient"}));
    world.assert_enrolled("web", &netns);
    world.rewrite(json!({"labels": {"istio.io/dataplane-mode": "none"}}));
    world.assert_taken_out(&netns);
}

#[test]
fn a_pod_that_finished() {
    let (world, netns) = World::with_pod(&[]);
    let mut pod: Value = serde_json::from_str(&pod_json("web", IP, json!({}))).unwrap();
    pod["status"] = json!({"phase": "Succeeded"});
    world.node.write_pod("web.json", &pod.to_string());
    world.assert_ended("web", &netns);
}

#[test]
fn settings_follow_the_annotations() {
    let (world, netns) = World::with_pod(&[]);
    assert!(!rules(&netns).contains("15053"));
    world.rewrite(json!({"annotations": {"ambient.istio.io/dns-capture": "true"}}));
    eventually("DNS is captured", || rules(&netns).matches("15053").count() == 2);
    world.rewrite(json!({"annotations": {"ambient.istio.io/bypass-inbound-capture": "true"}}));
    eventually("an ingress", || !rules(&netns).contains("15053") && !rules(&netns).contains("15006"));
    world.rewrite(json!({}));
    eventually("as before", || is_right(&netns));
    world.assert_enrolled("web", &netns);
}

#[test]
fn a_half_written_file_is_not_a_deletion() {
    let (world, netns) = World::with_pod(&[]);
    let text = pod_json("web", IP, json!({}));
    let file = world.node.pods().join("web.json");
    let before = world.ztunnel().stats().events.len();
    for cut in [0, 1, text.len() / 3, text.len() - 1] {
        std::fs::write(&file, &text[..cut]).unwrap();
        // Seen once another file has been: both are read in one go.
        let other = format!("other-{cut}");
        std::thread::sleep(std::time::Duration::from_millis(120));
        world.node.write_pod("other.json", &pod_json(&other, "10.44.1.9", json!({"labels": {}})));
        eventually("the other file is read", || world.state(&other) == "none");
        assert_eq!(world.state("web"), "enrolled");
    }
    assert_eq!(world.ztunnel().stats().events.len(), before, "ztunnel heard of it");
    world.assert_enrolled("web", &netns);
}

#[test]
fn a_running_pod_is_found_by_its_processes() {
    let root = tempfile::tempdir().unwrap();
    let mut world = World { node: Node::new(), agent: None, ztunnel: None, flags: vec![] };
    world.node.host_root = root.path().to_owned();
    let netns = netns(IP);
    let process = root.path().join("proc/4711");
    std::fs::create_dir_all(process.join("ns")).unwrap();
    symlink(format!("/proc/{}/fd/{}", getpid(), netns.netns().as_fd().as_raw_fd()), process.join("ns/net")).unwrap();
    let uid = "2c48913c-b29f-11e7-9350-020968147796";
    let container = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961";
    std::fs::write(process.join("cgroup"), format!("0::/kubepods/burstable/pod{uid}/{container}\n")).unwrap();
    std::fs::write(process.join("stat"), format!("4711 (a) S {}400 0 0\n", "0 ".repeat(18))).unwrap();
    world.start_agent();
    let pod = pod_json(uid, IP, json!({"name": "web", "uid": uid}));
    world.node.write_pod("web.json", &pod);
    eventually("pending while there is no ztunnel", || world.published() == [(uid.to_owned(), "pending".to_owned())]);
    assert!(is_right(&netns));
    world.start_ztunnel();
    eventually("enrolled", || world.state("web") == "enrolled");
    eventually("published", || world.published() == [(uid.to_owned(), "enabled".to_owned())]);
}

#[test]
fn verification_repairs_what_was_changed() {
    let (world, netns) = World::with_pod(&["--verify-interval", "1s"]);
    run_in(netns.netns(), "iptables-nft", &["-t", "nat", "-F", "ISTIO_OUTPUT"]);
    eventually("repaired", || is_right(&netns));
    run_in(netns.netns(), "ip", &["rule", "del", "pref", "32764"]);
    run_in(netns.netns(), "iptables-nft", &["-t", "mangle", "-D", "PREROUTING", "-j", "ISTIO_PRERT"]);
    eventually("repaired", || is_right(&netns));
    world.assert_enrolled("web", &netns);
    let log = world.agent().log();
    let said = log.lines().filter(|line| line.contains("not in place") && !line.contains("it is over")).count();
    assert!((2..=3).contains(&said), "said once per change: {log}");
}

/// Somebody else's rules are neither moved nor removed, but people are told of those that come before ours.
#[test]
fn a_rule_put_before_ours_is_said_once() {
    for (backend, variant) in [(Backend::Nft, "nft"), (Backend::Legacy, "legacy")] {
        let mut world = World { node: Node::new(), agent: None, ztunnel: None, flags: vec![] };
        let source = format!("dir:{}", world.node.pods().display());
        let flags = ["--ambient-enablement-selector", SELECTOR, "--verify-interval", "200ms", "--pod-source", &source];
        world.agent = Some(world.node.start_agent_in(&[("FORCE_IPTABLES_BINARY", variant)], &flags));
        world.wait_for_agent();
        world.start_ztunnel();
        let netns = world.make_pod("web", IP);
        let nat = |args: &[&str]| {
            run_in(netns.netns(), &backend.program(Family::V4, ""), &[&["-w", "-t", "nat"], args].concat());
        };
        nat(&["-A", "OUTPUT", "-p", "udp", "-j", "ACCEPT"]);
        world.add("web", "c1", &netns, IP);
        world.assert_enrolled("web", &netns);
        let reason = || world.pod("web").unwrap().reason;
        assert_eq!(reason(), "rules are in place and ztunnel has it", "{variant}: what was there first stays first");

        nat(&["-I", "OUTPUT", "1", "-p", "tcp", "-j", "ACCEPT"]);
        let expected = "somebody put IPv4 rule 1 of chain OUTPUT of table nat before ours";
        eventually("it is seen", || reason().contains(expected));
        world.assert_enrolled("web", &netns);
        // Verified again and again meanwhile.
        nat(&["-A", "ISTIO_OUTPUT", "-j", "ACCEPT"]);
        eventually("repaired", || !rules(&netns).contains("-A ISTIO_OUTPUT -j ACCEPT\n"));
        eventually("still said", || reason().contains(expected));
        assert!(
            rules(&netns).contains("-A OUTPUT -p tcp -j ACCEPT\n-A OUTPUT -p udp -j ACCEPT\n-A OUTPUT -j ISTIO_OUTPUT")
        );
        nat(&["-D", "OUTPUT", "1"]);
        eventually("it is over", || reason() == "rules are in place and ztunnel has it");
        let log = world.agent().log();
        let said = log.lines().filter(|line| line.contains(expected) && !line.contains("it is over")).count();
        assert_eq!(said, 1, "{variant}: {log}");
    }
}

#[test]
fn a_ztunnel_that_comes_back_gets_every_pod() {
    let (mut world, netns) = World::with_pod(&[]);
    world.ztunnel = None;
    eventually("not acknowledged any more", || world.state("web") == "pending");
    assert_eq!(world.published(), [("web".to_owned(), "enabled".to_owned())], "peers must not fall back to plaintext");
    world.start_ztunnel();
    world.assert_enrolled("web", &netns);
    // A rolling restart: the new one takes over while the old one is still there.
    let options = standin::Options { socket: world.node.ztunnel(), ..Default::default() };
    let old = world.ztunnel.replace(Standin::start(options)).unwrap();
    eventually("the new one has its snapshot", || world.ztunnel().stats().ready);
    let second = world.make_pod("second", "10.44.1.3");
    world.add("second", "c2", &second, "10.44.1.3");
    world.assert_enrolled("second", &second);
    assert!(!old.stats().pods.contains_key("second"), "adds go to the newest only");
    world.del("web", "c1", &netns);
    eventually("deletes go to all", || old.stats().pods["web"].netns == 0);
    world.assert_ended("web", &netns);
}

#[test]
fn what_is_likely_a_mistake_is_said_once() {
    let node = Node::new();
    for file in ["a.json", "b.json"] {
        node.write_pod(file, &pod_json("web", IP, json!({})));
    }
    let agent = node.start_agent(&[]);
    node.wait_for_agent();
    for words in [
        "--ambient-enabled is set, and no --ambient-enablement-selector",
        "pod default/web is in a.json, which counts, and in b.json",
    ] {
        assert_eq!(agent.log().matches(words).count(), 1, "{words}");
    }
}
