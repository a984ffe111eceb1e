//! What a node of a cluster adds: the host's side, annotations that were there before us, Events, and sandboxes that are
//! replaced behind our back.

use super::*;
use crate::node::event::HostLook;

fn node_config() -> Config {
    Config { cluster: true, host_side: true, verify_interval: Duration::from_secs(30), ..config() }
}

/// A pod with this annotation.
fn annotated(name: &str, mesh: bool, value: &str) -> Notice {
    let mut pod = pod(name, mesh);
    pod.annotations.insert("ambient.istio.io/redirection".to_owned(), value.to_owned());
    Notice::Pod(Box::new(pod))
}

fn namespace() -> Notice {
    Notice::Namespace(Namespace { name: "default".to_owned(), labels: StringMap::new() })
}

impl Script {
    /// A node whose host side is in place, with a ztunnel.
    fn node() -> Self {
        let mut script = Script::after(node_config(), Vec::new(), Published::new());
        assert_eq!(script.step(Event::Tick), ["host"]);
        assert_eq!(
            script.done(Outcome::Hosted(Ok(HostLook { differences: vec!["all of it".to_owned()], probers: None }))),
            NOTHING
        );
        script.source(namespace());
        assert_eq!(script.source(Notice::Synced), ["host, pruned"], "what is left of pods that went meanwhile");
        assert_eq!(script.done(Outcome::Hosted(Ok(HostLook::default()))), NOTHING);
        script.ztunnel(Zds::Connected(ConnectionId(1)));
        script
    }

    /// Pod `a` enrolled in `n1` by a plugin.
    fn node_with_pod() -> Self {
        let mut script = Script::node();
        script.source(Notice::Pod(Box::new(pod("a", true))));
        assert_eq!(script.add("a", "n1"), ["apply n1, remembered"]);
        assert_eq!(script.applied(), ["send 1: add a n1"]);
        assert_eq!(script.acked(1), ["enter a [10.0.0.1] inside n1"]);
        assert_eq!(script.done(Outcome::Entered(Ok(()))), ["reply 1: ambient", "publish a Some(Enabled)", "check n1"]);
        assert_eq!(script.done(Outcome::Checked(Ok(Differences::default()), None)), NOTHING);
        script
    }
}

#[test]
fn addresses_are_entered_after_the_acknowledgement_and_leave_first() {
    let mut script = Script::node_with_pod();
    let mut moved = pod("a", true);
    moved.ips = vec!["10.0.0.9".parse().unwrap()];
    assert_eq!(script.source(Notice::Pod(Box::new(moved))), ["enter a [10.0.0.9] inside n1"]);
    assert_eq!(script.done(Outcome::Entered(Ok(()))), NOTHING);
    assert_eq!(script.source(Notice::PodGone("a".to_owned())), ["leave a"]);
    assert_eq!(
        script.done(Outcome::Left(Ok(()))),
        ["send 1: del a", "forget a"],
        "nobody annotates a pod that is gone"
    );
}

#[test]
fn a_host_side_that_cannot_be_had_holds_no_pod_up() {
    let mut script = Script::after(node_config(), Vec::new(), Published::new());
    assert_eq!(script.step(Event::Tick), ["host"]);
    script.done(Outcome::Hosted(Err(Error::new("no ipset"))));
    script.source(namespace());
    assert_eq!(script.source(Notice::Synced), ["host, pruned"]);
    script.done(Outcome::Hosted(Err(Error::new("no ipset"))));
    script.ztunnel(Zds::Connected(ConnectionId(1)));
    script.source(Notice::Pod(Box::new(pod("a", true))));
    script.add("a", "n1");
    script.applied();
    assert_eq!(script.acked(1), ["enter a [10.0.0.1] inside n1"]);
    let answered = script.done(Outcome::Entered(Err(Error::new("no ipset"))));
    assert_eq!(answered, ["reply 1: ambient", "publish a Some(Enabled)", "check n1"]);
    assert!(script.state.not_ready().contains(&"host rules: no ipset".to_owned()));
    script.done(Outcome::Checked(Ok(Differences::default()), None));
    assert_eq!(script.pass(Duration::from_millis(6)), ["enter a [10.0.0.1] inside n1"]);
    script.done(Outcome::Entered(Ok(())));
    assert_eq!(script.pass(Duration::from_millis(2100)), ["host, pruned"]);
    script.done(Outcome::Hosted(Ok(HostLook::default())));
    assert_eq!(script.state.not_ready(), NOTHING);
}

