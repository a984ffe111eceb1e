//! Reflectors: the picture comes out right, whatever the server does.

mod unreadable;

use super::{NODE, Setup, at_once, eventually, setup};
use crate::apiserver::{Fault, Kind, namespace};
use ferrule::kube::client::Client;
use ferrule::kube::reflector::{Notice, Options, Reflector, Resource};
use ferrule::pod::object::Versioned;
use ferrule::pod::types::{Namespace, Pod};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a reflector told, put together.
struct Picture<T> {
    objects: BTreeMap<String, Versioned<T>>,
    /// Every notice, short.
    told: Vec<String>,
}

struct Followed<T> {
    reflector: Reflector<T>,
    picture: Arc<Mutex<Picture<T>>>,
}

fn quick() -> Options {
    let ms = Duration::from_millis;
    let field_selector = format!("spec.nodeName={NODE}");
    Options { field_selector, retry: (ms(20), ms(100)), request: Duration::from_secs(5), ..Options::default() }
}

fn follow<T: Resource>(client: &Client, options: Options) -> Followed<T>
where
    Versioned<T>: DeserializeOwned,
{
    follow_with(client, options, |_| {})
}

fn follow_with<T: Resource>(
    client: &Client,
    options: Options,
    mut heard: impl FnMut(&Notice<T>) + Send + 'static,
) -> Followed<T>
where
    Versioned<T>: DeserializeOwned,
{
    let picture = Arc::new(Mutex::new(Picture { objects: BTreeMap::new(), told: Vec::new() }));
    let shared = picture.clone();
    let notify = move |notice: Notice<T>| {
        heard(&notice);
        let mut picture = shared.lock().unwrap();
        match notice {
            Notice::Upserted(item) => {
                picture.told.push(format!("+{}", item.object.key()));
                picture.objects.insert(item.object.key().to_owned(), item);
            }
            Notice::Removed(key) => {
                picture.told.push(format!("-{key}"));
                let unreadable = picture.told.iter().any(|told| told.starts_with(&format!("?{key} ")));
                let known = picture.objects.remove(&key).is_some() || unreadable;
                assert!(known, "removed what was not there: {key}");
            }
            Notice::Unreadable { key, name, why } => picture.told.push(format!("?{key} {name}: {why}")),
            Notice::Synced => picture.told.push("synced".into()),
            Notice::Lagging(why) => picture.told.push(why.map_or("follows".into(), |why| format!("lags: {why}"))),
        }
    };
    Followed { reflector: Reflector::start(client, options, notify).unwrap(), picture }
}

impl<T> Followed<T> {
    fn told(&self, what: &str) -> usize {
        self.picture.lock().unwrap().told.iter().filter(|t| *t == what).count()
    }

    fn all_told(&self) -> Vec<String> {
        self.picture.lock().unwrap().told.clone()
    }
}

impl Followed<Pod> {
    /// Names and their label `app`.
    fn seen(&self) -> BTreeMap<String, String> {
        let picture = self.picture.lock().unwrap();
        let label = |pod: &Pod| pod.labels.get("app").cloned().unwrap_or_default();
        picture.objects.values().map(|v| (v.object.name.to_string(), label(&v.object))).collect()
    }

