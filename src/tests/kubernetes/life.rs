//! The life of pods: added, labelled, finished, deleted, and found again.

use super::*;
use std::time::Duration;

const IP: &str = "10.45.1.2";

#[test]
fn a_pod_of_a_namespace_in_the_mesh() {
    let (world, netns) = World::enrolled(&[], IP);
    let uid = world.uid("mesh", "web");
    world.server.delete(Kind::Pods, "mesh", "web");
    eventually("forgotten", || world.state("web") == "unknown");
    assert!(is_right(&netns), "what is left of it must not talk past the mesh: {}", rules(&netns));
    assert_eq!(world.ztunnel().stats().pods[&uid].netns, 0);
    assert_eq!(world.server.patches().len(), 1, "nobody annotates what is gone: {:?}", world.server.patches());
}

#[test]
fn labels_of_a_running_pod_and_of_its_namespace() {
    let world = World::new();
    let netns = world.make_pod("plain", "web", IP);
    world.add("plain", "web", &netns, IP);
    assert!(!has_rules(&netns));
    let label = |kind: Kind, namespace: &str, name: &str, value: Value| {
        let patch = json!({ "metadata": { "labels": { "istio.io/dataplane-mode": value } } });
        world.server.merge(kind, namespace, name, &patch);
    };
    // Its namespace is remembered from the ADD, so that no process has to be found.
    label(Kind::Namespaces, "", "plain", json!("ambient"));
    eventually("being enrolled", || world.state("web") != "none");
    label(Kind::Namespaces, "", "plain", Value::Null);
    world.assert_out("plain", "web", &netns);
    label(Kind::Pods, "plain", "web", json!("ambient"));
    eventually("being enrolled", || world.state("web") != "none");
    label(Kind::Pods, "plain", "web", Value::Null);
    world.assert_out("plain", "web", &netns);
}

/// The plugin has no part in it, so nobody waits for one. A pod that is new and in the mesh is left to the plugin for 2 s.
#[test]
fn a_label_in_a_pods_first_moments_takes_effect_at_once() {
    let root = tempfile::tempdir().unwrap();
    let mut world = World::without_agent(&[]);
    world.node.host_root = root.path().to_owned();
    world.start_agent();
    world.start_ztunnel();
    let ambient = json!({ "metadata": { "labels": { "istio.io/dataplane-mode": "ambient" } } });
    let check = |name: &str, ip: &str, pid: u32, is_added: bool, on_pod: bool| {
        let born = std::time::Instant::now();
        let netns = world.make_pod("plain", name, ip);
        put_process(root.path(), pid, &world.uid("plain", name), &netns);
        if is_added {
            world.add("plain", name, &netns, ip);
        }
        eventually("seen", || world.state(name) == "none");
        match on_pod {
            true => world.server.merge(Kind::Pods, "plain", name, &ambient),
            false => world.server.merge(Kind::Namespaces, "", "plain", &ambient),
        }
        eventually("enrolled", || has_rules(&netns));
        assert!(born.elapsed() < Duration::from_millis(1900), "{name}: {:?}", born.elapsed());
    };
    check("running", IP, 11, false, true);
    check("added", "10.45.1.3", 12, true, true);
    check("of-namespace", "10.45.1.4", 13, false, false);
}

#[test]
fn an_add_before_the_watch_has_told_of_the_pod() {
    let mut world = World::without_agent(&[]);
    // The watches open and say nothing.
    world.server.misbehave("watch pods", None, crate::apiserver::Fault::SilenceAfterHead);
    world.server.misbehave("watch namespaces", None, crate::apiserver::Fault::SilenceAfterHead);
    world.start_agent();
    world.start_ztunnel();
    eventually("watching", || world.server.count("GET /api/v1/pods?watch") > 0);
    world.server.put_namespace("later", json!({ "istio.io/dataplane-mode": "ambient" }));
    let netns = world.make_pod("later", "web", IP);
    world.add("later", "web", &netns, IP);
    world.assert_enrolled("later", "web", &netns);
    assert_eq!(world.server.count("GET /api/v1/namespaces/later/pods/web"), 1);
    // A pod that is not there is not said to be out of the mesh.
    let uid = world.uid("later", "web");
    world.server.delete(Kind::Pods, "later", "web");
    world.server.put_pod("later", "web", NODE, json!({}), &[IP]);
    assert_ne!(world.uid("later", "web"), uid);
    world.server.misbehave("get pods", None, crate::apiserver::Fault::Answer(500, None));
    let (code, message) = world.add_fails("later", "web", &netns, IP);
    assert_eq!(code, 11, "{message}");
    assert!(message.contains("the API server") && message.contains("later/web"), "{message}");
    world.server.behave();
    world.add("later", "web", &netns, IP);
    world.assert_enrolled("later", "web", &netns);
}

#[test]
fn pods_of_another_agent_are_taken_over() {
    let root = tempfile::tempdir().unwrap();
    let mut world = World::without_agent(&[]);
    world.node.host_root = root.path().to_owned();
    let (stays, goes) = (world.make_pod("mesh", "stays", IP), world.make_pod("plain", "goes", "10.45.1.3"));
    for (pid, namespace, name, netns) in [(11, "mesh", "stays", &stays), (12, "plain", "goes", &goes)] {
        let annotated = json!({ "metadata": { "annotations": { ANNOTATION: "enabled" } } });
        world.server.merge(Kind::Pods, namespace, name, &annotated);
        put_process(root.path(), pid, &world.uid(namespace, name), netns);
    }
    crate::support::netns::run_in(goes.netns(), "iptables-nft", &["-t", "nat", "-N", "ISTIO_OUTPUT"]);
    world.start_agent();
    world.start_ztunnel();
    world.assert_enrolled("mesh", "stays", &stays);
    world.assert_out("plain", "goes", &goes);
    world.kill_agent();
    world.start_agent();
    world.assert_enrolled("mesh", "stays", &stays);
    assert_eq!(world.server.patches().len(), 1, "only the one that left: {:?}", world.server.patches());
}

#[test]
fn a_start_with_many_enrolled_pods_is_one_walk_and_one_snapshot() {
    const PODS: u32 = 40;
    let root = tempfile::tempdir().unwrap();
    let mut world = World::without_agent(&[]);
    world.node.host_root = root.path().to_owned();
    let pods: Vec<(String, PodNetns)> = (0..PODS)
        .map(|n| {
            let name = format!("web-{n}");
            let netns = world.make_pod("mesh", &name, &format!("10.45.2.{n}"));
            let annotated = json!({ "metadata": { "annotations": { ANNOTATION: "enabled" } } });
            world.server.merge(Kind::Pods, "mesh", &name, &annotated);
            put_process(root.path(), 100 + n, &world.uid("mesh", &name), &netns);
            (name, netns)
        })
        .collect();
    world.start_ztunnel_early();
    world.start_agent();
    eventually("ztunnel has its snapshot", || world.ztunnel().stats().ready);
    for (name, netns) in &pods {
        world.assert_enrolled("mesh", name, netns);
    }
    let events = world.ztunnel().stats().events;
    let count = |is: fn(&standin::Event) -> bool| events.iter().filter(|event| is(event)).count();
    let told = count(|event| matches!(event, standin::Event::Add { .. } | standin::Event::Keep { .. }));
    assert_eq!((told, count(|event| matches!(event, standin::Event::SnapshotSent))), (PODS as usize, 1), "{events:?}");
    assert_eq!(world.server.patches(), [], "they are annotated as they should be");
}