#[test]
fn nothing_is_pruned_while_a_pod_lacks_its_address() {
    let mut script = Script::node_with_pod();
    let mut waiting = pod("b", true);
    waiting.ips.clear();
    script.source(Notice::Pod(Box::new(waiting.clone())));
    let due = script.pass(Duration::from_secs(30));
    assert!(due.contains(&"host, pruned but for b".to_owned()), "it has never been in the mesh: {due:?}");
    let mut script = Script::node_with_pod();
    waiting.annotations.insert("ambient.istio.io/redirection".to_owned(), "enabled".to_owned());
    script.source(Notice::Pod(Box::new(waiting)));
    let due = script.pass(Duration::from_secs(30));
    assert!(due.contains(&"host".to_owned()), "{due:?}");
}

#[test]
fn what_is_left_of_others_is_thrown_out_as_soon_as_the_pods_are_known() {
    let mut script = Script::after(node_config(), vec![record("gone")], Published::new());
    assert_eq!(script.step(Event::Tick), ["host"]);
    script.source(namespace());
    script.source(annotated("a", true, "enabled"));
    // The first look is still under way.
    assert_eq!(script.source(Notice::Synced), ["walk a", "leave gone"]);
    assert_eq!(script.done(Outcome::Hosted(Ok(HostLook::default()))), NOTHING);
    let found = script.done_at("walk a", Outcome::Walked(Ok(Walked::default())));
    assert!(found.contains(&"host, pruned but for a".to_owned()), "it is still looked for: {found:?}");
}

#[test]
fn a_pod_of_an_earlier_run_is_entered_whether_there_is_a_ztunnel_or_not() {
    let mut script = Script::after(node_config(), vec![record("a")], Published::new());
    script.step(Event::Tick);
    script.done(Outcome::Hosted(Ok(HostLook::default())));
    script.source(namespace());
    script.source(annotated("a", true, "enabled"));
    assert_eq!(script.source(Notice::Synced), ["walk a"]);
    assert_eq!(script.walked(&[("a", "n1")]), ["enter a [10.0.0.1] inside n1", "host, pruned but for a"]);
    assert_eq!(script.done(Outcome::Entered(Ok(()))), ["apply n1 without dns"]);
    script.done(Outcome::Hosted(Ok(HostLook::default())));
    // And one that joins the mesh while there is none, once it has rules.
    assert_eq!(script.applied(), ["check n1"]);
    script.done(Outcome::Checked(Ok(Differences::default()), None));
    script.source(Notice::Pod(Box::new(pod("b", true))));
    assert_eq!(script.pass(Duration::from_millis(2001)), ["walk b"]);
    assert_eq!(script.walked(&[("b", "n2")]), ["apply n2, remembered"]);
    assert_eq!(script.applied(), ["enter b [10.0.0.1] inside n2"]);
    assert_eq!(script.done(Outcome::Entered(Ok(()))), ["publish b Some(Pending)", "check n2"]);
}

