//! What status says is published is what stands on the pod, and a patch that is refused is told.

use super::*;
use crate::apiserver::Fault;
use ferrule::node::Redirection;

const IP: &str = "10.49.4.2";

fn events(world: &World) -> Vec<String> {
    let events = world.server.events();
    let reasons = events.iter().map(|event| event["reason"].as_str().unwrap().to_owned());
    reasons.filter(|reason| reason == "RedirectionNotPublished").collect()
}

#[test]
fn a_patch_that_is_refused_is_told_and_not_taken_for_done() {
    let mut world = World::without_agent(&["--verify-interval", "1s"]);
    world.server.misbehave("patch pods", None, Fault::Answer(403, None));
    world.start_agent();
    world.start_ztunnel();
    let netns = world.make_pod("mesh", "web", IP);
    world.add("mesh", "web", &netns, IP);
    eventually("enrolled", || world.state("web") == "enrolled");
    eventually("the reason", || {
        let pod = world.pod("web").unwrap();
        assert_eq!(pod.redirection, None, "{pod:?}");
        pod.reason.contains("its annotation cannot be written (") && pod.reason.contains("403")
    });
    eventually("an Event", || !events(&world).is_empty());
    world.server.behave();
    world.assert_enrolled("mesh", "web", &netns);
    eventually("what stands is told", || {
        let pod = world.pod("web").unwrap();
        pod.redirection == Some(Redirection::Enabled) && !pod.reason.contains("cannot be written")
    });
}

#[test]
fn a_pod_that_leaves_is_published_until_the_annotation_is_gone() {
    let (world, netns) = World::enrolled(&["--verify-interval", "1s"], IP);
    world.server.misbehave("patch pods", None, Fault::Answer(500, None));
    world.server.label_namespace("mesh", json!({ "istio.io/dataplane-mode": null }));
    eventually("its rules are out", || !has_rules(&netns));
    eventually("told", || world.pod("web").unwrap().reason.contains("its annotation cannot be written ("));
    assert_eq!(world.pod("web").unwrap().redirection, Some(Redirection::Enabled), "peers still send HBONE");
    eventually("an Event", || !events(&world).is_empty());
    world.server.behave();
    world.assert_out("mesh", "web", &netns);
    eventually("what stands is told", || world.pod("web").unwrap().redirection.is_none());
}

#[test]
fn what_somebody_else_takes_away_is_seen() {
    let world = World::new();
    let netns = world.make_pod("mesh", "web", IP);
    world.add("mesh", "web", &netns, IP);
    world.assert_enrolled("mesh", "web", &netns);
    eventually("told", || world.pod("web").unwrap().redirection == Some(Redirection::Enabled));
    world.server.merge(Kind::Pods, "mesh", "web", &json!({ "metadata": { "annotations": { ANNOTATION: null } } }));
    eventually("seen", || world.pod("web").unwrap().redirection.is_none());
}
