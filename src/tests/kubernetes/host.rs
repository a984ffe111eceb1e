//! The host's side as the agent keeps it, and what verification finds and repairs.

use super::*;

const IP: &str = "10.46.1.2";
const QUICK: [&str; 2] = ["--verify-interval", "1s"];

impl World {
    fn host_rules(&self) -> String {
        run_in(self.node.host.netns(), "iptables-save", &["-t", "nat"])
    }

    /// What verification has repaired, by kind.
    fn repairs(&self) -> BTreeMap<String, u64> {
        let metrics = self.metrics();
        let lines = metrics.lines().filter_map(|line| line.strip_prefix("ferrule_verification_repairs_total{kind=\""));
        let counts = lines.filter_map(|line| line.split_once("\"} "));
        counts.map(|(kind, count)| (kind.to_owned(), count.parse().unwrap())).collect()
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
    let unrouted = world.make_pod("mesh", "unrouted", "10.46.1.4");
    let unruled = world.make_pod("mesh", "unruled", "10.46.1.5");
    put_process(root.path(), 11, &world.uid("mesh", "replaced"), &replaced);
    let pods = [
        ("flushed", &flushed, IP),
        ("replaced", &replaced, "10.46.1.3"),
        ("unrouted", &unrouted, "10.46.1.4"),
        ("unruled", &unruled, "10.46.1.5"),
    ];
    for (name, netns, ip) in pods {
        world.add("mesh", name, netns, ip);
        world.assert_enrolled("mesh", name, netns);
    }
    let host = world.node.host.netns();
    assert_eq!(world.repairs(), BTreeMap::new());
    run_in(flushed.netns(), "iptables-nft", &["-t", "nat", "-F"]);
    run_in(unruled.netns(), "iptables-nft", &["-t", "nat", "-D", "ISTIO_OUTPUT", "1"]);
    run_in(unrouted.netns(), "ip", &["rule", "del", "pref", "32764"]);
    eventually("a rule and a route", || is_right(&unruled) && is_right(&unrouted));
    run_in(unrouted.netns(), "ip", &["route", "flush", "table", "100"]);
    run_in(host, "iptables-nft", &["-t", "nat", "-F"]);
    run_in(host, "ipset", &["flush"]);
    let second_netns = netns("10.46.1.3");
    std::fs::remove_dir_all(root.path().join("proc/11")).unwrap();
    put_process(root.path(), 12, &world.uid("mesh", "replaced"), &second_netns);
    eventually("rules in the pod", || is_right(&flushed));
    eventually("rules in the new namespace", || is_right(&second_netns));
    eventually("the host's rules", || world.host_is_right());
    eventually("the probe set", || world.probe_set().len() == 4);
    let routed = || run_in(unrouted.netns(), "ip", &["route", "show", "table", "100"]).contains("local default");
    eventually("the route", routed);
    world.assert_enrolled("mesh", "replaced", &second_netns);
    let repairs = world.repairs();
    // The host's rules and sets are looked at together.
    let at_least = [("rules", 2), ("routes", 2), ("netns", 1), ("host", 1)];
    assert!(at_least.iter().all(|(kind, times)| repairs.get(*kind).is_some_and(|t| t >= times)), "{repairs:?}");
    assert_eq!(repairs.get("ztunnel"), None);
    // A new ztunnel comes before the old one goes, and that one comes back after all.
    let options = standin::Options { socket: world.node.ztunnel(), ..Default::default() };
    let second = Standin::start(options);
    eventually("it has its snapshot", || second.stats().ready);
    world.start_ztunnel();
    drop(second);
    for (name, netns, _) in pods.into_iter().filter(|(name, ..)| *name != "replaced") {
        world.assert_enrolled("mesh", name, netns);
        assert_eq!(world.annotation("mesh", name).as_deref(), Some("enabled"), "through all of it");
    }
    world.assert_enrolled("mesh", "replaced", &second_netns);
    assert!(world.repairs()["ztunnel"] >= 8, "four pods, told to two ztunnels: {:?}", world.repairs());
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

#[test]
fn rules_of_other_settings_stay_when_nobody_remembers_them_and_nobody_asks() {
    let root = tempfile::tempdir().unwrap();
    let mut world = World::without_agent(&["--ambient-dns-capture", "--verify-interval", "1s"]);
    world.node.host_root = root.path().to_owned();
    world.start_agent();
    world.start_ztunnel();
    let netns = world.make_pod("mesh", "web", IP);
    put_process(root.path(), 11, &world.uid("mesh", "web"), &netns);
    world.add("mesh", "web", &netns, IP);
    eventually("annotated", || world.annotation("mesh", "web").as_deref() == Some("enabled"));
    let before = rules(&netns);
    assert!(before.contains("--to-ports 15053"), "{before}");
    world.kill_agent();
    std::fs::remove_dir_all(world.node.run().join("netns")).unwrap();
    world.flags = QUICK.to_vec();
    world.start_agent();
    eventually("enrolled", || world.state("web") == "enrolled");
    assert_eq!(rules(&netns), before);
    // They are what it is compared with.
    run_in(netns.netns(), "iptables-nft", &["-t", "nat", "-F"]);
    eventually("repaired", || rules(&netns) == before);
    world.kill_agent();
    world.flags = [&QUICK[..], &["--ambient-reconcile-pod-rules-on-startup"]].concat();
    world.start_agent();
    eventually("brought to the new settings", || is_right(&netns));
    world.assert_enrolled("mesh", "web", &netns);
}
