//! Enrolling and removing through the plugin, and everything that can go wrong half way.

use super::*;
use crate::standin::{Fault, On};
use std::time::{Duration, Instant};

const IP: &str = "10.44.0.2";

#[test]
fn a_pod_from_add_to_del() {
    let world = World::new();
    let netns = world.make_pod("web", IP);
    world.add("web", "c1", &netns, IP);
    world.assert_enrolled("web", &netns);
    assert_eq!(world.plugin("CHECK", "web", "c1", netns.path(), IP).code, Some(0));
    // Twice, as a runtime may, or in a chain that names the plugin twice.
    world.add("web", "c1", &netns, IP);
    world.assert_enrolled("web", &netns);
    world.del("web", "c1", &netns);
    world.assert_ended("web", &netns);
    world.del("web", "c1", &netns);
    assert_eq!(world.state("web"), "waiting");
}

#[test]
fn istios_own_plugin_enrols() {
    let world = World::new();
    let example = json!([{"Interface": 0, "Address": {"IP": IP, "Mask": "////AA=="}, "Gateway": "10.44.0.1"}]);
    let empty = json!([{"Interface": null, "Address": {"IP": "", "Mask": null}, "Gateway": ""}]);
    for (name, ips) in [("example", example), ("empty", empty), ("null", Value::Null)] {
        let netns = world.make_pod(name, IP);
        assert_eq!(world.istio_add(name, netns.path(), &ips), (200, String::new()), "{name}");
        world.assert_enrolled(name, &netns);
    }
    let netns = netns(IP);
    world.node.write_pod("plain.json", &pod_json("plain", IP, json!({"labels": {}})));
    let (status, text) = world.istio_add("plain", netns.path(), &Value::Null);
    assert_eq!((status, text.starts_with("pod default/plain is not in the mesh")), (500, true), "{text}");
    let (status, text) = world.istio_add("nobody", netns.path(), &Value::Null);
    assert_eq!((status, text.starts_with("pod default/nobody is not known to the directory ")), (500, true), "{text}");
}

#[test]
fn an_unknown_pod_is_never_let_through() {
    let world = World::new();
    let netns = netns(IP);
    let (code, message) = world.add_fails("nobody", "c1", netns.path(), IP);
    assert_eq!(code, 11);
    assert!(message.starts_with("pod default/nobody is not known to the directory "), "{message}");
    world.assert_nothing_left("nobody", &netns);
}

#[test]
fn the_hosts_namespace_is_refused() {
    let world = World::new();
    world.make_pod("web", IP);
    // What the host has of its own.
    eventually("the host's side", || rules(&world.node.host).contains("--to-source 169.254.7.127"));
    let before = rules(&world.node.host);
    let (code, message) = world.add_fails("web", "c1", world.node.host.path(), IP);
    assert_eq!((code, message.contains("the network namespace of the host")), (4, true), "{message}");
    assert_eq!(rules(&world.node.host), before);
    // And by path, as Istio's plugin gives it.
    let (status, message) = world.istio_add("web", world.node.host.path(), &Value::Null);
    assert_eq!((status, message.contains("the network namespace of the host")), (500, true), "{message}");
    assert_eq!(rules(&world.node.host), before);
}

#[test]
fn a_refusal_of_ztunnel_undoes_everything_and_a_repeat_works() {
    let world = World::new();
    let netns = world.make_pod("web", IP);
    world.ztunnel().set_faults(vec![(On::Uid("web".into()), Fault::Nack("failure to start proxy: port taken".into()))]);
    let (code, message) = world.add_fails("web", "c1", netns.path(), IP);
    assert_eq!(code, 100);
    assert!(message.starts_with("ztunnel refused the pod: failure to start proxy: port taken"), "{message}");
    world.ztunnel().set_faults(Vec::new());
    world.assert_nothing_left("web", &netns);
    world.add("web", "c2", &netns, IP);
    world.assert_enrolled("web", &netns);
}

#[test]
fn a_silent_ztunnel_fails_the_add_in_time() {
    let world = World::new();
    let netns = world.make_pod("web", IP);
    world.ztunnel().set_faults(vec![(On::Uid("web".into()), Fault::NoAck)]);
    let began = Instant::now();
    let (code, message) = world.add_fails("web", "c1", netns.path(), IP);
    let took = began.elapsed();
    assert_eq!((code, message.as_str()), (11, "ztunnel did not acknowledge the pod within 3 s"));
    assert!(took > Duration::from_millis(2900) && took < Duration::from_secs(5), "{took:?}");
    assert!(!has_rules(&netns));
    let (status, _) = world.istio_add("web", netns.path(), &Value::Null);
    assert_eq!(status, 500, "and the same within the time of Istio's plugin");
    world.ztunnel().set_faults(Vec::new());
    eventually("ztunnel is back", || world.ztunnel().stats().ready);
    eventually("a repeat works", || world.plugin("ADD", "web", "c2", netns.path(), IP).code == Some(0));
    world.assert_enrolled("web", &netns);
}

