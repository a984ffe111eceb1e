//! What the source tells: pods that run already, join, leave and change.

use super::*;

#[test]
fn a_running_pod_is_found_after_a_grace() {
    let mut script = Script::running();
    script.source(Notice::Pod(Box::new(pod("b", true))));
    assert_eq!(script.pass(Duration::from_millis(1999)), NOTHING);
    assert_eq!(script.pass(Duration::from_millis(2)), ["walk a b"]);
    assert_eq!(script.walked(&[("b", "n2")]), ["apply n2, remembered"]);
    assert_eq!((script.state_of("a"), script.state_of("b")), ("lost".to_owned(), "applying".to_owned()));
    assert_eq!(script.applied(), ["send 1: add b n2", "publish b Some(Pending)"]);
    assert_eq!(script.state_of("b"), "pending");
    assert_eq!(script.acked(1), ["publish b Some(Enabled)"]);
    assert_eq!(script.pass(Duration::from_millis(600)), ["walk a"], "looked for again and again");
    // The plugin comes first after all: what the walk brings is old.
    assert_eq!(script.add("a", "n1"), ["apply n1, remembered"]);
    assert_eq!(script.walked(&[("a", "n3")]), NOTHING);
    assert_eq!(script.applied(), ["send 1: add a n1"]);
}

#[test]
fn a_pod_that_gets_its_label_while_it_is_young_is_enrolled_at_once() {
    let check = |label: fn(&mut Script)| {
        let mut script = Script::new();
        script.source(Notice::Synced);
        script.ztunnel(Zds::Connected(ConnectionId(1)));
        script.source(Notice::Pod(Box::new(pod("b", false))));
        assert_eq!(script.pass(Duration::from_millis(100)), NOTHING);
        label(&mut script);
        assert_eq!(script.walked(&[("b", "n2")]), ["apply n2, remembered"]);
    };
    check(|script| assert_eq!(script.source(Notice::Pod(Box::new(pod("b", true)))), ["walk b"]));
    check(|script| {
        let labels = [("mesh".to_owned(), "on".to_owned())].into();
        let namespace = Namespace { name: "default".to_owned(), labels };
        assert_eq!(script.source(Notice::Namespace(namespace)), ["walk b"]);
    });
}

#[test]
fn a_pod_without_address_waits() {
    let mut script = Script::running();
    let mut object = pod("b", true);
    object.ips.clear();
    script.source(Notice::Pod(Box::new(object)));
    assert_eq!(script.pass(Duration::from_secs(3)), ["walk a"]);
    assert_eq!(script.state_of("b"), "waiting");
    // With the plugin's word it is enrolled all the same.
    assert_eq!(script.add("b", "n2"), ["apply n2, remembered"]);
}

#[test]
fn leaving_and_joining_the_mesh_while_running() {
    let mut script = Script::enrolled();
    // ztunnel ends the connections while the rules still translate their addresses.
    assert_eq!(script.source(Notice::Pod(Box::new(pod("a", false)))), ["send 1: del a", "publish a None"]);
    assert_eq!(script.state_of("a"), "removing");
    assert_eq!(script.acked(1), ["remove n1"]);
    assert_eq!(script.removed(), ["remember a"]);
    assert_eq!(script.state_of("a"), "none");
    let labels = [("mesh".to_owned(), "on".to_owned())].into();
    let namespace = Namespace { name: "default".to_owned(), labels };
    assert_eq!(script.source(Notice::Namespace(namespace)), ["walk a"]);
    assert_eq!(script.walked(&[("a", "n1")]), ["apply n1, remembered"]);
    assert_eq!(script.source(Notice::NamespaceGone("default".to_owned())), NOTHING, "while something is in flight");
    assert_eq!(script.applied(), ["remove n1"]);
    assert_eq!(script.source(Notice::Pod(Box::new(pod("a", true)))), NOTHING);
    assert_eq!(script.removed(), ["apply n1"]);
    assert_eq!(script.applied(), ["send 1: add a n1", "publish a Some(Pending)"]);
}