#[test]
fn what_was_annotated_before_us_is_looked_for() {
    let mut script = Script::after(node_config(), Vec::new(), Published::new());
    script.step(Event::Tick);
    script.done(Outcome::Hosted(Ok(HostLook::default())));
    script.source(namespace());
    script.source(annotated("a", true, "enabled"));
    script.source(annotated("b", false, "pending"));
    script.source(annotated("c", false, "something else"));
    assert_eq!(script.source(Notice::Synced), ["walk a b"]);
    let walked = script.walked(&[("a", "n1"), ("b", "n2")]);
    assert_eq!(walked, ["enter a [10.0.0.1] inside n1", "leave b", "host, pruned but for a"]);
    assert_eq!(script.ztunnel(Zds::Connected(ConnectionId(1))), ["snapshot 1: add a n1"]);
    assert_eq!(script.acked(1), NOTHING);
    assert_eq!(script.done(Outcome::Entered(Ok(()))), ["recognise n1 among 4"]);
    let left = script.done(Outcome::Left(Ok(())));
    assert_eq!(left, ["publish b None", "remove n2"]);
    script.done(Outcome::Hosted(Ok(HostLook::default())));
    // Nothing that is worth keeping.
    assert_eq!(script.done(Outcome::Recognised(Ok(None))), ["apply n1, remembered"]);
    assert_eq!(script.removed(), ["remember b"]);
    assert_eq!(script.applied(), ["check n1"], "it is published as it should be");
}

#[test]
fn rules_that_were_found_stay_as_they_are_unless_asked_otherwise() {
    let other = NodeSettings { dns_capture: !node_settings().dns_capture, ..node_settings() };
    for reconcile in [false, true] {
        let config = Config { reconcile_on_startup: reconcile, host_side: false, ..node_config() };
        let mut script = Script::after(config, Vec::new(), Published::new());
        script.source(namespace());
        script.source(annotated("a", true, "enabled"));
        script.source(Notice::Synced);
        script.ztunnel(Zds::Connected(ConnectionId(1)));
        let found = script.walked(&[("a", "n1")]);
        if reconcile {
            assert!(found.contains(&"apply n1, remembered".to_owned()), "{found:?}");
            continue;
        }
        assert!(found.contains(&"recognise n1 among 4".to_owned()), "{found:?}");
        script.acked(1);
        assert_eq!(script.done(Outcome::Recognised(Ok(Some(other)))), ["check n1"]);
        // What differs from those is put right by those.
        let wrong = different("gone");
        assert_eq!(script.done(Outcome::Checked(Ok(wrong), None)), ["apply n1 without dns, remembered"]);
    }
}

#[test]
fn what_is_published_is_what_stands_on_the_object() {
    let status = |script: &Script| {
        let status: view::Status = serde_json::from_str(&script.state.status()).unwrap();
        let pod = status.pods.into_iter().next().unwrap();
        (pod.redirection, pod.reason)
    };
    let mut script = Script::node_with_pod();
    assert_eq!(status(&script).0, None, "it was asked for, and nobody has answered");
    let enabled = Some(Redirection::Enabled);
    let published = |result: Result<(), String>| Event::Published("a".to_owned(), enabled, result);
    for _ in 0..11 {
        assert_eq!(script.step(published(Err("forbidden".to_owned()))), NOTHING);
    }
    let (redirection, reason) = status(&script);
    assert_eq!(redirection, None);
    assert!(reason.ends_with("; its annotation cannot be written (11 tries): forbidden"), "{reason}");
    let told = script.search_in_vain(Duration::from_secs(38), &[]);
    assert_eq!(told, ["announce a: annotation ambient.istio.io/redirection cannot be written: forbidden"]);
    script.step(published(Ok(())));
    let (redirection, reason) = status(&script);
    assert_eq!((redirection, reason.contains("annotation")), (enabled, false), "{reason}");
    // Somebody takes it away.
    script.source(Notice::Pod(Box::new(pod("a", true))));
    assert_eq!(status(&script).0, None);
}

#[test]
fn a_stale_annotation_of_the_watch_changes_nothing() {
    let mut script = Script::node_with_pod();
    assert_eq!(script.source(Notice::Pod(Box::new(pod("a", true)))), NOTHING);
    assert_eq!(script.source(annotated("a", true, "pending")), NOTHING);
    assert_eq!(script.source(annotated("a", true, "enabled")), NOTHING);
}

