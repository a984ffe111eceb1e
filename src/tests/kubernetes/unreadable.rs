//! Objects that cannot be read cost only themselves; an agent that hears nothing of its API server says so.

use super::*;
use crate::apiserver::Fault;

const IP: &str = "10.50.3.2";

/// No address, in an object whose every other part is right.
fn spoiled() -> Value {
    json!({ "status": { "podIP": "nonsense", "podIPs": [{ "ip": "nonsense" }] } })
}

fn mended(ip: &str) -> Value {
    json!({ "status": { "podIP": ip, "podIPs": [{ "ip": ip }] } })
}

impl World {
    fn unread(&self) -> Vec<String> {
        self.status().map(|status| status.unread).unwrap_or_default()
    }
}

#[test]
fn a_pod_that_cannot_be_read_at_the_start_costs_only_itself() {
    let mut world = World::without_agent(&[]);
    let (bad, good) = (world.make_pod("mesh", "bad", IP), world.make_pod("mesh", "good", "10.50.3.3"));
    world.server.merge(Kind::Pods, "mesh", "bad", &spoiled());
    world.start_agent();
    world.start_ztunnel();
    world.add("mesh", "good", &good, "10.50.3.3");
    world.assert_enrolled("mesh", "good", &good);
    let why = "pod mesh/bad: Pod mesh/bad: status.podIPs: \"nonsense\" is not an IP address; what it said before still counts";
    assert_eq!(world.unread(), [why]);
    // Whether it is in the mesh is not known: it does not start outside.
    let (code, message) = world.add_fails("mesh", "bad", &bad, IP);
    assert!(code == 11 && message.contains("\"nonsense\" is not an IP address"), "{code} {message}");
    assert!(!has_rules(&bad));
    // As Kubernetes reads it, this is 10.50.3.2.
    world.server.merge(Kind::Pods, "mesh", "bad", &mended("010.050.003.002"));
    eventually("read", || world.unread().is_empty());
    world.add("mesh", "bad", &bad, IP);
    world.assert_enrolled("mesh", "bad", &bad);
}

#[test]
fn an_enrolled_pod_that_cannot_be_read_any_more_stays_what_it_was() {
    let mut world = World::new();
    let (web, other) = (world.make_pod("mesh", "web", IP), world.make_pod("mesh", "other", "10.50.3.3"));
    world.add("mesh", "web", &web, IP);
    world.assert_enrolled("mesh", "web", &web);
    world.server.merge(Kind::Pods, "mesh", "web", &spoiled());
    eventually("told", || world.unread().len() == 1);
    // The watch goes on, and the agent is as ready as before.
    world.add("mesh", "other", &other, "10.50.3.3");
    world.assert_enrolled("mesh", "other", &other);
    world.server.label_namespace("plain", json!({ "istio.io/dataplane-mode": "ambient" }));
    let late = world.make_pod("plain", "late", "10.50.3.4");
    world.add("plain", "late", &late, "10.50.3.4");
    world.assert_enrolled("mesh", "web", &web);
    // Nor does an agent take it out that has only records of it.
    let before = rules(&web);
    world.kill_agent();
    world.start_agent();
    assert_eq!(world.unread().len(), 1);
    world.assert_enrolled("mesh", "other", &other);
    assert_eq!(rules(&web), before);
    let uid = world.uid("mesh", "web");
    assert_eq!(world.ztunnel().stats().pods[&uid].netns, web.netns().id().ino, "ztunnel still serves it");
    assert_eq!(world.annotation("mesh", "web").as_deref(), Some("enabled"));
    world.server.merge(Kind::Pods, "mesh", "web", &mended(IP));
    world.assert_enrolled("mesh", "web", &web);
    // One that is deleted while it cannot be read is gone.
    world.server.merge(Kind::Pods, "mesh", "other", &spoiled());
    eventually("told", || world.unread().len() == 1);
    assert!(world.server.delete(Kind::Pods, "mesh", "other"));
    eventually("gone", || world.unread().is_empty() && world.state("other") == "unknown");
}

#[test]
fn labels_that_cannot_be_read_decide_nothing() {
    let mut world = World::without_agent(&[]);
    world.server.label_namespace("mesh", json!({ "odd": { "no": "string" } }));
    let (web, plain) = (world.make_pod("mesh", "web", IP), world.make_pod("plain", "web-2", "10.50.3.3"));
    world.start_agent();
    world.start_ztunnel();
    eventually("told", || world.unread().first().is_some_and(|text| text.starts_with("namespace mesh: ")));
    world.add("plain", "web-2", &plain, "10.50.3.3");
    let (code, message) = world.add_fails("mesh", "web", &web, IP);
    assert!(code == 11 && message.contains("namespace mesh"), "{code} {message}");
    assert!(!has_rules(&web) && !has_rules(&plain));
    world.server.label_namespace("mesh", json!({ "odd": null }));
    eventually("read", || world.unread().is_empty());
    world.add("mesh", "web", &web, IP);
    world.assert_enrolled("mesh", "web", &web);
}

#[test]
fn an_agent_that_hears_nothing_of_its_pods_says_so() {
    let world = World::new();
    let netns = world.make_pod("mesh", "web", IP);
    world.add("mesh", "web", &netns, IP);
    let about_pods = || {
        let body = world.get(HEALTH, "/readyz").unwrap().1;
        body.lines().find(|line| line.starts_with("pods: ")).map(str::to_owned)
    };
    assert_eq!(about_pods(), None);
    world.server.misbehave("watch pods", None, Fault::Answer(403, None));
    world.server.cut();
    crate::support::within(std::time::Duration::from_secs(90), "said", || about_pods().is_some());
    let reason = about_pods().unwrap();
    assert!(reason.starts_with("pods: nothing is heard of them from the API server: watch pods: 403"), "{reason}");
    world.server.behave();
    crate::support::within(std::time::Duration::from_secs(60), "over", || about_pods().is_none());
    world.assert_enrolled("mesh", "web", &netns);
}
