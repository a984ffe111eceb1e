//! Race repair: pods with a sidecar that started before the plugin was there. Their validation is the real program, run
//! by the proxy's user in the pod's namespace; how it ends is written into the API server as a kubelet would.

use super::alone::{make_sidecar_pod, save};
use super::*;
use crate::apiserver::Fault;
use crate::support::program::istio_validation;
use ferrule::node::view::PodState;

const IP: &str = "10.51.1.2";
const VALIDATION: &str = "istio-validation";

/// A broken pod on a node whose agent is not there yet.
struct Race {
    world: World,
    root: TempDir,
    runs: u32,
}

impl Race {
    fn new(flags: &[&'static str]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut world = World::without_agent(flags);
        world.node.host_root = root.path().to_owned();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        Race { world, root, runs: 0 }
    }

    /// A pod whose sandbox has a process.
    fn pod(&self, name: &str, pid: u32, ip: &str) -> PodNetns {
        let netns = make_sidecar_pod(&self.world, name, json!({}), ip);
        put_process(self.root.path(), pid, &self.world.uid("plain", name), &netns);
        netns
    }

    /// One run of the validation: its exit code, once the kubelet has reported it. A container that fails waits for its
    /// next start, except in a pod that is not restarted.
    fn validate(&mut self, name: &str, netns: &PodNetns) -> i32 {
        let ended = netns.enter(|| finish(&mut istio_validation(&[]), b""));
        let code = ended.code.unwrap_or_else(|| panic!("{ended:?}"));
        self.report(name, code);
        code
    }

    fn report(&mut self, name: &str, code: i32) {
        self.runs += 1;
        let reason = if code == 0 { "Completed" } else { "Error" };
        let run = json!({ "terminated": {
            "exitCode": code, "reason": reason, "startedAt": "2026-11-30T05:13:01Z", "finishedAt": "2026-11-30T05:13:06Z",
            "containerID": format!("containerd://{:064x}", self.runs),
        } });
        self.status(name, code, &run, &json!({}));
        let never = self.world.server.get(Kind::Pods, "plain", name).unwrap()["spec"]["restartPolicy"] == "Never";
        if code != 0 && !never {
            let waiting = json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 10s restarting" } });
            self.status(name, code, &waiting, &run);
        }
    }

    fn status(&self, name: &str, code: i32, state: &Value, last: &Value) {
        let never = self.world.server.get(Kind::Pods, "plain", name).unwrap()["spec"]["restartPolicy"] == "Never";
        let phase = if never && code != 0 { "Failed" } else { "Pending" };
        let container = json!({ "name": VALIDATION, "ready": code == 0, "restartCount": self.runs - 1, "state": state,
            "lastState": last });
        let patch = json!({ "status": { "phase": phase, "initContainerStatuses": [container] } });
        self.world.server.merge(Kind::Pods, "plain", name, &patch);
    }

    fn repaired(&self, what: &str, result: &str) -> u32 {
        let line = format!("istio_cni_repair_pods_repaired_total{{type=\"{what}\",result=\"{result}\"}} ");
        let metrics = self.world.metrics();
        metrics.lines().find_map(|found| found.strip_prefix(&line)).map_or(0, |count| count.parse().unwrap())
    }

    fn event(&self, reason: &str) -> Option<Value> {
        self.world.server.events().into_iter().find(|event| event["reason"] == reason)
    }

    fn exists(&self, name: &str) -> bool {
        self.world.server.get(Kind::Pods, "plain", name).is_some()
    }
}

fn is_redirected(netns: &PodNetns) -> bool {
    save(netns).contains("-A ISTIO_OUTPUT -j ISTIO_REDIRECT")
}

fn is_repaired_in_place(flags: &[&'static str], restart_policy: &str) {
    let mut race = Race::new(&[flags, &["--repair-repair-pods"]].concat());
    let (netns, other) = (race.pod("web", 11, IP), race.pod("other", 12, "10.51.1.3"));
    race.world.server.merge(Kind::Pods, "plain", "web", &json!({ "spec": { "restartPolicy": restart_policy } }));
    assert_eq!(race.validate("web", &netns), 126);
    race.world.start_agent();
    eventually("repaired", || race.repaired("repair", "success") == 1);
    assert!(is_redirected(&netns), "{}", save(&netns));
    assert_eq!(race.validate("web", &netns), 0);
    eventually("noticed", || race.world.log().contains("not broken any more"));
    eventually("told", || race.event("RepairBrokenPod").is_some());
    let event = race.event("RepairBrokenPod").unwrap();
    assert_eq!((&event["source"]["component"], &event["source"]["host"]), (&json!("cni-repair"), &json!(NODE)));
    assert_eq!(event["involvedObject"]["uid"], json!(race.world.uid("plain", "web")));
    assert_eq!(event["type"], json!("Normal"));
    assert!(!is_redirected(&other), "a pod whose validation has not failed is left alone");
    assert_eq!((race.repaired("repair", "fail"), race.repaired("repair", "skip")), (0, 0));
}

#[test]
fn a_broken_pod_is_repaired_in_place() {
    is_repaired_in_place(&[], "Always");
}

#[test]
fn a_broken_pod_is_repaired_in_place_without_ambient_mode_too() {
    is_repaired_in_place(&["--ambient-enabled=false"], "Always");
}

#[test]
fn a_job_that_is_not_restarted_is_repaired_in_place() {
    is_repaired_in_place(&[], "Never");
}

#[test]
fn a_pod_that_breaks_while_the_agent_runs_and_one_that_fails_again() {
    let mut race = Race::new(&["--repair-repair-pods"]);
    race.world.start_agent();
    let netns = race.pod("web", 11, IP);
    assert_eq!(race.validate("web", &netns), 126);
    eventually("repaired", || race.repaired("repair", "success") == 1);
    // Somebody takes the rules out before its next start.
    run_in(netns.netns(), "sh", &["-ec", "for b in nft legacy; do iptables-$b -t nat -F; done"]);
    assert_eq!(race.validate("web", &netns), 126);
    eventually("repaired again", || race.repaired("repair", "success") == 2);
    assert_eq!(race.validate("web", &netns), 0);
    // Another pod of the same name is repaired like any other.
    race.world.server.delete(Kind::Pods, "plain", "web");
    let netns = race.pod("web", 13, "10.51.1.4");
    assert_eq!(race.validate("web", &netns), 126);
    eventually("its namesake too", || race.repaired("repair", "success") == 3);
    assert!(is_redirected(&netns), "{}", save(&netns));
}

#[test]
fn a_finished_job_whose_sandbox_is_gone_is_deleted_if_that_is_on() {
    let mut race = Race::new(&["--repair-repair-pods", "--repair-delete-pods"]);
    let _netns = make_sidecar_pod(&race.world, "web", json!({}), IP);
    race.world.server.merge(Kind::Pods, "plain", "web", &json!({ "spec": { "restartPolicy": "Never" } }));
    race.report("web", 126);
    race.world.start_agent();
    eventually("deleted", || !race.exists("web"));
    eventually("told", || race.event("RepairBrokenPod").is_some() && race.event("DeleteBrokenPod").is_some());
    let why = race.event("RepairBrokenPod").unwrap();
    assert!(why["message"].as_str().unwrap().contains("it has finished"), "{why}");
    assert_eq!((race.repaired("repair", "fail"), race.repaired("delete", "success")), (1, 1));
}

#[test]
fn a_pod_that_is_not_ours_to_redirect_is_neither_repaired_nor_deleted() {
    let mut race = Race::new(&["--repair-repair-pods", "--repair-delete-pods"]);
    let netns = make_sidecar_pod(&race.world, "web", json!({ "sidecar.istio.io/inject": "false" }), IP);
    put_process(race.root.path(), 11, &race.world.uid("plain", "web"), &netns);
    race.report("web", 126);
    race.world.start_agent();
    eventually("told", || race.event("RepairBrokenPod").is_some());
    eventually("counted", || race.repaired("repair", "skip") == 1);
    assert!(race.exists("web") && !is_redirected(&netns));
    assert_eq!(race.world.server.count("DELETE "), 0);
}

#[test]
fn deletions_are_limited() {
    let mut race = Race::new(&["--ambient-enabled=false", "--repair-delete-pods"]);
    let names: Vec<String> = (0..8).map(|n| format!("web-{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        drop(make_sidecar_pod(&race.world, name, json!({}), &format!("10.51.2.{n}")));
        race.report(name, 126);
    }
    race.world.start_agent();
    eventually("the others wait", || race.repaired("delete", "skip") == 3);
    eventually("deleted", || race.repaired("delete", "success") == 5);
    eventually("told", || race.event("DeleteBrokenPod").is_some());
    assert_eq!(race.event("DeleteBrokenPod").unwrap()["type"], json!("Warning"));
    // More news of those that wait changes nothing.
    for name in names.iter().filter(|name| race.exists(name)).cloned().collect::<Vec<_>>() {
        race.report(&name, 126);
    }
    let known = |name: &String| race.world.pod(name).is_some_and(|pod| pod.state == PodState::None);
    eventually("the news has come", || names.iter().filter(|name| race.exists(name)).all(known));
    assert_eq!((names.iter().filter(|name| race.exists(name)).count(), race.world.server.count("DELETE ")), (3, 5));
}

/// The API server refuses one deletion, and what it says of pods after that does not arrive: another one is tried a
/// second later, of the pod as it was.
fn with_old_news(change: impl FnOnce(&Race)) -> Race {
    let mut race = Race::new(&["--repair-delete-pods"]);
    drop(make_sidecar_pod(&race.world, "web", json!({}), IP));
    race.report("web", 126);
    race.world.server.misbehave("watch pods", None, Fault::SilenceAfterHead);
    race.world.server.misbehave("delete pods", 1, Fault::Answer(500, None));
    race.world.start_agent();
    eventually("tried", || race.world.server.count("DELETE ") == 1);
    change(&race);
    eventually("tried again", || race.world.server.count("DELETE ") == 2);
    eventually("refused", || race.repaired("delete", "skip") == 1);
    assert!(race.exists("web"));
    race.world.server.behave();
    race.world.server.cut();
    race
}

#[test]
fn a_pod_that_has_changed_is_not_deleted_before_it_is_looked_at_again() {
    let race = with_old_news(|race| {
        race.world.server.merge(Kind::Pods, "plain", "web", &json!({ "metadata": { "labels": { "a": "b" } } }));
    });
    eventually("deleted as it is now", || !race.exists("web"));
    assert_eq!(race.repaired("delete", "success"), 1);
}

#[test]
fn another_pod_of_the_same_name_is_not_deleted() {
    let race = with_old_news(|race| {
        let uid = race.world.uid("plain", "web");
        race.world.server.delete(Kind::Pods, "plain", "web");
        drop(make_sidecar_pod(&race.world, "web", json!({}), IP));
        assert_ne!(race.world.uid("plain", "web"), uid);
    });
    let uid = race.world.uid("plain", "web");
    eventually("the new one is known", || race.world.pod("web").is_some_and(|pod| pod.uid == uid));
    assert!(race.exists("web"));
    assert_eq!(race.repaired("delete", "success"), 0);
}

#[test]
fn a_broken_pod_is_labelled_once() {
    let mut race = Race::new(&["--repair-label-pods"]);
    let netns = race.pod("web", 11, IP);
    assert_eq!(race.validate("web", &netns), 126);
    race.world.start_agent();
    let label = |race: &Race| {
        let pod = race.world.server.get(Kind::Pods, "plain", "web").unwrap();
        pod["metadata"]["labels"]["cni.istio.io/uninitialized"].clone()
    };
    eventually("labelled", || label(&race) == json!("true"));
    eventually("told", || race.event("LabelBrokenPod").is_some());
    race.report("web", 126);
    eventually("seen to be labelled", || race.repaired("label", "skip") == 1);
    let uid = race.world.uid("plain", "web");
    let body = json!({ "metadata": { "uid": uid, "labels": { "cni.istio.io/uninitialized": "true" } } });
    let patches = race.world.server.patches();
    assert_eq!(patches.iter().map(|patch| &patch.body).collect::<Vec<_>>(), [&body]);
    let asked = race.world.server.requests();
    let patch = "PATCH /api/v1/namespaces/plain/pods/web/status";
    assert_eq!(asked.iter().filter(|request| request.starts_with("PATCH ")).collect::<Vec<_>>(), [patch]);
    assert_eq!(race.repaired("label", "success"), 1);
    assert!(!is_redirected(&netns) && race.exists("web"));
}

#[test]
fn an_api_server_that_takes_no_events_holds_nothing_up() {
    let mut race = Race::new(&["--repair-repair-pods"]);
    race.world.server.misbehave("create events", None, Fault::Answer(403, None));
    let (a, b) = (race.pod("a", 11, IP), race.pod("b", 12, "10.51.1.3"));
    race.report("a", 126);
    race.report("b", 126);
    race.world.start_agent();
    eventually("repaired", || race.repaired("repair", "success") == 2);
    assert!(is_redirected(&a) && is_redirected(&b));
    eventually("said", || race.world.log().contains("Events on pods are off"));
    assert_eq!(race.validate("a", &a), 0);
}

#[test]
fn only_pods_that_match_and_only_where_it_is_on() {
    let filters =
        ["--repair-repair-pods", "--repair-label-selectors=team in (a)", "--repair-field-selectors=metadata.name!=no"];
    let mut race = Race::new(&filters);
    let labels = json!({ "metadata": { "labels": { "team": "a" } } });
    let (yes, no, other) =
        (race.pod("yes", 11, IP), race.pod("no", 12, "10.51.1.3"), race.pod("other", 13, "10.51.1.4"));
    for name in ["no", "other", "yes"] {
        if name != "other" {
            race.world.server.merge(Kind::Pods, "plain", name, &labels);
        }
        race.report(name, 126);
    }
    race.world.start_agent();
    eventually("repaired", || race.repaired("repair", "success") == 1);
    assert!(is_redirected(&yes) && !is_redirected(&no) && !is_redirected(&other));

    let mut off = Race::new(&["--repair-repair-pods", "--repair-enabled=false"]);
    let netns = off.pod("web", 11, IP);
    off.report("web", 126);
    off.world.start_agent();
    off.world.add("plain", "web", &netns, IP);
    assert_eq!(off.repaired("repair", "success"), 0);
}