#[test]
fn a_pod_of_an_unknown_namespace_is_looked_up() {
    let mut script = Script::node();
    script.source(Notice::NamespaceGone("default".to_owned()));
    script.source(Notice::Pod(Box::new(pod("a", false))));
    assert_eq!(script.add("a", "n1"), ["look up default/a"], "its namespace may put it into the mesh");
    let name = PodName { namespace: "default".to_owned(), name: "a".to_owned() };
    let labels = StringMap::from([("mesh".to_owned(), "on".to_owned())]);
    script.source(Notice::Namespace(Namespace { name: "default".to_owned(), labels }));
    assert_eq!(script.source(Notice::LookedUp(name.clone(), None)), ["apply n1, remembered"]);
    script.source(Notice::NamespaceGone("default".to_owned()));
    script.source(Notice::Pod(Box::new(pod("b", false))));
    assert_eq!(script.add("b", "n2"), ["look up default/b"]);
    let name = PodName { name: "b".to_owned(), ..name };
    let trouble = Some("connection refused".to_owned());
    assert_eq!(
        script.source(Notice::LookedUp(name, trouble)),
        ["reply 2: 11 the test cannot tell about pod default/b: connection refused"]
    );
}

impl Script {
    /// Time passes, and no search finds anything; what people are told meanwhile.
    fn search_in_vain(&mut self, time: Duration, refused: &[&str]) -> Vec<String> {
        let end = self.now + time;
        let mut told = Vec::new();
        while self.now < end {
            told.extend(self.wait(end - self.now));
            while let Some(at) = self.work.iter().position(|(_, work, _)| work.starts_with("walk")) {
                let (id, ..) = self.work.remove(at);
                let why = refused.iter().map(|why| (*why).to_owned()).collect();
                let walked = Walked { refused: BTreeMap::from([("a".to_owned(), why)]), ..Walked::default() };
                told.extend(self.step(Event::Done(id, Outcome::Walked(Ok(walked)))));
            }
        }
        told.retain(|line| line.starts_with("announce"));
        told
    }
}

#[test]
fn people_are_told_once_what_is_still_lost_one_verification_later() {
    let mut script = Script::node();
    script.source(annotated("a", true, "enabled"));
    assert_eq!(script.search_in_vain(Duration::from_secs(39), &[]), NOTHING);
    assert_eq!(script.state.enrolments(), [("pending", 0), ("enrolled", 0), ("lost", 1)]);
    let lost = "announce a: lost: no running process of the pod has its address";
    assert_eq!(script.search_in_vain(Duration::from_secs(2), &[]), [lost]);
    assert_eq!(script.search_in_vain(Duration::from_secs(200), &[]), NOTHING);
    // Whoever only says that he is the pod is told of, and does not get its place.
    let refused = "announce a: lost: no running process of the pod has its address; refused this; and that";
    assert_eq!(script.search_in_vain(Duration::from_secs(80), &["this", "that"]), [refused]);
    assert_eq!(script.state_of("a"), "lost");
}

