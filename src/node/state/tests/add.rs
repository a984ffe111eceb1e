//! What a plugin's ADD brings about, step by step, and what ends it.

use super::*;

#[test]
fn an_add_goes_through_its_steps_in_order() {
    let mut script = Script::enrolled();
    assert_eq!(script.state_of("a"), "enrolled");
    assert_eq!(script.pass(Duration::from_secs(60)), NOTHING);
    // Again: looked at again, acknowledged at once.
    assert_eq!(script.add("a", "n1"), ["apply n1"]);
    assert_eq!(script.applied(), ["reply 2: ambient"]);
}

#[test]
fn a_pod_outside_the_mesh_is_passed() {
    let mut script = Script::running();
    script.source(Notice::Pod(Box::new(pod("b", false))));
    assert_eq!(script.add("b", "n2"), ["remember b", "reply 1: none"]);
    assert_eq!(
        script.add_as("b", "n2", false),
        [
            "reply 2: 100 pod default/b is not in the mesh: no enablement selector matches the labels of pod and namespace"
        ]
    );
    assert_eq!(script.del("b", "n2"), ["forget b", "reply 3: done"], "nothing was put in, nothing is looked for");
    assert_eq!(script.state_of("b"), "none");
}

#[test]
fn an_add_that_fails_is_undone_before_it_is_answered() {
    let mut script = Script::running();
    script.add("a", "n1");
    let failed = Outcome::Applied(Err(Error::new("no iptables")), None);
    assert_eq!(script.done(failed), ["remove n1"]);
    assert_eq!(script.removed(), ["reply 1: 101 the traffic rules could not be put in place: no iptables"]);
    assert_eq!(script.state_of("a"), "waiting");

    // The runtime comes back, and it works.
    assert_eq!(script.add("a", "n2"), ["apply n2, remembered"]);
    assert_eq!(script.applied(), ["send 1: add a n2"]);
    assert_eq!(script.answer(1, refused("port taken")), ["send 1: del a", "remove n2"]);
    assert_eq!(script.removed(), ["forget a", "reply 2: 100 ztunnel refused the pod: port taken"]);
    script.acked(1);

    script.add("a", "n3");
    assert_eq!(script.applied(), ["send 1: add a n3"]);
    assert_eq!(script.pass(Duration::from_millis(2999)), NOTHING);
    assert_eq!(script.pass(Duration::from_millis(2)), ["send 1: del a", "remove n3"]);
    assert_eq!(script.removed(), ["forget a", "reply 3: 11 ztunnel did not acknowledge the pod within 3 s"]);

    // The late answers are of the past.
    assert_eq!(script.add("a", "n3"), ["apply n3, remembered"]);
    assert_eq!(script.applied(), ["send 1: add a n3"]);
    assert_eq!(script.acked(1), NOTHING, "to the first add");
    assert_eq!(script.acked(1), NOTHING, "to the del");
    assert_eq!(script.acked(1), ["reply 4: ambient", "publish a Some(Enabled)"]);
}

#[test]
fn without_ztunnel_an_add_fails_after_a_second() {
    let mut script = Script::running();
    script.ztunnel(Zds::Disconnected(ConnectionId(1), "test".to_owned()));
    script.add("a", "n1");
    assert_eq!(script.applied(), NOTHING);
    assert_eq!(script.pass(Duration::from_millis(999)), NOTHING);
    assert_eq!(script.pass(Duration::from_millis(2)), ["remove n1"]);
    assert_eq!(
        script.removed(),
        ["forget a", "reply 1: 11 no ztunnel is connected on ztunnel.sock; is ztunnel running, with this socket?"]
    );
    // One that comes in time is enough.
    script.add("a", "n2");
    script.applied();
    script.pass(Duration::from_millis(900));
    assert_eq!(script.ztunnel(Zds::Connected(ConnectionId(2))), ["snapshot 2: add a n2"]);
    assert_eq!(script.acked(2), ["reply 2: ambient", "publish a Some(Enabled)"]);
}

