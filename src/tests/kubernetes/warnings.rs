//! Warning Events are for what is still wrong one verification later, and never for a pod that ends.

use super::*;

const IP: &str = "10.49.3.2";

/// A pod that was in the mesh and whose namespace is not to be found.
fn lose(world: &World, name: &str) {
    world.server.put_pod("mesh", name, NODE, json!({}), &["10.49.3.9"]);
    let annotated = json!({ "metadata": { "annotations": { ANNOTATION: "enabled" } } });
    world.server.merge(Kind::Pods, "mesh", name, &annotated);
}

/// The names of the pods that people were warned of, once the last of them was.
fn warned(world: &World, last: &str) -> Vec<String> {
    let names = || -> Vec<String> {
        let events = world.server.events();
        events.iter().map(|event| event["involvedObject"]["name"].as_str().unwrap().to_owned()).collect()
    };
    eventually("people are warned", || names().iter().any(|name| name == last));
    names()
}

#[test]
fn nobody_is_warned_of_a_pod_that_finished_while_the_agent_was_away() {
    let mut world = World::without_agent(&["--verify-interval", "1s"]);
    for name in ["job", "failed", "lost"] {
        lose(&world, name);
    }
    for (name, phase) in [("job", "Succeeded"), ("failed", "Failed")] {
        world.server.merge(Kind::Pods, "mesh", name, &json!({ "status": { "phase": phase } }));
    }
    world.start_agent();
    assert_eq!(warned(&world, "lost"), ["lost"]);
    eventually("not published any more", || world.annotation("mesh", "job").is_none());
}

#[test]
fn nobody_is_warned_of_a_pod_that_is_being_torn_down() {
    let mut world = World::without_agent(&["--verify-interval", "1s"]);
    for name in ["ending", "lost"] {
        lose(&world, name);
    }
    world.start_agent();
    eventually("lost", || world.state("ending") == "lost" && world.state("lost") == "lost");
    let ending = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    world.server.merge(Kind::Pods, "mesh", "ending", &ending);
    assert_eq!(warned(&world, "lost"), ["lost"]);
}

#[test]
fn nobody_is_warned_of_a_pod_whose_node_has_just_started() {
    let root = tempfile::tempdir().unwrap();
    let mut world = World::without_agent(&["--verify-interval", "2s"]);
    world.node.host_root = root.path().to_owned();
    for name in ["web", "lost"] {
        lose(&world, name);
    }
    let netns = netns(IP);
    put_process(root.path(), 11, &world.uid("mesh", "web"), &netns);
    world.start_agent();
    world.start_ztunnel();
    eventually("lost", || world.state("web") == "lost");
    // Its new address is known only now.
    world.server.merge(Kind::Pods, "mesh", "web", &json!({"status": {"podIP": IP, "podIPs": [{"ip": IP}]}}));
    world.assert_enrolled("mesh", "web", &netns);
    assert_eq!(warned(&world, "lost"), ["lost"]);
}