#[test]
fn without_ztunnel_the_add_says_so() {
    let world = World::without_ztunnel(&[]);
    let netns = world.make_pod("web", IP);
    let (code, message) = world.add_fails("web", "c1", netns.path(), IP);
    assert_eq!(code, 11);
    assert!(message.starts_with("no ztunnel is connected on "), "{message}");
    world.assert_nothing_left("web", &netns);
}

#[test]
fn a_namespace_that_is_gone_or_is_none_is_named() {
    let world = World::new();
    world.make_pod("web", IP);
    for path in ["/run/netns/there-is-no-such", "/etc/passwd"] {
        let body = json!({"Netns": path, "PodName": "web", "PodNamespace": "", "Decide": true, "PodUID": "web"});
        let (status, body) = http::request(&world.node.events(), "POST", "/cmdadd", &body.to_string()).unwrap();
        let failure: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, failure["code"].as_u64()), (500, Some(5)), "{body}");
        assert!(failure["message"].as_str().unwrap().contains(path), "{body}");
    }
}

#[test]
fn the_newest_sandbox_wins() {
    let world = World::new();
    let (first, second) = (world.make_pod("web", IP), netns(IP));
    world.add("web", "c1", &first, IP);
    world.add("web", "c2", &second, IP);
    world.assert_enrolled("web", &second);
    world.del("web", "c1", &first);
    world.assert_enrolled("web", &second);
    world.del("web", "c2", &second);
    world.assert_ended("web", &second);
}

#[test]
fn rules_of_others_and_older_ones_of_ours() {
    let world = World::new();
    let netns = world.make_pod("web", IP);
    let run = |args: &[&str]| crate::support::netns::run_in(netns.netns(), "iptables-nft", args);
    for table in ["nat", "mangle"] {
        run(&["-t", table, "-N", "FOREIGN"]);
        run(&["-t", table, "-A", "FOREIGN", "-s", "10.1.2.3", "-j", "RETURN"]);
        run(&["-t", table, "-A", "OUTPUT", "-j", "FOREIGN"]);
    }
    run(&["-t", "nat", "-N", "ISTIO_OUTPUT"]);
    run(&["-t", "nat", "-A", "ISTIO_OUTPUT", "-d", "10.9.9.9", "-j", "RETURN"]);
    world.add("web", "c1", &netns, IP);
    world.assert_enrolled("web", &netns);
    // One rule missing: CHECK says so, and a repeated ADD puts it right.
    run(&["-t", "nat", "-D", "ISTIO_OUTPUT", "1"]);
    run(&["-t", "nat", "-F", "ISTIO_PRERT"]);
    world.add("web", "c1", &netns, IP);
    world.assert_enrolled("web", &netns);
    world.node.write_pod("web.json", &pod_json("web", IP, json!({"labels": {}})));
    eventually("taken out of the mesh", || world.published().is_empty() && !has_rules(&netns));
    let left = rules(&netns);
    assert!(!has_rules(&netns), "{left}");
    for table in ["nat", "mangle"] {
        assert!(run(&["-t", table, "-S"]).contains("-A FOREIGN -s 10.1.2.3/32 -j RETURN"), "{left}");
        assert!(run(&["-t", table, "-S"]).contains("-A OUTPUT -j FOREIGN"), "{left}");
    }
}

#[test]
fn check_names_what_is_missing_and_repairs() {
    let world = World::new();
    let netns = world.make_pod("web", IP);
    world.add("web", "c1", &netns, IP);
    crate::support::netns::run_in(netns.netns(), "iptables-nft", &["-t", "nat", "-F", "ISTIO_PRERT"]);
    let ended = world.plugin("CHECK", "web", "c1", netns.path(), IP);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let error: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(error["code"], 100);
    assert!(error["msg"].as_str().unwrap().contains("ISTIO_PRERT"), "{error}");
    eventually("repaired", || is_right(&netns));
    world.assert_enrolled("web", &netns);
}

#[test]
fn gc_ends_what_is_neither_valid_nor_there() {
    let world = World::new();
    let (kept, gone) = (world.make_pod("kept", IP), world.make_pod("gone", "10.44.0.3"));
    world.add("kept", "c1", &kept, IP);
    world.add("gone", "c2", &gone, "10.44.0.3");
    drop(gone);
    let gc = |body: &str| http::request(&world.node.events(), "POST", "/gc", body).unwrap().0;
    assert_eq!(gc(r#"{"ContainerIDs":["c1","c2"]}"#), 200);
    assert_eq!(world.state("gone"), "enrolled");
    assert_eq!(gc(r#"{"ContainerIDs":null}"#), 200);
    eventually("the one that is gone ends", || world.state("gone") == "waiting");
    world.assert_enrolled("kept", &kept);
}