    #[track_caller]
    fn comes_to(&self, what: &str, expected: &[(u32, &str)]) {
        let expected: BTreeMap<_, _> =
            expected.iter().map(|(n, label)| (format!("team-a/web-{n}"), (*label).to_owned())).collect();
        let started = std::time::Instant::now();
        while self.seen() != expected {
            let late = started.elapsed() > Duration::from_secs(15);
            assert!(!late, "{what}: {:?} instead of {expected:?}; told {:?}", self.seen(), self.all_told());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Three pods of our node, one of another.
fn with_pods() -> Setup {
    let s = setup();
    for n in 0..3 {
        s.put_pod(n);
    }
    s.server.put_pod("team-a", "web-9", "node-other", json!({}), &[]);
    s
}

const THREE: [(u32, &str); 3] = [(0, "web"), (1, "web"), (2, "web")];

#[test]
fn lists_in_pages_then_follows() {
    let s = with_pods();
    let f = follow::<Pod>(&s.client, Options { page: 2, ..quick() });
    eventually("synced", || f.told("synced") == 1);
    assert_eq!(f.seen().len(), 3);
    let requests = s.server.requests();
    assert!(
        requests[0].contains("limit=2") && requests[0].contains("fieldSelector=spec.nodeName%3Dnode-r"),
        "{requests:?}"
    );
    assert!(requests[1].contains("&continue="), "{requests:?}");
    s.put_pod(5);
    s.label_pod(1, "changed");
    s.delete_pod(2);
    s.server.put_pod("team-a", "web-8", "node-other", json!({}), &[]);
    f.comes_to("events", &[(0, "web"), (1, "changed"), (5, "web")]);
    assert_eq!(s.server.count("GET /api/v1/pods?watch"), 1, "one watch brings them all");
    let watch = s.server.requests().into_iter().find(|r| r.contains("watch=1")).unwrap();
    assert!(
        watch.contains("allowWatchBookmarks=true") && watch.contains("fieldSelector=spec.nodeName%3Dnode-r"),
        "{watch}"
    );
    let seconds = watch.split("timeoutSeconds=").nth(1).unwrap().split('&').next().unwrap().parse::<u32>().unwrap();
    assert!((300..=600).contains(&seconds), "{watch}");
    f.reflector.stop();
}

#[test]
fn a_pod_that_leaves_the_selection_is_gone() {
    let s = with_pods();
    let f = follow::<Pod>(&s.client, Options { label_selector: "app=web".into(), ..quick() });
    f.comes_to("list", &THREE);
    s.label_pod(1, "api");
    f.comes_to("left", &[(0, "web"), (2, "web")]);
    s.label_pod(1, "web");
    f.comes_to("back", &THREE);
}

#[test]
fn a_pod_recreated_under_its_name_is_another_pod() {
    let s = with_pods();
    let f = follow::<Pod>(&s.client, quick());
    f.comes_to("list", &THREE);
    let before = f.picture.lock().unwrap().objects.keys().cloned().collect::<Vec<_>>();
    s.delete_pod(1);
    s.put_pod(1);
    eventually("a new uid", || f.picture.lock().unwrap().objects.keys().any(|uid| !before.contains(uid)));
    f.comes_to("one of each name", &THREE);
}

#[test]
fn an_expired_page_starts_the_list_over() {
    let s = Arc::new(with_pods());
    let (server, mut once) = (s.clone(), true);
    let expire = move |notice: &Notice<Pod>| {
        if std::mem::take(&mut once) {
            assert!(matches!(notice, Notice::Upserted(_)));
            server.server.expire_pages();
            // Seen on the first page, gone before the list starts over.
            server.delete_pod(0);
        }
    };
    let f = follow_with(&s.client, Options { page: 1, ..quick() }, expire);
    eventually("synced", || f.told("synced") == 1);
    f.comes_to("list", &THREE[1..]);
    assert_eq!(s.server.requests().iter().filter(|r| !r.contains("watch=") && !r.contains("continue=")).count(), 2);
}

#[test]
fn what_was_missed_is_told_after_a_new_list() {
    let mut s = with_pods();
    let f = follow::<Pod>(&s.client, quick());
    f.comes_to("list", &THREE);
    s.server.go_down();
    s.delete_pod(0);
    s.label_pod(1, "changed");
    s.put_pod(4);
    s.server.compact();
    s.server.come_back();
    f.comes_to("what was missed", &[(1, "changed"), (2, "web"), (4, "web")]);
    let web_2 = s.server.get(Kind::Pods, "team-a", "web-2").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    assert_eq!(f.told(&format!("+{web_2}")), 1, "what did not change is not told again: {:?}", f.all_told());
    assert_eq!(f.told("synced"), 1);
}

#[test]
fn a_lost_connection_goes_on_from_the_last_version() {
    let mut s = with_pods();
    let f = follow::<Pod>(&s.client, quick());
    f.comes_to("list", &THREE);
    for round in 0..3 {
        s.server.go_down();
        s.label_pod(0, &format!("round-{round}"));
        s.server.come_back();
        f.comes_to("after a cut", &[(0, &format!("round-{round}")), (1, "web"), (2, "web")]);
    }
    let lists = s.server.requests().iter().filter(|r| !r.contains("watch=")).count();
    assert_eq!(lists, 1, "{:?}", s.server.requests());
}

#[test]
fn bookmarks_move_the_version() {
    let s = with_pods();
    s.server.bookmark_every(Duration::from_millis(20));
    let f = follow::<Pod>(&s.client, quick());
    f.comes_to("list", &THREE);
    // Much happens that this watch does not see; then the history goes, but for the last.
    for n in 0..20 {
        s.server.put(Kind::Namespaces, namespace(&format!("n-{n}"), json!({})));
    }
    let from =
        |r: &String| r.split("resourceVersion=").nth(1).unwrap().split('&').next().unwrap().parse::<u64>().unwrap();
    let watches = || s.server.requests().into_iter().filter(|r| r.contains("watch=1")).collect::<Vec<_>>();
    let before = s.server.bookmarks();
    eventually("bookmarks", || s.server.bookmarks() >= before + 3);
    s.server.cut();
    eventually("a new watch", || watches().len() == 2);
    assert!(from(&watches()[1]) >= from(&watches()[0]) + 20, "{:?}", watches());
    assert_eq!(s.server.requests().iter().filter(|r| !r.contains("watch=")).count(), 1);
}

#[test]
fn every_misbehaviour_of_a_watch_ends_in_the_right_picture() {
    let drip = Fault::Drip(50, Duration::from_millis(1));
    let faults = [
        Fault::Close,
        Fault::CutBody(700),
        Fault::CutBody(3000),
        Fault::Garbage,
        Fault::ErrorEvent(410),
        Fault::ErrorEvent(500),
        Fault::EndAfter(1),
        Fault::Disorder,
        Fault::NoBookmarks,
        Fault::SilenceAfterHead,
        Fault::Silence,
        drip,
        Fault::Answer(400, None),
        Fault::Answer(401, None),
        Fault::Answer(403, None),
        Fault::Answer(410, None),
        Fault::Answer(429, Some(1)),
        Fault::Answer(500, None),
        Fault::Answer(503, None),
        Fault::Answer(504, None),
    ];
    let options = Options { silence: Duration::from_millis(500), request: Duration::from_millis(500), ..quick() };
    std::thread::scope(|scope| {
        for fault in faults {
            let options = options.clone();
            scope.spawn(move || {
                let s = with_pods();
                s.server.misbehave("watch pods", 3, fault.clone());
                let f = follow::<Pod>(&s.client, options);
                f.comes_to(&format!("{fault:?}: list"), &THREE);
                s.put_pod(4);
                s.label_pod(1, "one");
                s.label_pod(1, "two");
                s.delete_pod(2);
                s.put_pod(5);
                s.delete_pod(5);
                s.label_pod(0, "x");
                f.comes_to(&format!("{fault:?}: events"), &[(0, "x"), (1, "two"), (4, "web")]);
                // And it still follows.
                s.server.behave();
                s.put_pod(7);
                f.comes_to(&format!("{fault:?}: more"), &[(0, "x"), (1, "two"), (4, "web"), (7, "web")]);
            });
        }
    });
}

#[test]
fn every_misbehaviour_of_a_list_ends_in_the_right_picture() {
    let faults = [
        Fault::Close,
        Fault::Silence,
        Fault::SilenceAfterHead,
        Fault::CutBody(900),
        Fault::Garbage,
        Fault::Drip(200, Duration::from_millis(1)),
        Fault::Answer(401, None),
        Fault::Answer(403, None),
        Fault::Answer(410, None),
        Fault::Answer(429, Some(1)),
        Fault::Answer(500, None),
        Fault::Answer(503, Some(1)),
    ];
    let options = Options { page: 2, request: Duration::from_millis(500), ..quick() };
    std::thread::scope(|scope| {
        for fault in faults {
            let options = options.clone();
            scope.spawn(move || {
                let s = with_pods();
                s.server.misbehave("list pods", 2, fault.clone());
                let f = follow::<Pod>(&s.client, options);
                f.comes_to(&format!("{fault:?}"), &THREE);
                eventually("synced", || f.told("synced") == 1);
            });
        }
    });
}

#[test]
fn namespaces_come_as_metadata_or_whole() {
    for fault in [None, Some(Fault::WholeObjects)] {
        let s = setup();
        s.server.put_namespace("team-a", json!({ "istio.io/dataplane-mode": "ambient" }));
        s.server.put_namespace("team-b", json!({}));
        if let Some(fault) = fault {
            s.server.misbehave("* namespaces", None, fault);
        }
        let f = follow::<Namespace>(&s.client, Options { field_selector: String::new(), ..quick() });
        let labels = |name: &str| {
            let picture = f.picture.lock().unwrap();
            picture.objects.get(name).map(|n| n.object.labels.get("istio.io/dataplane-mode").cloned())
        };
        eventually("listed", || f.told("synced") == 1);
        assert_eq!((labels("team-a"), labels("team-b")), (Some(Some("ambient".into())), Some(None)));
        s.server.label_namespace("team-a", json!({ "istio.io/dataplane-mode": null }));
        s.server.label_namespace("team-b", json!({ "istio.io/dataplane-mode": "ambient" }));
        eventually("labels", || labels("team-a") == Some(None) && labels("team-b") == Some(Some("ambient".into())));
        assert!(s.server.delete(Kind::Namespaces, "", "team-a"));
        s.server.put_namespace("team-a", json!({ "istio.io/dataplane-mode": "none" }));
        eventually("recreated", || labels("team-a") == Some(Some("none".into())));
        assert!(s.server.last_header("accept").unwrap().contains("as=PartialObjectMetadata"));
    }
}

#[test]
fn token_and_certificate_change_under_a_watch() {
    let mut s = with_pods();
    let f = follow::<Pod>(&s.client, quick());
    f.comes_to("list", &THREE);
    s.server.write_token("token-2");
    s.server.accept_token("token-2");
    s.server.cut();
    s.label_pod(0, "token");
    f.comes_to("new token", &[(0, "token"), (1, "web"), (2, "web")]);
    s.server.change_certificate();
    s.server.cut();
    s.label_pod(0, "certificate");
    s.server.write_ca();
    f.comes_to("new certificate", &[(0, "certificate"), (1, "web"), (2, "web")]);
}

#[test]
fn stopping_is_quick_wherever_it_waits() {
    let mut s = with_pods();
    // In a watch that says nothing.
    let f = follow::<Pod>(&s.client, quick());
    eventually("watching", || s.server.count("GET /api/v1/pods?watch") == 1);
    at_once("stopping a watch", || f.reflector.stop());
    // In a list that does not answer.
    s.server.misbehave("list pods", 1, Fault::Silence);
    let before = s.server.count("GET /api/v1/pods?limit");
    let f = follow::<Pod>(&s.client, quick());
    eventually("listing", || s.server.count("GET /api/v1/pods?limit") > before);
    at_once("stopping a list", || f.reflector.stop());
    // Between two tries.
    s.server.go_down();
    let long = Duration::from_secs(30);
    let f = follow::<Pod>(&s.client, Options { retry: (long, long), ..quick() });
    at_once("stopping a wait", || f.reflector.stop());
}

#[test]
fn a_silent_watch_is_believed_for_as_long_as_the_server_answers() {
    let s = with_pods();
    let watches = || s.server.requests().iter().filter(|r| r.contains("watch=")).count();
    let options = Options { silence: Duration::from_secs(1), request: Duration::from_secs(1), ..quick() };
    s.server.bookmark_every(Duration::from_millis(1500));
    let f = follow::<Pod>(&s.client, options);
    f.comes_to("list", &THREE);
    eventually("the server is asked, and the watch goes on", || s.server.count("GET /version") >= 3);
    assert_eq!(watches(), 1);
    // What comes after a read in vain is read whole.
    s.put_pod(4);
    f.comes_to("an event", &[(0, "web"), (1, "web"), (2, "web"), (4, "web")]);
    assert_eq!(watches(), 1);
    // A watch that says nothing for twice as long is over all the same.
    s.server.bookmark_every(Duration::from_secs(3600));
    eventually("a new watch", || watches() > 1);
}

#[test]
fn a_server_that_answers_nothing_any_more_is_noticed_before_the_watch_is_over() {
    let s = with_pods();
    let watches = || s.server.requests().iter().filter(|r| r.contains("watch=")).count();
    s.server.bookmark_every(Duration::from_secs(3600));
    let silence = Duration::from_secs(5);
    let f = follow::<Pod>(&s.client, Options { silence, request: Duration::from_millis(500), ..quick() });
    f.comes_to("list", &THREE);
    eventually("a watch", || watches() == 1);
    let begin = Instant::now();
    s.server.misbehave("*", None, Fault::Silence);
    eventually("another one is tried", || watches() > 1);
    assert!(begin.elapsed() < silence * 2, "{:?}", begin.elapsed());
    s.server.behave();
    s.put_pod(4);
    f.comes_to("an event", &[(0, "web"), (1, "web"), (2, "web"), (4, "web")]);
}