#[test]
fn the_rules_of_a_pod_that_has_ended_go_with_its_namespace() {
    let mut script = Script::enrolled();
    assert_eq!(script.source(Notice::PodGone("a".to_owned())), ["send 1: del a", "publish a None", "forget a"]);
    assert_eq!(script.state_of("a"), "unknown");
    assert_eq!(script.del("a", "n1"), ["reply 2: done"]);

    let mut script = Script::enrolled();
    let finished = Object { phase: crate::pod::types::Phase::Finished, ..pod("a", true) };
    let finished = Notice::Pod(Box::new(finished));
    assert_eq!(script.source(finished), ["send 1: del a", "publish a None", "remember a"]);
    assert_eq!(script.state_of("a"), "none");

    // It leaves the mesh, and ends while its rules are being taken out.
    let mut script = Script::enrolled();
    script.source(Notice::Pod(Box::new(pod("a", false))));
    assert_eq!(script.acked(1), ["remove n1"]);
    assert_eq!(script.source(Notice::PodGone("a".to_owned())), NOTHING);
    assert_eq!(script.done(Outcome::Removed(Err(Error::new("busy")))), NOTHING, "not tried again");
    assert_eq!(script.pass(Duration::from_millis(6)), ["forget a"]);
}

#[test]
fn rules_that_cannot_be_taken_out_are_tried_again() {
    let mut script = Script::enrolled();
    script.source(Notice::Pod(Box::new(pod("a", false))));
    assert_eq!(script.acked(1), ["remove n1"]);
    assert_eq!(script.done(Outcome::Removed(Err(Error::new("busy")))), NOTHING);
    assert_eq!(script.pass(Duration::from_millis(6)), ["remove n1"]);
    assert_eq!(script.removed(), ["remember a"]);
}

#[test]
fn rules_wait_a_second_at_most_for_ztunnel_to_let_go() {
    let mut script = Script::enrolled();
    script.source(Notice::Pod(Box::new(pod("a", false))));
    assert_eq!(script.pass(Duration::from_millis(999)), NOTHING);
    assert_eq!(script.pass(Duration::from_millis(2)), ["remove n1"], "it is silent");
    assert_eq!(script.removed(), ["remember a"]);

    let mut script = Script::enrolled();
    script.source(Notice::Pod(Box::new(pod("a", false))));
    assert_eq!(script.ztunnel(Zds::Disconnected(ConnectionId(1), "test".to_owned())), ["remove n1"], "it is gone");

    // Back in the mesh meanwhile: nothing was taken out.
    let mut script = Script::enrolled();
    script.source(Notice::Pod(Box::new(pod("a", false))));
    let back = script.source(Notice::Pod(Box::new(pod("a", true))));
    assert_eq!(back, ["send 1: add a n1", "publish a Some(Pending)"]);
    script.acked(1);
    assert_eq!(script.acked(1), ["publish a Some(Enabled)"]);
    script.source(Notice::Pod(Box::new(pod("a", false))));
    assert_eq!(script.pass(Duration::from_millis(999)), NOTHING, "the second has begun anew");
}

#[test]
fn settings_and_identity_follow_the_pod() {
    let mut script = Script::enrolled();
    let mut object = pod("a", true);
    object.annotations.insert("ambient.istio.io/dns-capture".to_owned(), "false".to_owned());
    assert_eq!(script.source(Notice::Pod(Box::new(object.clone()))), ["apply n1 without dns"]);
    assert_eq!(script.applied(), NOTHING);
    object.service_account = "!sa".to_owned();
    assert_eq!(
        script.source(Notice::Pod(Box::new(object))),
        ["send 1: del a", "send 1: add a n1!sa"],
        "the same namespace again changes nothing in a ztunnel"
    );
    assert_eq!(script.acked(1), NOTHING);
    assert_eq!(script.acked(1), NOTHING);
    assert_eq!(script.state_of("a"), "enrolled");
}

#[test]
fn two_pods_never_have_one_namespace() {
    let mut script = Script::enrolled();
    script.source(Notice::Pod(Box::new(pod("b", true))));
    assert_eq!(script.add("b", "n1"), ["send 1: del a", "publish a None", "forget a", "apply n1, remembered"]);
    assert_eq!(script.applied(), ["send 1: add b n1"]);
    // Not while somebody is at work there.
    script.acked(1);
    script.acked(1);
    script.source(Notice::Pod(Box::new(pod("c", true))));
    script.source(Notice::Pod(Box::new(pod("b", false))));
    assert_eq!(script.acked(1), ["remove n1"]);
    assert_eq!(script.add("c", "n1"), NOTHING);
    assert_eq!(script.removed(), ["forget b"]);
    assert_eq!(script.pass(Duration::from_millis(20)), ["apply n1, remembered"]);
}
