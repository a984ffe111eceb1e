//! Race repair: broken pods found, redirected, deleted and labelled.

use super::*;
use crate::repair::Options;
use crate::repair::detect::Filter;
use crate::repair::order::End;

/// Pod `default/s` with a sidecar, whose container ended: which run of it, and with what.
fn ended(run: &str, code: i32, phase: &str, more: &str) -> Notice {
    let text = format!(
        r#"{{"kind":"Pod","metadata":{{"name":"s","uid":"s","annotations":{{"sidecar.istio.io/status":"{{}}"{more}}}}},
        "spec":{{"containers":[{{"name":"istio-proxy"}}]}},"status":{{"phase":"{phase}","podIP":"10.0.0.9",
        "initContainerStatuses":[{{"name":"istio-validation","state":{{"waiting":{{}}}},"lastState":{{"terminated":
        {{"exitCode":{code},"containerID":"{run}"}}}}}}]}}}}"#
    );
    Notice::Pod(Box::new(crate::pod::object::decode(&text).unwrap().pods.remove(0)))
}

fn broken(run: &str) -> Notice {
    ended(run, 126, "Pending", "")
}

fn script(repair: bool, delete: bool) -> Script {
    let filter = Filter { container: "istio-validation".to_owned(), exit_code: 126, ..Filter::default() };
    let repair = Options { filter, repair, delete, label: None };
    Script::after(Config { repair: Some(repair), cluster: true, ..config() }, Vec::new(), Published::new())
}

impl Script {
    fn found(&mut self, netns: Option<&'static str>) -> Vec<String> {
        let found = netns.map(|name| ("s".to_owned(), self.netns(name)));
        self.done(Outcome::Walked(Ok(Walked { found: found.into_iter().collect(), ..Walked::default() })))
    }
}

#[test]
fn a_broken_pod_is_found_and_redirected_and_again_when_it_fails_again() {
    let mut script = script(true, false);
    assert_eq!(script.source(broken("r1")), [""; 0], "not before everything is known");
    assert_eq!(script.source(Notice::Synced), ["walk s"]);
    assert_eq!(script.source(broken("r1")), [""; 0]);
    assert_eq!(script.found(Some("n")), ["redirect n Redirect of [10.0.0.9]"]);
    let told = script.done(Outcome::Redirected(Ok(())));
    assert!(told.len() == 1 && told[0].starts_with("announce s: RepairBrokenPod "), "{told:?}");
    assert_eq!(script.source(broken("r1")), [""; 0]);
    assert_eq!(script.source(broken("r2")), [""; 0], "after a pause");
    script.now += Duration::from_secs(1);
    assert_eq!(script.step(Event::Tick), ["walk s"]);
    assert_eq!(script.found(Some("n")), ["redirect n Redirect of [10.0.0.9]"]);
    script.done(Outcome::Redirected(Ok(())));
    assert_eq!(script.source(ended("r3", 0, "Running", "")), [""; 0]);
}

#[test]
fn an_add_into_the_same_namespace_and_the_repair_are_one() {
    let mut script = script(true, false);
    script.source(Notice::Namespace(Namespace { name: "default".to_owned(), labels: StringMap::new() }));
    script.source(Notice::Synced);
    assert_eq!(script.source(broken("r1")), ["walk s"]);
    let walk = script.work.remove(0);
    assert_eq!(script.add("s", "n"), ["redirect n Redirect of [10.0.0.9]"]);
    let found = [("s".to_owned(), script.netns("n"))].into_iter().collect();
    assert_eq!(script.step(Event::Done(walk.0, Outcome::Walked(Ok(Walked { found, ..Walked::default() })))), [""; 0]);
    let told = script.done(Outcome::Redirected(Ok(())));
    assert!(told.len() == 2 && told[0].starts_with("announce s: RepairBrokenPod ") && told[1] == "reply 1: sidecar");
}

#[test]
fn a_pod_that_cannot_be_redirected_is_deleted_if_that_is_on() {
    let mut script = script(true, true);
    script.source(Notice::Synced);
    script.source(ended("r1", 126, "Failed", ""));
    let told = script.found(None);
    assert!(told[0].contains("it has finished, and is not started again"), "{told:?}");
    assert!(told[1].starts_with("Delete { uid: \"s\""), "{told:?}");
    let told = script.step(Event::Remedied("s".to_owned(), End::Done));
    assert!(told.len() == 1 && told[0].starts_with("announce s: DeleteBrokenPod "), "{told:?}");
    script.source(Notice::PodGone("s".to_owned()));
    assert_eq!(script.state.deadline(), None);
    // In a namespace that is still there it is repaired all the same.
    script.source(ended("r1", 126, "Failed", ""));
    assert_eq!(script.found(Some("n")), ["redirect n Redirect of [10.0.0.9]"]);
}

#[test]
fn a_pod_that_is_not_ours_to_redirect_is_left_alone() {
    for more in [r#","sidecar.istio.io/inject":"false""#, r#","sidecar.istio.io/interceptionMode":"BOTH""#] {
        let mut script = script(true, true);
        script.source(Notice::Synced);
        let told = script.source(ended("r1", 126, "Pending", more));
        assert!(told.len() == 1 && told[0].starts_with("announce s: RepairBrokenPod "), "{told:?}");
        assert_eq!(script.state.deadline(), None);
    }
    let mut excluded = script(true, true);
    excluded.state.node.config.policy.exclude_namespaces = vec!["default".to_owned()];
    excluded.source(Notice::Synced);
    assert_eq!(excluded.source(broken("r1")), [""; 0]);
    let mut off = Script::new();
    off.source(Notice::Synced);
    assert_eq!(off.source(broken("r1")), [""; 0]);
}

#[test]
fn nothing_new_is_begun_when_stopping() {
    let mut script = script(true, false);
    script.source(Notice::Synced);
    assert_eq!(script.source(broken("r1")), ["walk s"]);
    assert_eq!(script.step(Event::Stop(Stop::Signal("SIGTERM"))), ["exit"], "a search is not waited for");
}

#[test]
fn a_check_of_a_pod_with_a_sidecar() {
    let mut script = script(false, false);
    script.source(Notice::Synced);
    script.source(broken("r1"));
    assert_eq!(script.check("s", "n"), ["inspect n Redirect"]);
    assert_eq!(script.done(Outcome::Inspected(Ok(Vec::new()))), ["reply 1: done"]);
    assert_eq!(script.check("s", "n"), ["inspect n Redirect"]);
    assert_eq!(
        script.done(Outcome::Inspected(Ok(vec!["no jump".to_owned()]))),
        ["reply 2: 100 the redirection to the sidecar is not in place: no jump"]
    );
}
