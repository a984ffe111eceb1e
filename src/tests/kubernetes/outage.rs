//! An API server that is away, changes its mind about who we are, or misbehaves: known pods are served, unknown ones
//! wait, and everything comes right without a restart.

use super::*;
use crate::apiserver::Fault;

const IP: &str = "10.50.1.2";

#[test]
fn an_api_server_that_is_away_at_the_start() {
    let mut world = World::without_agent(&[]);
    let netns = world.make_pod("mesh", "web", IP);
    world.server_down();
    world.launch_agent();
    eventually("said", || world.log().contains("trying again"));
    let (status, body) = world.get(HEALTH, "/readyz").unwrap();
    assert_eq!((status, body.contains("starting: the API server has not been read yet")), (503, true), "{body}");
    world.server_up();
    world.wait_for_agent();
    world.start_ztunnel();
    world.add("mesh", "web", &netns, IP);
    world.assert_enrolled("mesh", "web", &netns);
}

#[test]
fn an_api_server_that_is_lost_for_a_while() {
    let mut world = World::new();
    let (mesh, plain) = (world.make_pod("mesh", "web", IP), world.make_pod("plain", "web-2", "10.50.1.3"));
    eventually("known", || world.state("web") == "waiting" && world.state("web-2") == "none");
    world.server_down();
    // Known pods: out of the mesh passes, in the mesh is enrolled.
    world.add("plain", "web-2", &plain, "10.50.1.3");
    world.add("mesh", "web", &mesh, IP);
    assert!(is_right(&mesh) && !has_rules(&plain));
    assert_eq!(world.annotation("mesh", "web"), None);
    // One that nobody told us of waits.
    let late = world.make_pod("mesh", "late", "10.50.1.4");
    let (code, message) = world.add_fails("mesh", "late", &late, "10.50.1.4");
    assert_eq!(code, 11, "{message}");
    assert!(!has_rules(&late));
    world.server_up();
    world.assert_enrolled("mesh", "web", &mesh);
    world.add("mesh", "late", &late, "10.50.1.4");
    world.assert_enrolled("mesh", "late", &late);
}

#[test]
fn a_token_and_a_certificate_that_change() {
    let mut world = World::new();
    world.server.accept_token("token-2");
    world.server.write_token("token-2");
    world.server.cut();
    let netns = world.make_pod("mesh", "web", IP);
    eventually("the watch is back", || world.state("web") == "waiting");
    world.server.change_certificate();
    world.server.write_ca();
    world.server.cut();
    world.add("mesh", "web", &netns, IP);
    world.assert_enrolled("mesh", "web", &netns);
}

#[test]
fn annotations_are_written_again_until_they_stand() {
    let world = World::new();
    let netns = world.make_pod("mesh", "web", IP);
    world.server.misbehave("patch pods", 1, Fault::Answer(500, None));
    world.server.misbehave("patch pods", 1, Fault::Answer(409, None));
    world.server.misbehave("patch pods", 1, Fault::Close);
    world.add("mesh", "web", &netns, IP);
    let adds = world.ztunnel().stats().events.len();
    world.assert_enrolled("mesh", "web", &netns);
    assert_eq!(world.ztunnel().stats().events.len(), adds, "nothing else is done again");
    // A history that was compacted away, and events twice and in the wrong order.
    world.server.misbehave("watch *", 4, Fault::Disorder);
    world.server.compact();
    world.server.cut();
    world.server.label_namespace("mesh", json!({ "istio.io/dataplane-mode": null }));
    world.assert_out("mesh", "web", &netns);
    world.server.label_namespace("mesh", json!({ "istio.io/dataplane-mode": "ambient" }));
    world.assert_enrolled("mesh", "web", &netns);
}

#[test]
fn a_label_flipped_on_many_running_pods() {
    const PODS: usize = 24;
    let world = World::new();
    let pods: Vec<(String, PodNetns)> = (0..PODS)
        .map(|n| {
            let (name, ip) = (format!("web-{n}"), format!("10.50.2.{n}"));
            let netns = world.make_pod("plain", &name, &ip);
            world.add("plain", &name, &netns, &ip);
            (name, netns)
        })
        .collect();
    world.server.label_namespace("plain", json!({ "istio.io/dataplane-mode": "ambient" }));
    for (name, netns) in &pods {
        world.assert_enrolled("plain", name, netns);
    }
    world.server.label_namespace("plain", json!({ "istio.io/dataplane-mode": null }));
    for (name, netns) in &pods {
        world.assert_out("plain", name, netns);
    }
}
