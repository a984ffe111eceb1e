//! Which ztunnel is told what, and what a refusal brings about.

use super::*;

#[test]
fn adds_go_to_the_newest_and_deletes_to_all() {
    let mut script = Script::enrolled();
    assert_eq!(script.ztunnel(Zds::Connected(ConnectionId(2))), ["snapshot 2: add a n1"]);
    assert_eq!(script.acked(2), NOTHING);
    script.source(Notice::Pod(Box::new(pod("b", true))));
    script.add("b", "n2");
    assert_eq!(script.applied(), ["send 2: add b n2"]);
    assert_eq!(
        script.ztunnel(Zds::Disconnected(ConnectionId(2), "gone".to_owned())),
        ["send 1: add b n2"],
        "the next newest gets what it missed"
    );
    script.sent.retain(|(id, _)| id.0 == 1);
    assert_eq!(script.acked(1), ["reply 2: ambient", "publish b Some(Enabled)"]);
    assert_eq!(script.ztunnel(Zds::Connected(ConnectionId(3))), ["snapshot 3: add a n1, add b n2"]);
    assert_eq!(script.ztunnel(Zds::Disconnected(ConnectionId(1), "gone".to_owned())), NOTHING);
    assert_eq!(script.state_of("a"), "pending", "an acknowledgement counts while its connection lives");
    script.acked(3);
    assert_eq!(script.state_of("a"), "enrolled");
    script.ztunnel(Zds::Connected(ConnectionId(4)));
    assert_eq!(
        script.del("a", "n1"),
        ["send 3: del a", "send 4: del a", "publish a None", "forget a", "reply 3: done"]
    );
}

#[test]
fn a_refusal_without_plugin_is_retried_with_back_off() {
    let mut script = Script::enrolled();
    script.ztunnel(Zds::Disconnected(ConnectionId(1), "gone".to_owned()));
    assert_eq!(script.state_of("a"), "pending");
    script.ztunnel(Zds::Connected(ConnectionId(2)));
    assert_eq!(script.answer(2, refused("lo is down")), NOTHING);
    let mut pauses = Vec::new();
    for _ in 0..12 {
        let before = script.now;
        assert_eq!(script.wait(Duration::from_secs(9)), ["send 2: add a n1"]);
        pauses.push((script.now - before).as_millis());
        script.answer(2, refused("lo is down"));
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000]);
    script.wait(Duration::from_secs(9));
    assert_eq!(script.acked(2), NOTHING);
    assert_eq!(script.state_of("a"), "enrolled");
}

/// A pod that ztunnel has acknowledged and in which it does not listen: it is told anew, once, and then people are.
#[test]
fn a_ztunnel_that_does_not_listen_is_told_anew_once() {
    let again = Duration::from_millis(500);
    let later = Duration::from_secs(30);
    // What is done after the look for which it is time then. Its processes are looked at too, now and then.
    let look = |script: &mut Script, after: Duration, ports: &[u16]| {
        let mut begun = script.wait(after);
        while begun == ["compare a"] {
            assert_eq!(script.done(Outcome::Compared(Ok(BTreeMap::new()))), NOTHING);
            begun = script.wait(after);
        }
        assert!(begun.contains(&"check n1".to_owned()), "{begun:?}");
        let listening = Some(ports.iter().copied().collect());
        let all = script.done(Outcome::Checked(Ok(Differences { listening, ..Differences::default() }), None));
        if begun.len() > 1 {
            assert_eq!(script.done(Outcome::Compared(Ok(BTreeMap::new()))), NOTHING);
        }
        all
    };
    let all = [15001, 15006, 15008, 15053];
    let mut script = Script::verified_every(later);
    assert_eq!(look(&mut script, later, &all), NOTHING);
    assert_eq!(look(&mut script, later, &[80]), NOTHING, "it may be about to listen");
    assert_eq!(look(&mut script, again, &[80]), ["send 1: del a", "send 1: add a n1"]);
    assert_eq!(script.state_of("a"), "pending");
    script.acked(1);
    script.acked(1);
    assert_eq!(script.state_of("a"), "enrolled");
    for after in [again, again, later, later] {
        assert_eq!(look(&mut script, after, &[80]), NOTHING, "told once");
    }
    assert_eq!(look(&mut script, later, &all), NOTHING);
    assert_eq!(look(&mut script, later, &[80]), NOTHING);
    assert_eq!(look(&mut script, again, &[80]), ["send 1: del a", "send 1: add a n1"], "and again after it was over");
}