#[test]
fn what_is_over_by_then_is_told_to_nobody() {
    let lost = || {
        let mut script = Script::node();
        script.source(annotated("a", true, "enabled"));
        assert_eq!(script.search_in_vain(Duration::from_secs(20), &[]), NOTHING);
        assert_eq!(script.state_of("a"), "lost");
        script
    };
    // It ends.
    let ending = Object { being_deleted: true, ..pod("a", true) };
    let finished = Object { phase: crate::pod::types::Phase::Finished, ..pod("a", true) };
    for end in [Notice::Pod(Box::new(ending)), Notice::Pod(Box::new(finished)), Notice::PodGone("a".to_owned())] {
        let mut script = lost();
        script.source(end);
        assert_eq!(script.search_in_vain(Duration::from_secs(100), &[]), NOTHING);
    }
    // It is found, its address having been that of before.
    let mut script = lost();
    let again = Object { ips: vec!["10.0.0.2".parse().unwrap()], ..pod("a", true) };
    script.source(Notice::Pod(Box::new(again)));
    while !script.work.iter().any(|(_, work, _)| work.starts_with("walk")) {
        script.wait(Duration::from_secs(10));
    }
    script.work.retain(|(_, work, _)| work.starts_with("walk"));
    assert_eq!(script.walked(&[("a", "n1")]), ["enter a [10.0.0.2] inside n1"]);
    assert_eq!(script.done(Outcome::Entered(Ok(()))), ["recognise n1 among 4"]);
    assert_eq!(script.done(Outcome::Recognised(Err(Error::new("no")))), ["apply n1, remembered"]);
    assert_eq!(script.applied(), ["send 1: add a n1", "check n1"]);
    assert_eq!(script.acked(1), NOTHING);
    assert_eq!(script.done(Outcome::Checked(Ok(Differences::default()), None)), NOTHING);
    assert_eq!(script.search_in_vain(Duration::from_secs(100), &[]), NOTHING);
    assert_eq!(script.state_of("a"), "enrolled");
}

#[test]
fn a_sandbox_that_was_replaced_is_followed() {
    let mut script = Script::node_with_pod();
    let due = script.pass(Duration::from_secs(30));
    assert_eq!(due, ["check n1", "host, pruned", "compare a"]);
    script.done(Outcome::Checked(Ok(Differences::default()), None));
    script.done(Outcome::Hosted(Ok(HostLook::default())));
    let netns = script.netns("n2");
    let moved = BTreeMap::from([("a".to_owned(), Some(netns))]);
    assert_eq!(script.done(Outcome::Compared(Ok(moved))), ["apply n2, remembered"]);
    assert_eq!(script.applied(), ["send 1: add a n2", "enter a [10.0.0.1] inside n2"]);
    assert_eq!(script.acked(1), NOTHING);
    assert_eq!(script.done(Outcome::Entered(Ok(()))), ["check n2"]);
    let checked = script.done(Outcome::Checked(Ok(Differences::default()), None));
    assert_eq!(checked, NOTHING, "who is left in the old one stays cut off");
    assert_eq!(script.state_of("a"), "enrolled");
}

#[test]
fn processes_elsewhere_without_the_address_are_shown_and_change_nothing() {
    let mut script = Script::node_with_pod();
    script.pass(Duration::from_secs(30));
    script.done(Outcome::Checked(Ok(Differences::default()), None));
    script.done(Outcome::Hosted(Ok(HostLook::default())));
    let moved = BTreeMap::from([("a".to_owned(), None)]);
    assert_eq!(script.done(Outcome::Compared(Ok(moved))), NOTHING);
    assert_eq!(script.state_of("a"), "lost");
    let due = script.pass(Duration::from_secs(30));
    assert!(due.contains(&"compare a".to_owned()), "{due:?}");
    script.done(Outcome::Checked(Ok(Differences::default()), None));
    script.done(Outcome::Hosted(Ok(HostLook::default())));
    assert_eq!(script.done(Outcome::Compared(Ok(BTreeMap::new()))), NOTHING);
    assert_eq!(script.state_of("a"), "enrolled");
}

#[test]
fn a_stop_waits_for_what_runs_without_looking_at_anything_else() {
    let mut script = Script::node_with_pod();
    assert_eq!(script.pass(Duration::from_secs(28)), NOTHING);
    assert_eq!(script.source(Notice::PodGone("a".to_owned())), ["leave a"]);
    assert_eq!(script.step(Event::Stop(Stop::Signal("SIGTERM"))), NOTHING);
    assert_eq!(script.pass(Duration::from_secs(5)), ["exit"], "what hangs is not waited for beyond the limit");
}
