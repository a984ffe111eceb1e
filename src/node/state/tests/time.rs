//! Time that stands still, or that a machine takes back: nothing is lost, and nothing waits for ever.

use super::*;

/// The rules, ztunnel and the answer, while each event comes as much earlier than the one before it.
fn enrol_and_withdraw(script: &mut Script, back: Duration) {
    let earlier = |script: &mut Script| script.now = script.now.checked_sub(back).unwrap();
    assert_eq!(script.add("a", "n1"), ["apply n1, remembered"]);
    earlier(script);
    assert_eq!(script.applied(), ["send 1: add a n1"]);
    earlier(script);
    assert_eq!(script.acked(1), ["reply 1: ambient", "publish a Some(Enabled)"]);
    earlier(script);
    assert_eq!(script.del("a", "n1"), ["send 1: del a", "publish a None", "forget a", "reply 2: done"]);
}

#[test]
fn an_enrolment_needs_no_time() {
    for back in [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(60)] {
        enrol_and_withdraw(&mut Script::running(), back);
    }
}

#[test]
fn what_was_due_comes_due_again() {
    let mut script = Script::running();
    assert_eq!(script.add("a", "n1"), ["apply n1, remembered"]);
    // It fails, its ADD with it, and a new sandbox comes; then the same from the watch, where it is tried again.
    script.applied();
    let begin = script.now;
    script.now = begin.checked_sub(Duration::from_secs(30)).unwrap();
    // ztunnel says nothing: the ADD still ends, once its time has come.
    let said = script.pass(Duration::from_secs(40));
    assert!(said.iter().any(|line| line.starts_with("remove n1")), "{said:?}");
    assert!(script.now <= begin + Duration::from_secs(10) && script.state.deadline().is_none_or(|at| at > script.now));
}
