//! The controller as scripts of pods, orders and time.

use super::*;
use crate::pod::object::Versioned;
use crate::repair::deletions::DELETIONS;
use crate::repair::detect::Filter;
use crate::sys::clock;
use std::time::Duration;

struct Script {
    controller: Controller,
    now: Instant,
}

fn options(repair: bool, delete: bool, label: bool) -> Options {
    let label = label.then(|| ("cni.istio.io/uninitialized".to_owned(), "true".to_owned()));
    let filter = Filter { container: "v".to_owned(), exit_code: 126, ..Filter::default() };
    Options { filter, repair, delete, label }
}

impl Script {
    fn new(repair: bool, delete: bool, label: bool) -> Self {
        Script { controller: Controller::new(options(repair, delete, label)).unwrap(), now: clock::now() }
    }

    /// The pod's container has ended: which run, and how.
    fn ended(&mut self, uid: &str, version: u32, run: &str, code: i32, labels: &str) {
        let text = format!(
            r#"{{"metadata":{{"name":"web","namespace":"a","uid":"{uid}","resourceVersion":"{version}","labels":{{{labels}}}}},
            "status":{{"initContainerStatuses":[{{"name":"v","state":{{"terminated":{{"exitCode":{code},"containerID":"{run}"}}}}}}]}}}}"#
        );
        let pod: Versioned<Pod> = serde_json::from_str(&text).unwrap();
        self.controller.observe(&pod.object, self.now);
    }

    fn fails(&mut self, uid: &str, version: u32, run: &str) {
        self.ended(uid, version, run, 126, "");
    }

    /// What is to be done now, in short.
    fn due(&mut self) -> Vec<String> {
        let orders = self.controller.due(self.now);
        assert!(self.controller.deadline().is_none_or(|at| at > self.now), "it would be asked again and again");
        let short = |order| match order {
            Order::Repair(uid) => format!("repair {uid}"),
            Order::Delete { uid, version, pod } => format!("delete {uid} {version} {pod}"),
            Order::Label { uid, key, value, .. } => format!("label {uid} {key}={value}"),
        };
        orders.into_iter().map(short).collect()
    }

    /// The seconds until something is due.
    fn pause(&self) -> Option<u64> {
        self.controller.deadline().map(|at| at.saturating_duration_since(self.now).as_secs())
    }

    fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    fn settled(&mut self, uid: &str, end: End) -> String {
        let notice = self.controller.settled(uid, end, self.now);
        notice.map_or(String::new(), |n| format!("{}{} {}", if n.warning { "!" } else { "" }, n.reason, n.message))
    }
}

#[test]
fn the_first_mode_that_is_on() {
    for (repair, delete, label, want) in [
        (true, true, true, "repair u"),
        (false, true, true, "delete u 1 a/web"),
        (false, false, true, "label u cni.istio.io/uninitialized=true"),
    ] {
        let mut script = Script::new(repair, delete, label);
        script.fails("u", 1, "r1");
        assert_eq!(script.due(), [want]);
        assert_eq!(script.due(), [""; 0], "it is under way");
    }
    assert!(Controller::new(options(false, false, false)).is_none());
}

#[test]
fn a_pod_is_repaired_once_for_each_failure_and_forgotten_when_it_is_right() {
    let mut script = Script::new(true, false, false);
    script.fails("u", 1, "r1");
    assert_eq!(script.due(), ["repair u"]);
    let told = script.settled("u", End::Done);
    assert!(told.starts_with("RepairBrokenPod pod detected as broken"), "{told}");
    // Reported again and again while it waits for its next start.
    for version in 2..5 {
        script.fails("u", version, "r1");
        assert_eq!((script.due().len(), script.pause()), (0, None));
    }
    script.ended("u", 6, "r2", 0, "");
    assert!(script.controller.cases.is_empty());
    script.fails("u", 7, "r3");
    assert_eq!(script.due(), ["repair u"], "a new sandbox, perhaps");
    // It is right before the order is done.
    script.ended("u", 8, "r4", 0, "");
    script.settled("u", End::Done);
    assert!(script.controller.cases.is_empty());
    // Another pod of that name is another pod.
    script.fails("w", 9, "r1");
    assert_eq!(script.due(), ["repair w"]);
    script.controller.gone("w");
    assert!(script.settled("w", End::Done).starts_with("RepairBrokenPod "), "it counts all the same");
    assert_eq!((script.controller.cases.len(), script.settled("w", End::Done).as_str()), (0, ""));
}