#[test]
fn istios_plugin_is_answered_within_five_seconds_whatever_hangs() {
    let mut script = Script::running();
    script.add_as("a", "n1", false);
    assert_eq!(
        script.pass(Duration::from_millis(4701)),
        ["reply 1: 101 the traffic rules could not be put in place in time"]
    );
    assert_eq!(script.applied(), ["remove n1"], "undone when the work ends after all");
    assert_eq!(script.removed(), ["forget a"]);
}

#[test]
fn the_hosts_namespace_and_one_that_cannot_be_opened_are_refused() {
    let mut script = Script::running();
    script.netns.insert("host", Arc::new(Netns::own().unwrap()));
    assert_eq!(
        script.add("a", "host"),
        ["reply 1: 4 /var/run/netns/host is the network namespace of the host, not of a pod"]
    );
    let event = AddEvent { netns: "/gone".to_owned(), pod_name: "a".to_owned(), ..AddEvent::default() };
    let reply = script.reply();
    let gone = Err(Error::of(Kind::NotFound, "no such file"));
    assert_eq!(
        script.step(Event::Request(Request::Add(event, gone), reply)),
        ["reply 2: 5 the pod's network namespace /gone: no such file"]
    );
}

#[test]
fn the_newest_sandbox_wins_and_a_late_del_is_nobodys() {
    let mut script = Script::enrolled();
    assert_eq!(script.add("a", "n2"), ["apply n2, remembered"]);
    assert_eq!(script.applied(), ["send 1: add a n2"]);
    assert_eq!(script.acked(1), ["reply 2: ambient"], "what is in the old one goes with it");
    assert_eq!(script.del("a", "n1"), ["reply 3: done"]);
    assert_eq!(script.state_of("a"), "enrolled");
    // Nor is one that names the namespace of today, but a sandbox of yesterday.
    let (mut event, netns, reply) = script.attachment("a", "n2");
    event.container_id = "box-n1".to_owned();
    assert_eq!(script.step(Event::Request(Request::Del(event, Ok(netns)), reply)), ["reply 4: done"]);
    // Nor is one of another pod, whose path leads here by now.
    let (mut event, netns, reply) = script.attachment("b", "n2");
    event.container_id = String::new();
    assert_eq!(script.step(Event::Request(Request::Del(event, Ok(netns)), reply)), ["reply 5: done"]);
    assert_eq!(script.del("a", "n2"), ["send 1: del a", "publish a None", "forget a", "reply 6: done"]);
    assert_eq!(script.state_of("a"), "waiting");
}

#[test]
fn an_add_that_fails_for_a_pod_that_runs_takes_nothing_from_it() {
    let mut script = Script::enrolled();
    assert_eq!(script.add("a", "n1"), ["apply n1"]);
    assert_eq!(
        script.done(Outcome::Applied(Err(Error::new("no iptables")), None)),
        ["reply 2: 101 the traffic rules could not be put in place: no iptables"]
    );
    assert_eq!(script.pass(Duration::from_millis(6)), ["apply n1"], "tried again");
    assert_eq!(script.applied(), NOTHING);
    assert_eq!(script.state_of("a"), "enrolled");
}

#[test]
fn a_newer_add_ends_the_one_that_waits() {
    let mut script = Script::running();
    script.add("a", "n1");
    assert_eq!(script.add("a", "n2"), ["reply 1: 11 a newer sandbox of the pod has come meanwhile"]);
    assert_eq!(script.applied(), ["apply n2, remembered"]);
    assert_eq!(script.applied(), ["send 1: add a n2"]);
    assert_eq!(script.acked(1), ["reply 2: ambient", "publish a Some(Enabled)"]);
    // And back again.
    assert_eq!(script.add("a", "n1"), ["apply n1, remembered"]);
    assert_eq!(script.applied(), ["send 1: add a n1"]);
    assert_eq!(script.acked(1), ["reply 3: ambient"]);
}

#[test]
fn a_requester_that_is_gone_before_the_rules_is_dropped_and_past_them_kept() {
    let mut script = Script::running();
    script.add("a", "n1");
    assert_eq!(script.step(Event::RequesterGone(1)), NOTHING);
    assert_eq!(script.applied(), ["remove n1"]);
    assert_eq!(script.removed(), ["forget a"]);

    script.add("a", "n2");
    script.applied();
    assert_eq!(script.step(Event::RequesterGone(2)), ["publish a Some(Pending)"]);
    assert_eq!(script.acked(1), ["publish a Some(Enabled)"]);
}

