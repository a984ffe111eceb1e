//! Single requests.

use super::{ENOUGH, NODE, at_once, eventually, setup, web};
use crate::apiserver::{Fault, Kind};
use ferrule::error::Kind as ErrorKind;
use ferrule::kube::api::{NewEvent, PodPatch};
use ferrule::kube::client::{Client, Patience};
use ferrule::kube::config::{Config, Options, Proxies, Source};
use ferrule::pod::types::PodName;
use serde_json::json;
use std::net::TcpListener;
use std::time::{Duration, Instant, SystemTime};

const ONCE: Patience = Patience::once(Duration::from_secs(10));
const REDIRECTION: &str = "ambient.istio.io/redirection";

#[test]
fn reads_pods_namespaces_nodes_and_daemonsets() {
    let s = setup();
    s.put_pod(0);
    s.server.put_namespace("team-a", json!({ "istio.io/dataplane-mode": "ambient" }));
    s.server.put(Kind::Nodes, json!({ "metadata": { "name": NODE, "labels": { "zone": "a" } } }));
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}}});
    s.server.put(
        Kind::DaemonSets,
        json!({"metadata": {"name": "istio-cni-node", "namespace": "istio-system"},
            "spec": {"template": {"spec": {"affinity": affinity}}}}),
    );
    let pod = s.client.get_pod(&web(0), ONCE).unwrap();
    assert_eq!(pod.object.name, web(0));
    assert_eq!(pod.object.ips, ["10.244.1.0".parse::<std::net::IpAddr>().unwrap()]);
    assert!(!pod.version.is_empty());
    assert!(s.server.last_header("user-agent").unwrap().starts_with("ferrule/"));
    let namespace = s.client.get_namespace("team-a", ONCE).unwrap().object;
    assert_eq!(namespace.labels["istio.io/dataplane-mode"], "ambient");
    assert!(s.server.last_header("accept").unwrap().contains("as=PartialObjectMetadata;"));
    let node = s.client.get_node(NODE, ONCE).unwrap();
    assert_eq!((node.name.as_str(), node.labels["zone"].as_str()), (NODE, "a"));
    assert!(s.client.get_daemon_set("istio-system", "istio-cni-node", ONCE).unwrap().wants(&node));
    assert_eq!(s.server.accepted(), 1, "one connection serves all of them");
}

