//! The plugin without an agent: it asks the API server by the kubeconfig, and lets through only what is provably
//! outside the mesh.

use super::*;
use crate::apiserver::Fault;
use std::time::{Duration, Instant};

const IP: &str = "10.49.1.2";

impl World {
    /// A node without agent whose run directory has the kubeconfig.
    pub(super) fn abandoned() -> Self {
        let world = World::without_agent(&[]);
        let kubeconfig = std::fs::read_to_string(world.server.kubeconfig()).unwrap();
        std::fs::write(world.node.run().join("istio-cni-kubeconfig"), kubeconfig).unwrap();
        for file in ["token", "ca.crt"] {
            std::fs::copy(world.server.service_account_dir().join(file), world.node.run().join(file)).unwrap();
        }
        world
    }
}

#[test]
fn a_pod_outside_the_mesh_starts_and_one_inside_waits() {
    let world = World::abandoned();
    let (plain, mesh) = (world.make_pod("plain", "web", IP), world.make_pod("mesh", "web", "10.49.1.3"));
    let begin = Instant::now();
    world.add("plain", "web", &plain, IP);
    assert!(begin.elapsed() < Duration::from_secs(9), "without waiting for the agent: {:?}", begin.elapsed());
    let ended = world.plugin("ADD", "mesh", "web", &mesh, "10.49.1.3");
    let error: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((ended.code, error["code"].as_u64()), (Some(1), Some(11)), "{ended:?}");
    assert!(error["details"].as_str().unwrap().starts_with("the pod is in the ambient mesh"), "{error}");
    assert!(!has_rules(&mesh));
}

#[test]
fn nobody_passes_when_nobody_can_tell() {
    let mut world = World::abandoned();
    let netns = world.make_pod("plain", "web", IP);
    let host = &world.node.host;
    host.enter(|| world.server.go_down());
    let (code, message) = world.add_fails("plain", "web", &netns, IP);
    assert_eq!(code, 11, "{message}");
    assert!(message.starts_with("node agent not ready ("), "{message}");
}

/// The file with the pods that are not in the mesh.
fn outside(world: &World) -> String {
    std::fs::read_to_string(world.node.run().join("outside.json")).unwrap_or_default()
}

#[test]
fn with_neither_agent_nor_api_only_a_pod_that_was_decided_passes() {
    let mut world = World::new();
    for (namespace, name) in [("plain", "known"), ("plain", "joined"), ("mesh", "web")] {
        world.server.put_pod(namespace, name, NODE, json!({}), &[]);
    }
    let known = |world: &World, name: &str| outside(world).contains(&world.uid("plain", name));
    eventually("both are told", || known(&world, "known") && known(&world, "joined"));
    let label = json!({"metadata": {"labels": {"istio.io/dataplane-mode": "ambient"}}});
    world.server.merge(Kind::Pods, "plain", "joined", &label);
    eventually("one is not any more", || known(&world, "known") && !known(&world, "joined"));
    assert!(!outside(&world).contains(&world.uid("mesh", "web")));
    world.kill_agent();
    world.server_down();
    // Nobody has decided about these.
    world.server.put_pod("plain", "late", NODE, json!({}), &[]);
    world.server.put_pod("plain", "known-2", NODE, json!({}), &[]);
    let netns = netns(IP);
    world.add("plain", "known", &netns, IP);
    std::thread::scope(|scope| {
        for (namespace, name) in [("plain", "joined"), ("plain", "late"), ("plain", "known-2"), ("mesh", "web")] {
            let (world, netns) = (&world, &netns);
            scope.spawn(move || assert_eq!(world.add_fails(namespace, name, netns, IP).0, 11, "{name}"));
        }
    });
}

#[test]
fn an_agent_that_cannot_start_for_want_of_the_api_leaves_what_was_decided() {
    let mut world = World::new();
    world.server.put_pod("plain", "known", NODE, json!({}), &[]);
    world.server.put_pod("mesh", "web", NODE, json!({}), &[]);
    let uid = world.uid("plain", "known");
    eventually("told", || outside(&world).contains(&uid));
    world.kill_agent();
    for request in ["list *", "get *"] {
        world.server.misbehave(request, None, Fault::Close);
    }
    world.launch_agent();
    eventually("it serves", || world.status().is_some());
    let (plain, mesh) = (netns(IP), netns("10.49.1.3"));
    world.add("plain", "known", &plain, IP);
    world.start_ztunnel_early();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| world.plugin("ADD", "mesh", "web", &mesh, "10.49.1.3"));
        eventually("the API server is asked", || world.server.count("GET /api/v1/namespaces/mesh/pods/web") > 0);
        world.server.behave();
        assert_eq!(waits.join().unwrap().code, Some(0));
    });
    world.assert_enrolled("mesh", "web", &mesh);
}

#[test]
fn detection_is_tried_again_where_the_configuration_says_so() {
    let mut world = World::abandoned();
    let netns = world.make_pod("plain", "web", IP);
    let fails = || Fault::Answer(403, None);
    world.server.misbehave("get pods", None, fails());
    let (code, message) = world.add_fails("plain", "web", &netns, IP);
    assert_eq!(code, 11, "{message}");
    world.server.behave();
    world.server.misbehave("get pods", 3, fails());
    world.conf = json!({"enable_ambient_detection_retry": true});
    world.add("plain", "web", &netns, IP);
    assert!(world.server.count("GET /api/v1/namespaces/plain/pods/web") >= 5);
}
