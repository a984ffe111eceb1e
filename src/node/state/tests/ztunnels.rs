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