#[test]
fn what_does_not_help_is_done_again_with_pauses_and_then_deleted_if_that_is_on() {
    for delete in [true, false] {
        let mut script = Script::new(true, delete, false);
        script.fails("u", 1, "r0");
        for pause in [1, 2, 4] {
            assert_eq!(script.due(), ["repair u"]);
            script.settled("u", End::Done);
            script.fails("u", 1, &format!("r{pause}"));
            assert_eq!((script.due().len(), script.pause()), (0, Some(pause)));
            script.wait(pause);
        }
        assert_eq!(script.due(), ["repair u"]);
        script.settled("u", End::Done);
        script.fails("u", 2, "r-last");
        if delete {
            assert_eq!(script.due(), ["delete u 2 a/web"]);
        } else {
            assert_eq!((script.due().len(), script.pause()), (0, Some(8)));
        }
    }
}

#[test]
fn failures_are_told_once_and_tried_again_and_what_is_hopeless_is_deleted() {
    let mut script = Script::new(true, true, false);
    script.fails("u", 1, "r1");
    assert_eq!(script.due(), ["repair u"]);
    let told = script.settled("u", End::Failed("no process".into()));
    assert_eq!(told, "!RepairBrokenPod pod detected as broken, but failed to redirect it to its sidecar: no process");
    for pause in [1, 2] {
        assert_eq!(script.pause(), Some(pause));
        script.wait(pause);
        assert_eq!(script.due(), ["repair u"]);
        assert_eq!(script.settled("u", End::Failed("no process".into())), "");
    }
    script.wait(4);
    assert_eq!(script.due(), ["repair u"]);
    script.settled("u", End::Failed("no process".into()));
    assert_eq!(script.due(), ["delete u 1 a/web"]);
    let told = script.settled("u", End::Done);
    assert!(told.starts_with("!DeleteBrokenPod ") && told.ends_with("; deleted"), "{told}");

    script.fails("w", 1, "r1");
    assert_eq!(script.due(), ["repair w"]);
    assert!(script.settled("w", End::Hopeless("it has finished".into())).starts_with("!RepairBrokenPod"));
    assert_eq!(script.due(), ["delete w 1 a/web"]);

    script.fails("x", 1, "r1");
    assert_eq!(script.due(), ["repair x"]);
    assert!(script.settled("x", End::Refused("not ours".into())).contains("not ours"));
    assert_eq!((script.due().len(), script.pause()), (0, None), "not deleted");
}

#[test]
fn deletions_are_limited() {
    let mut script = Script::new(false, true, false);
    for pod in 0..12 {
        script.fails(&format!("u{pod:02}"), 1, "r");
    }
    let mut deleted = script.due();
    assert_eq!(deleted.len(), DELETIONS);
    script.wait(30);
    assert_eq!(script.due().len(), 0);
    assert_eq!(script.pause(), Some(30));
    script.wait(30);
    deleted.extend(script.due());
    assert_eq!(deleted.len(), 2 * DELETIONS);
    script.wait(60);
    deleted.extend(script.due());
    deleted.sort();
    deleted.dedup();
    assert_eq!(deleted.len(), 12);
}

#[test]
fn a_pod_that_has_changed_is_deleted_as_it_is_now_or_not_at_all() {
    let mut script = Script::new(false, true, false);
    script.fails("u", 1, "r1");
    assert_eq!(script.due(), ["delete u 1 a/web"]);
    assert_eq!(script.settled("u", End::Outdated), "");
    assert_eq!((script.due().len(), script.pause()), (0, None), "nothing is known of what it is now");
    script.fails("u", 2, "r1");
    assert_eq!(script.due(), ["delete u 2 a/web"]);
    // The news comes before the answer.
    script.fails("u", 3, "r1");
    script.settled("u", End::Outdated);
    assert_eq!(script.due(), ["delete u 3 a/web"]);
    script.settled("u", End::Outdated);
    script.ended("u", 4, "r2", 0, "");
    assert_eq!((script.due().len(), script.pause()), (0, None), "it is right now");
    // Once it is deleted, that is that.
    script.fails("w", 1, "r1");
    assert_eq!(script.due(), ["delete w 1 a/web"]);
    script.settled("w", End::Done);
    script.fails("w", 2, "r1");
    assert_eq!((script.due().len(), script.pause()), (0, None));
}

#[test]
fn a_label_is_put_on_once() {
    let mut script = Script::new(false, false, true);
    script.fails("u", 1, "r1");
    assert_eq!(script.due().len(), 1);
    assert!(script.settled("u", End::Done).starts_with("!LabelBrokenPod "));
    script.ended("u", 2, "r1", 126, r#""cni.istio.io/uninitialized":"true""#);
    assert_eq!((script.due().len(), script.pause()), (0, None));
    script.ended("u", 2, "r2", 126, r#""cni.istio.io/uninitialized":"true""#);
    script.wait(1);
    assert_eq!((script.due().len(), script.pause()), (0, None));
    script.ended("w", 1, "r1", 126, r#""cni.istio.io/uninitialized":"other""#);
    assert_eq!(script.due().len(), 0, "somebody has labelled it");
}
