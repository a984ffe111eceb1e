//! The host's side as the agent keeps it, and what verification finds and repairs.

use super::*;
use crate::support::netns::run_in;
use std::collections::BTreeMap;

const IP: &str = "10.46.1.2";
const QUICK: [&str; 2] = ["--verify-interval", "1s"];

impl World {
    fn host_rules(&self) -> String {
        run_in(self.node.host.netns(), "iptables-save", &["-t", "nat"])
    }

    /// Addresses in the IPv4 probe set, and the uids they are entered for.
    fn probe_set(&self) -> BTreeMap<String, String> {
        let text = run_in(self.node.host.netns(), "ipset", &["save", "istio-inpod-probes-v4"]);
        let entries = text.lines().filter_map(|line| line.strip_prefix("add istio-inpod-probes-v4 "));
        let entries = entries.filter_map(|entry| entry.split_once(" comment "));
        entries.map(|(ip, uid)| (ip.to_owned(), uid.trim_matches('"').to_owned())).collect()
    }

    fn host_is_right(&self) -> bool {
        let rules = self.host_rules();
        rules.contains("-A POSTROUTING -j ISTIO_POSTRT") && rules.contains("--to-source 169.254.7.127")
    }
}

#[test]
fn addresses_come_and_go_with_the_pods() {
    let world = World::new();
    eventually("the host's rules", || world.host_is_right());
    let netns = world.make_pod("mesh", "web", IP);
    world.add("mesh", "web", &netns, IP);
    let uid = world.uid("mesh", "web");
    assert_eq!(world.probe_set(), BTreeMap::from([(IP.to_owned(), uid.clone())]), "before the ADD is answered");
    // Another pod has the address already when the old one goes.
    run_in(world.node.host.netns(), "ipset", &["del", "istio-inpod-probes-v4", IP]);
    run_in(world.node.host.netns(), "ipset", &["add", "istio-inpod-probes-v4", IP, "comment", "another"]);
    world.server.delete(Kind::Pods, "mesh", "web");
    eventually("forgotten", || world.state("web") == "unknown");
    assert_eq!(world.probe_set(), BTreeMap::from([(IP.to_owned(), "another".to_owned())]));
}

#[test]
fn whatever_is_broken_is_repaired_within_an_interval_and_counted() {
    let root = tempfile::tempdir().unwrap();
    let mut world = World::without_agent(&QUICK);
    world.node.host_root = root.path().to_owned();
    world.start_agent();
    world.start_ztunnel();
    let flushed = world.make_pod("mesh", "flushed", IP);
    let replaced = world.make_pod("mesh", "replaced", "10.46.1.3");
    put_process(root.path(), 11, &world.uid("mesh", "replaced"), &replaced);
    for (name, netns, ip) in [("flushed", &flushed, IP), ("replaced", &replaced, "10.46.1.3")] {
        world.add("mesh", name, netns, ip);
        world.assert_enrolled("mesh", name, netns);
    }
    let host = world.node.host.netns();
    run_in(flushed.netns(), "iptables-nft", &["-t", "nat", "-F"]);
    run_in(host, "iptables-nft", &["-t", "nat", "-F"]);
    run_in(host, "ipset", &["flush"]);
    let second = netns("10.46.1.3");
    std::fs::remove_dir_all(root.path().join("proc/11")).unwrap();
    put_process(root.path(), 12, &world.uid("mesh", "replaced"), &second);
    eventually("rules in the pod", || is_right(&flushed));
    eventually("rules in the new namespace", || is_right(&second));
    eventually("the host's rules", || world.host_is_right());
    eventually("the probe set", || world.probe_set().len() == 2);
    world.assert_enrolled("mesh", "replaced", &second);
    eventually("nothing is left in the old one", || !has_rules(&replaced));
    let metrics = world.metrics();
    for kind in ["rules", "netns", "host"] {
        let line = format!("ferrule_verification_repairs_total{{kind=\"{kind}\"}} ");
        assert!(metrics.contains(&line), "{kind}: {metrics}");
    }
    assert_eq!(world.annotation("mesh", "flushed").as_deref(), Some("enabled"), "through all of it");
}

#[test]
fn after_a_reboot_every_pod_is_right_once_its_address_is_known() {
    let root = tempfile::tempdir().unwrap();
    let mut world = World::without_agent(&QUICK);
    world.node.host_root = root.path().to_owned();
    // The run directory is empty, the annotation stays, the address in the status is that of before.
    let netns = netns(IP);
    world.server.put_pod("mesh", "web", NODE, json!({}), &["10.46.9.9"]);
    let annotated = json!({ "metadata": { "annotations": { ANNOTATION: "enabled" } } });
    world.server.merge(Kind::Pods, "mesh", "web", &annotated);
    put_process(root.path(), 11, &world.uid("mesh", "web"), &netns);
    world.start_agent();
    world.start_ztunnel();
    eventually("lost", || world.state("web") == "lost");
    eventually("an Event", || !world.server.events().is_empty());
    let event = &world.server.events()[0];
    assert_eq!((&event["type"], &event["reason"]), (&json!("Warning"), &json!("RedirectionFailed")));
    assert_eq!(event["involvedObject"]["uid"], json!(world.uid("mesh", "web")));
    assert!(event["message"].as_str().unwrap().starts_with("lost: "), "{event}");
    eventually("counted", || world.metrics().contains("ferrule_enrolments{state=\"lost\"} 1\n"));
    assert_eq!(world.annotation("mesh", "web").as_deref(), Some("enabled"));
    assert!(!has_rules(&netns));
    world.server.merge(Kind::Pods, "mesh", "web", &json!({"status": {"podIP": IP, "podIPs": [{"ip": IP}]}}));
    world.assert_enrolled("mesh", "web", &netns);
    assert_eq!(world.probe_set(), BTreeMap::from([(IP.to_owned(), world.uid("mesh", "web"))]));
    eventually("counted", || world.metrics().contains("ferrule_enrolments{state=\"enrolled\"} 1\n"));
}

#[test]
fn events_are_given_up_when_they_are_forbidden() {
    let mut world = World::without_agent(&QUICK);
    world.server.misbehave("create events", None, crate::apiserver::Fault::Answer(403, None));
    for name in ["a", "b"] {
        world.server.put_pod("mesh", name, NODE, json!({}), &["10.46.9.9"]);
        let annotated = json!({ "metadata": { "annotations": { ANNOTATION: "enabled" } } });
        world.server.merge(Kind::Pods, "mesh", name, &annotated);
    }
    world.start_agent();
    eventually("lost", || world.state("a") == "lost" && world.state("b") == "lost");
    let said = || world.log().lines().filter(|line| line.contains("Events on pods are off")).count();
    eventually("said", || said() == 1);
    assert_eq!(world.server.count("POST "), 1);
}