#[test]
fn an_unknown_pod_is_looked_up() {
    let mut script = Script::running();
    assert_eq!(script.add("b", "n2"), ["look up default/b"]);
    let name = PodName { namespace: "default".to_owned(), name: "b".to_owned() };
    assert_eq!(
        script.source(Notice::LookedUp(name.clone(), None)),
        ["reply 1: 11 pod default/b is not known to the test; write a Pod file for it there"],
        "never: not in the mesh"
    );
    assert_eq!(script.add("b", "n2"), ["look up default/b"]);
    assert_eq!(script.source(Notice::Pod(Box::new(pod("b", true)))), ["apply n2, remembered"]);
    assert_eq!(script.source(Notice::LookedUp(name, None)), NOTHING);
    // Istio's plugin gives no uid: with another namespace it may be a successor of the same name.
    let mut script = Script::enrolled();
    assert_eq!(script.add_as("a", "n2", false), ["look up default/a"]);
    assert_eq!(
        script.pass(Duration::from_secs(4)),
        ["reply 2: 11 the test did not answer in time when asked for pod default/a"]
    );
}

/// A pod `default/s` with a sidecar and one more annotation.
fn with_sidecar(annotation: &str) -> Object {
    let text = format!(
        r#"{{"kind":"Pod","metadata":{{"name":"s","uid":"s","annotations":{{"sidecar.istio.io/status":"{{}}"{annotation}}}}},
            "spec":{{"containers":[{{"name":"istio-proxy"}}]}},"status":{{"podIP":"10.0.0.9"}}}}"#
    );
    crate::pod::object::decode(&text).unwrap().pods.remove(0)
}

#[test]
fn a_pod_with_a_sidecar_is_redirected_and_then_left_alone() {
    let mut script = Script::running();
    script.source(Notice::Pod(Box::new(with_sidecar(""))));
    assert_eq!(script.add("s", "n1"), ["redirect n1 Redirect of [10.0.0.9]"]);
    assert_eq!(script.add_as("s", "n1", false), NOTHING, "the same work serves both");
    assert_eq!(script.done(Outcome::Redirected(Ok(()))), ["reply 1: sidecar", "reply 2: done"]);
    assert_eq!(script.check("s", "n1"), ["inspect n1 Redirect"]);
    assert_eq!(script.done(Outcome::Inspected(Ok(Vec::new()))), ["reply 3: done"]);
    // Again, and into a new sandbox.
    assert_eq!(script.add("s", "n1"), ["redirect n1 Redirect of [10.0.0.9]"]);
    assert_eq!(script.add("s", "n2"), ["redirect n2 Redirect of [10.0.0.9]"]);
    assert_eq!(script.done(Outcome::Redirected(Ok(()))), ["reply 4: sidecar"]);
    assert_eq!(
        script.done(Outcome::Redirected(Err(Error::new("no iptables")))),
        ["reply 5: 101 the redirection to the sidecar could not be put in place: no iptables"]
    );
    assert_eq!(script.pass(Duration::from_secs(60)), ["walk a"], "which has not come yet");
}

#[test]
fn a_bad_annotation_of_a_sidecar_fails_the_add() {
    let mut script = Script::running();
    script.source(Notice::Pod(Box::new(with_sidecar(r#","sidecar.istio.io/interceptionMode":"BOTH""#))));
    assert_eq!(
        script.add("s", "n1"),
        [
            "reply 1: 100 pod default/s: annotation sidecar.istio.io/interceptionMode: \"BOTH\" is not allowed; it takes \
          REDIRECT or TPROXY"
        ]
    );
    // Put right while the runtime tries again.
    script.source(Notice::Pod(Box::new(with_sidecar(r#","sidecar.istio.io/interceptionMode":"TPROXY""#))));
    assert_eq!(script.add("s", "n1"), ["redirect n1 Tproxy of [10.0.0.9]"]);
}