#[test]
fn says_what_was_not_there() {
    let s = setup();
    let e = s.client.get_pod(&web(7), ONCE).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
    assert_eq!(e.to_string(), "get pod team-a/web-7: 404 Not Found: pods \"web-7\" not found");
    let odd = PodName { namespace: "a/../b?c".into(), name: "..".into() };
    assert_eq!(s.client.get_pod(&odd, ONCE).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(s.server.requests().last().unwrap(), "GET /api/v1/namespaces/a%2F..%2Fb%3Fc/pods/%2E%2E");
}

#[test]
fn patches_annotations_and_labels_of_the_pod_that_is_meant() {
    let s = setup();
    s.put_pod(0);
    let uid = s.client.get_pod(&web(0), ONCE).unwrap().object.uid;
    let set = |uid: Option<&str>, value: Option<&str>| {
        let patch = PodPatch { annotations: &[(REDIRECTION, value)], ..PodPatch::default() };
        s.client.patch_pod(&web(0), uid, patch, ENOUGH)
    };
    let annotation = || s.server.annotation("team-a", "web-0", REDIRECTION);
    set(Some(&uid), Some("enabled")).unwrap();
    assert_eq!(annotation().as_deref(), Some("enabled"));
    assert_eq!(s.server.patches()[0].body, json!({"metadata": {"uid": uid, "annotations": {REDIRECTION: "enabled"}}}));
    set(Some(&uid), None).unwrap();
    assert_eq!(annotation(), None);
    let e = set(Some("of-another-pod"), Some("enabled")).unwrap_err();
    assert_eq!((e.kind(), annotation()), (ErrorKind::Conflict, None), "{e}");
    s.server.misbehave("patch pods", 1, Fault::Answer(409, None));
    s.server.misbehave("patch pods", 1, Fault::Close);
    set(None, Some("pending")).unwrap();
    assert_eq!(annotation().as_deref(), Some("pending"));
    let labels = PodPatch { labels: &[("broken", Some("true"))], ..PodPatch::default() };
    s.client.patch_pod(&web(0), None, labels, ENOUGH).unwrap();
    assert_eq!(s.client.get_pod(&web(0), ONCE).unwrap().object.labels["broken"], "true");
    let gone = PodPatch { annotations: &[(REDIRECTION, None)], ..PodPatch::default() };
    assert_eq!(s.client.patch_pod(&web(9), None, gone, ENOUGH).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn deletes_only_what_it_was_told() {
    let s = setup();
    s.put_pod(0);
    let pod = s.client.get_pod(&web(0), ONCE).unwrap();
    let delete = |uid: &str, version: &str| s.client.delete_pod(&web(0), uid, version, ENOUGH);
    assert_eq!(delete("other", &pod.version).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(delete(&pod.object.uid, "1").unwrap_err().kind(), ErrorKind::Conflict);
    assert!(s.server.get(Kind::Pods, "team-a", "web-0").is_some());
    delete(&pod.object.uid, &pod.version).unwrap();
    assert!(s.server.get(Kind::Pods, "team-a", "web-0").is_none());
}

#[test]
fn creates_events() {
    let s = setup();
    let message = "ä".repeat(1000);
    let event = NewEvent {
        pod: &web(0),
        uid: "u-0",
        warning: true,
        reason: "DeleteBrokenPod",
        message: &message,
        component: "cni-repair",
        host: NODE,
        time: SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_323_045),
    };
    s.client.create_event(&event, ENOUGH).unwrap();
    let got = &s.server.events()[0];
    assert_eq!(got["metadata"]["namespace"], "team-a");
    assert_eq!(
        got["involvedObject"],
        json!({"apiVersion": "v1", "kind": "Pod", "namespace": "team-a", "name": "web-0", "uid": "u-0"})
    );
    assert_eq!((&got["type"], &got["reason"]), (&json!("Warning"), &json!("DeleteBrokenPod")));
    assert_eq!(got["source"], json!({"component": "cni-repair", "host": NODE}));
    assert_eq!(got["firstTimestamp"], "2026-01-02T03:04:05.000000Z");
    assert_eq!(got["message"].as_str().unwrap().len(), 1024);
    s.server.misbehave("create events", None, Fault::Answer(403, None));
    assert_eq!(s.client.create_event(&event, ENOUGH).unwrap_err().kind(), ErrorKind::Forbidden);
}

#[test]
fn reads_are_retried_and_writes_only_where_nothing_was_done() {
    let s = setup();
    s.put_pod(0);
    for fault in [Fault::Answer(500, None), Fault::Answer(503, None), Fault::Close, Fault::CutBody(200)] {
        s.server.misbehave("get pods", 1, fault.clone());
        s.client.get_pod(&web(0), ENOUGH).unwrap_or_else(|e| panic!("{fault:?}: {e}"));
    }
    for (fault, kind) in [
        (Fault::Answer(403, None), ErrorKind::Forbidden),
        (Fault::Answer(410, None), ErrorKind::Gone),
        (Fault::Garbage, ErrorKind::Invalid),
    ] {
        s.server.misbehave("get pods", 1, fault.clone());
        assert_eq!(s.client.get_pod(&web(0), ENOUGH).unwrap_err().kind(), kind, "{fault:?}");
    }
    let delete = || s.client.delete_pod(&web(9), "u", "1", ENOUGH);
    for fault in [Fault::Answer(500, None), Fault::Close] {
        let before = s.server.count("DELETE");
        s.server.misbehave("delete pods", 1, fault);
        let e = delete().unwrap_err();
        assert_ne!(e.kind(), ErrorKind::NotFound, "{e}");
        assert_eq!(s.server.count("DELETE"), before + 1);
    }
    s.server.misbehave("delete pods", 1, Fault::Answer(429, Some(1)));
    assert_eq!(delete().unwrap_err().kind(), ErrorKind::NotFound, "turned away, so asked again");
}

#[test]
fn retry_after_is_honoured_within_the_callers_patience() {
    let s = setup();
    s.put_pod(0);
    s.server.misbehave("get pods", 1, Fault::Answer(429, Some(2)));
    let started = Instant::now();
    s.client.get_pod(&web(0), ENOUGH).unwrap();
    assert!(started.elapsed() >= Duration::from_secs(2), "{:?}", started.elapsed());
    s.server.misbehave("get pods", 1, Fault::Answer(429, Some(600)));
    let e = at_once("giving up", || s.client.get_pod(&web(0), ENOUGH).unwrap_err());
    assert_eq!(e.kind(), ErrorKind::Busy);
    s.server.misbehave("get pods", 1, Fault::Answer(500, None));
    let e = at_once("one try", || s.client.get_pod(&web(0), ONCE).unwrap_err());
    assert_eq!(e.to_string(), "get pod team-a/web-0: 500 Internal Server Error: told to answer 500");
}

#[test]
fn every_request_ends_in_time() {
    let s = setup();
    s.put_pod(0);
    let patience = Patience::once(Duration::from_millis(300));
    for fault in [Fault::Silence, Fault::SilenceAfterHead, Fault::Drip(1, Duration::from_millis(20))] {
        s.server.misbehave("get pods", 1, fault.clone());
        let e = at_once("a request of 0.3 s", || s.client.get_pod(&web(0), patience).unwrap_err());
        assert!(e.to_string().contains("timeout"), "{fault:?}: {e}");
    }
    s.client.get_pod(&web(0), ENOUGH).unwrap();
}

#[test]
fn a_server_that_is_down_is_said_to_be_and_found_again() {
    let mut s = setup();
    s.put_pod(0);
    s.client.get_pod(&web(0), ONCE).unwrap();
    s.server.go_down();
    let e = at_once("a refused connection", || s.client.get_pod(&web(0), ONCE).unwrap_err());
    assert_eq!(e.kind(), ErrorKind::PeerGone);
    assert!(e.to_string().contains("refused"), "{e}");
    let client = s.client.clone();
    let waiting = std::thread::spawn(move || client.get_pod(&web(0), ENOUGH));
    s.server.come_back();
    waiting.join().unwrap().unwrap();
}

#[test]
fn closing_ends_a_request_at_once() {
    let s = setup();
    let blocked = |client: Client, patience: Patience| std::thread::spawn(move || client.get_pod(&web(0), patience));
    // In a read.
    s.server.misbehave("get pods", None, Fault::Silence);
    let (client, other) = (s.client.sibling(), s.client.sibling());
    let thread = blocked(client.clone(), ENOUGH);
    eventually("the request is there", || s.server.count("GET") == 1);
    client.close();
    assert!(at_once("ending a read", || thread.join().unwrap()).is_err());
    assert!(at_once("a request after the end", || client.get_pod(&web(0), ENOUGH)).is_err());
    // Between two tries.
    s.server.behave();
    s.server.misbehave("get pods", None, Fault::Answer(429, Some(15)));
    let thread = blocked(other.clone(), ENOUGH);
    eventually("the request was turned away", || s.server.count("GET") == 2);
    other.close();
    assert!(at_once("ending a wait", || thread.join().unwrap()).is_err());
    s.server.behave();
    s.put_pod(0);
    s.client.get_pod(&web(0), ENOUGH).unwrap();
}

#[test]
fn closing_ends_a_connection_attempt_at_once() {
    // Nobody accepts here, and the queue is full: further attempts get no answer.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let _fill = std::net::TcpStream::connect(address).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    let text = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: c}}}}]\n\
         clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}]\n"
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let source = Source::Kubeconfig(kubeconfig.to_str().unwrap().into());
    let client = Client::new(Config::load(&Options { source, proxies: Proxies::default() }).unwrap());
    let short = Patience::once(Duration::from_millis(200));
    let e = at_once("a short attempt", || client.get_pod(&web(0), short).unwrap_err());
    assert!(e.to_string().contains("no answer to the connection attempt"), "{e}");
    let attempt = client.clone();
    let thread = std::thread::spawn(move || attempt.get_pod(&web(0), ENOUGH));
    let syn_sent = || {
        let port = format!(":{:04X} 02 ", address.port());
        std::fs::read_to_string("/proc/net/tcp").unwrap().contains(&port)
    };
    eventually("the attempt is on its way", syn_sent);
    client.close();
    assert!(at_once("ending an attempt", || thread.join().unwrap()).is_err());
}
