//! Objects that do not decode cost only themselves, lists without end are given up, and a server that is not followed
//! is told of.

use super::*;

impl Setup {
    /// Changes a pod's object into something that is not one.
    fn spoil(&self, n: u32, patch: &serde_json::Value) {
        self.server.merge(Kind::Pods, "team-a", &format!("web-{n}"), patch);
    }
}

impl Followed<Pod> {
    /// What was told of objects that cannot be read, without their keys.
    fn unreadable(&self) -> Vec<String> {
        let told = self.all_told().into_iter();
        told.filter(|t| t.starts_with('?')).filter_map(|t| Some(t.split_once(' ')?.1.to_owned())).collect()
    }
}

#[test]
fn an_object_that_does_not_decode_costs_only_itself() {
    let s = with_pods();
    s.spoil(1, &json!({ "status": { "podIP": "nonsense", "podIPs": [{ "ip": "nonsense" }] } }));
    let f = follow::<Pod>(&s.client, Options { page: 2, ..quick() });
    f.comes_to("the others", &[(0, "web"), (2, "web")]);
    eventually("synced", || f.told("synced") == 1);
    let why = "pod team-a/web-1: Pod team-a/web-1: status.podIPs: \"nonsense\" is not an IP address";
    assert_eq!(f.unreadable(), [why]);
    // While it is watched: the others go on, and each version is told once.
    let number = json!({ "spec": { "containers": [{ "name": "istio-proxy", "securityContext": { "runAsUser": 1_u64 << 32 } }] } });
    s.spoil(0, &number);
    s.label_pod(2, "on");
    f.comes_to("others", &[(0, "web"), (2, "on")]);
    eventually("told", || f.unreadable().len() == 2);
    assert!(f.unreadable()[1].starts_with("pod team-a/web-0: spec.containers[0].securityContext.runAsUser: "));
    // One that can be read again, and one whose end is told although it never could.
    s.spoil(0, &json!({ "spec": { "containers": null } }));
    s.label_pod(0, "again");
    f.comes_to("readable", &[(0, "again"), (2, "on")]);
    assert_eq!(s.server.count("GET /api/v1/pods?watch"), 1, "one watch brings them all");
    assert_eq!(s.server.count("GET /api/v1/pods?limit"), 2, "and one list");
}

#[test]
fn the_end_of_an_object_that_never_could_be_read_is_told() {
    let s = with_pods();
    s.spoil(1, &json!({ "metadata": { "labels": { "app": 7 } } }));
    let f = follow::<Pod>(&s.client, quick());
    eventually("synced", || f.told("synced") == 1);
    let key = f.all_told().iter().find_map(|t| t.strip_prefix('?')?.split(' ').next().map(str::to_owned)).unwrap();
    s.delete_pod(1);
    s.label_pod(0, "on");
    eventually("its end", || f.told(&format!("-{key}")) == 1);
    f.comes_to("the others", &[(0, "on"), (2, "web")]);
}

#[test]
fn a_list_whose_pages_never_end_is_given_up_and_tried_again() {
    let s = with_pods();
    s.server.misbehave("list pods", None, Fault::EndlessPages);
    let f = follow::<Pod>(&s.client, quick());
    eventually("tried again", || s.server.requests().iter().filter(|r| !r.contains("continue=")).count() > 2);
    assert_eq!(f.told("synced"), 0);
    s.server.behave();
    f.comes_to("list", &THREE);
    eventually("synced", || f.told("synced") == 1);
}

#[test]
fn a_server_that_is_not_followed_is_told_of_until_it_is() {
    let refusals =
        [Fault::Answer(403, None), Fault::Close, Fault::Answer(500, None), Fault::ErrorEvent(500), Fault::Garbage];
    std::thread::scope(|scope| {
        for fault in refusals {
            scope.spawn(move || {
                let s = with_pods();
                let f = follow::<Pod>(&s.client, Options { patience: Duration::from_secs(5), ..quick() });
                f.comes_to("list", &THREE);
                s.server.misbehave("watch pods", None, fault.clone());
                s.server.cut();
                let lags = || f.all_told().iter().filter(|t| t.starts_with("lags: ")).count();
                eventually(&format!("{fault:?}: told"), || lags() > 0);
                s.server.behave();
                s.label_pod(0, "on");
                f.comes_to(&format!("{fault:?}: followed"), &[(0, "on"), (1, "web"), (2, "web")]);
                eventually(&format!("{fault:?}: over"), || {
                    let last = f.all_told().into_iter().rev().find(|t| t.starts_with("lags") || t == "follows");
                    last.as_deref() == Some("follows")
                });
                // The trouble is over once a watch has told something. What was followed may have come by a list.
                s.label_pod(0, "proved");
                f.comes_to(&format!("{fault:?}: proved"), &[(0, "proved"), (1, "web"), (2, "web")]);
                // A watch that ends now and then, as watches do, is none of that.
                let before = lags();
                for n in 0..3 {
                    s.server.cut();
                    s.label_pod(0, &n.to_string());
                    f.comes_to("another watch", &[(0, &n.to_string()), (1, "web"), (2, "web")]);
                }
                assert_eq!(lags(), before, "{fault:?}");
            });
        }
    });
}
