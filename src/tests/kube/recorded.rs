//! Answers of a real kube-apiserver 1.36, replayed to the real client.

use super::{ENOUGH, NODE, eventually, web};
use ferrule::error::Kind;
use ferrule::kube::api::{NewEvent, PodPatch};
use ferrule::kube::client::{Client, Patience};
use ferrule::kube::config::{Config, Options, Proxies, Source};
use ferrule::kube::object::Node;
use ferrule::kube::reflector::{self, Notice, Reflector};
use ferrule::pod::types::{Namespace, Pod, PodName};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

const ONCE: Patience = Patience::once(Duration::from_secs(10));

/// One recorded exchange.
struct Exchange {
    method: String,
    path: String,
    status: String,
    body: String,
}

fn load(name: &str) -> Exchange {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("test-fixtures/kube").join(format!("{name}.http"));
    let text = std::fs::read_to_string(&path).unwrap();
    let (head, body) = text.split_once("\n\n").unwrap();
    let request = head.lines().next().unwrap().strip_prefix("> ").unwrap();
    let (method, target) = request.split_once(' ').unwrap();
    let status = head.lines().find_map(|l| l.strip_prefix("< ")).unwrap();
    Exchange {
        method: method.into(),
        path: target.split('?').next().unwrap().into(),
        status: status.into(),
        body: body.into(),
    }
}

/// Answers one request after the other with what was recorded, and then none.
fn replay(names: &[&str]) -> (Client, Arc<Mutex<Vec<String>>>) {
    let mut exchanges: VecDeque<Exchange> = names.iter().map(|n| load(n)).collect();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let kubeconfig = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: c}}}}]\n\
         clusters: [{{name: c, cluster: {{server: 'http://{}'}}}}]\n",
        listener.local_addr().unwrap()
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let source = Source::Kubeconfig(kubeconfig.path().to_str().unwrap().into());
    let client = Client::new(Config::load(&Options { source, proxies: Proxies::default() }).unwrap());
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = requests.clone();
    std::thread::spawn(move || {
        while let Some(exchange) = exchanges.pop_front() {
            let Ok((stream, _)) = listener.accept() else { return };
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut line, mut length) = (String::new(), 0);
            reader.read_line(&mut line).unwrap();
            let request = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
            loop {
                line.clear();
                reader.read_line(&mut line).unwrap();
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            reader.read_exact(&mut vec![0; length]).unwrap();
            seen.lock().unwrap().push(request.clone());
            let wanted = format!("{} {}", exchange.method, exchange.path);
            assert_eq!(request.split('?').next().unwrap(), wanted);
            let mut out = format!("HTTP/1.1 {}\r\nContent-Type: application/json\r\n", exchange.status);
            out += "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
            for line in exchange.body.split_inclusive('\n') {
                out += &format!("{:x}\r\n{line}\r\n", line.len());
            }
            (&stream).write_all((out + "0\r\n\r\n").as_bytes()).unwrap();
        }
        // Then nobody answers, and nobody refuses.
        let _silent: Vec<_> = listener.incoming().collect();
    });
    (client, requests)
}

type Told = Arc<Mutex<Vec<String>>>;

fn follow_pods(client: &Client) -> (Reflector<Pod>, Told) {
    let told = Told::default();
    let tell = told.clone();
    let ms = Duration::from_millis;
    let options = reflector::Options { retry: (ms(5), ms(10)), ..reflector::Options::default() };
    let notify = move |notice: Notice<Pod>| {
        tell.lock().unwrap().push(match notice {
            Notice::Upserted(p) => format!("+{} {}", p.object.name.name, p.version),
            Notice::Removed(uid) => format!("-{}", uid.get(..8).unwrap_or(&uid)),
            other => format!("{other:?}").to_lowercase(),
        });
    };
    (Reflector::start(client, options, notify).unwrap(), told)
}

#[track_caller]
fn comes_to(told: &Told, expected: &[&str]) {
    eventually(&format!("{expected:?} told"), || told.lock().unwrap().len() >= expected.len());
    assert_eq!(*told.lock().unwrap(), expected);
}

#[test]
fn pods_in_pages_and_their_watch() {
    let (client, requests) = replay(&[
        "pods-list-page1",
        "pods-list-page2",
        "pods-list-page3",
        "pods-watch",
        "pods-watch-too-old",
        "pods-list-empty",
        // A list that has lost most is confirmed by another.
        "pods-list-empty",
    ]);
    let (reflector, told) = follow_pods(&client);
    comes_to(
        &told,
        &[
            "+web-0 236",
            "+web-1 237",
            "+web-2 238",
            "+web-3 239",
            "+web-4 240",
            "synced",
            "+web-0 241",
            "+web-1 242",
            "+web-5 243",
            "+web-2 244",
            "-f6796c87",
        ]
        .into_iter()
        .chain(told_gone(&told))
        .collect::<Vec<_>>(),
    );
    reflector.stop();
    let requests = requests.lock().unwrap();
    assert!(
        requests[2]
            .contains("continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MjQwLCJzdGFydCI6Ii90ZWFtLWEvd2ViLTNcdTAwMDAifQ"),
        "{requests:?}"
    );
    assert!(requests[3].contains("resourceVersion=240"), "{requests:?}");
    assert!(requests[4].contains("resourceVersion=245"), "the bookmark's version: {requests:?}");
}

/// The five that the empty list at the end takes away, in whatever order.
fn told_gone(told: &Told) -> Vec<&'static str> {
    eventually("five are gone in the end", || told.lock().unwrap().iter().filter(|t| t.starts_with('-')).count() == 6);
    let mut told = told.lock().unwrap();
    let tail = told.split_off(11);
    let mut sorted = tail.clone();
    sorted.sort();
    told.extend(sorted);
    vec!["-b26219c5", "-d139c867", "-e90c5cc1", "-f58ceded", "-f617a7ca"]
}

#[test]
fn namespaces_as_metadata() {
    let (client, _) = replay(&["namespaces-list-metadata", "namespaces-watch-metadata"]);
    let told = Told::default();
    let tell = told.clone();
    let reflector = Reflector::start(&client, reflector::Options::default(), move |notice: Notice<Namespace>| {
        tell.lock().unwrap().push(match notice {
            Notice::Upserted(n) => format!("+{} {:?}", n.object.name, n.object.labels.get("istio.io/dataplane-mode")),
            other => format!("{other:?}"),
        });
    })
    .unwrap();
    comes_to(
        &told,
        &[
            "+default None",
            "+kube-node-lease None",
            "+kube-public None",
            "+kube-system None",
            "+rec Some(\"ambient\")",
            "+team-a Some(\"ambient\")",
            "Synced",
            "+team-a None",
            "+team-a Some(\"ambient\")",
        ],
    );
    reflector.stop();
}

#[test]
fn single_objects() {
    let (client, _) = replay(&["pod-get", "daemonset-get"]);
    let pod = client.get_pod(&web(2), ONCE).unwrap();
    assert_eq!(pod.object.name, web(2));
    assert_eq!(pod.object.uid, "f6796c87-6a57-40b3-90b4-d346adfc8390");
    let set = client.get_daemon_set("team-a", "istio-cni-node", ONCE).unwrap();
    let node = |labels: &[(&str, &str)]| Node {
        name: NODE.into(),
        labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
    };
    assert!(!set.being_deleted);
    assert!(set.wants(&node(&[("kubernetes.io/os", "linux")])));
    assert!(!set.wants(&node(&[("kubernetes.io/os", "linux"), ("no-mesh", "")])));
    assert!(!set.wants(&node(&[])));
}

#[test]
fn writes() {
    let (client, _) = replay(&["pod-patch-annotation-enabled", "pod-patch-label", "pod-delete-ok", "event-create"]);
    let annotations =
        PodPatch { annotations: &[("ambient.istio.io/redirection", Some("enabled"))], ..PodPatch::default() };
    client.patch_pod(&web(0), None, annotations, ONCE).unwrap();
    let labels = PodPatch { labels: &[("a", Some("b"))], ..PodPatch::default() };
    client.patch_pod(&web(load_number("pod-patch-label")), None, labels, ONCE).unwrap();
    client.delete_pod(&web(2), "f6796c87-6a57-40b3-90b4-d346adfc8390", "238", ONCE).unwrap();
    let event = NewEvent {
        pod: &web(3),
        uid: "e90c5cc1-5a1f-4614-a79e-926de3903149",
        warning: true,
        reason: "DeleteBrokenPod",
        message: "pod detected as broken, deleted",
        component: "cni-repair",
        host: NODE,
        time: SystemTime::UNIX_EPOCH,
    };
    client.create_event(&event, ONCE).unwrap();
}

/// Which web-N an exchange is about.
fn load_number(name: &str) -> u32 {
    let path = load(name).path;
    path.split("/web-").nth(1).unwrap().split('/').next().unwrap().parse().unwrap()
}

#[test]
fn refusals() {
    let (client, _) = replay(&["daemonset-404", "pod-patch-404", "pod-delete-precondition-conflict", "bad-patch-400"]);
    let e = client.get_daemon_set("istio-system", "istio-cni-node", ENOUGH).unwrap_err();
    assert_eq!(e.kind(), Kind::NotFound);
    assert_eq!(
        e.to_string(),
        "get daemonset istio-system/istio-cni-node: 404 Not Found: daemonsets.apps \"istio-cni-node\" not found"
    );
    let nope = PodName { namespace: "team-a".into(), name: "nope".into() };
    assert_eq!(client.patch_pod(&nope, None, PodPatch::default(), ENOUGH).unwrap_err().kind(), Kind::NotFound);
    let e = client.delete_pod(&web(2), "0", "0", ENOUGH).unwrap_err();
    assert_eq!(e.kind(), Kind::Conflict);
    assert!(
        e.to_string().starts_with("delete pod team-a/web-2: 409 Conflict: Operation cannot be fulfilled on Pod"),
        "{e}"
    );
    let e = client.patch_pod(&web(0), None, PodPatch::default(), ENOUGH).unwrap_err();
    assert!(e.to_string().starts_with("patch pod team-a/web-0 status: 400 Bad Request: error decoding patch"), "{e}");
}

#[test]
fn lists_that_are_refused_are_tried_again() {
    let (client, requests) =
        replay(&["unauthorized-bad-token", "forbidden-anonymous", "pods-list-bad-continue", "pods-list-empty"]);
    let (reflector, told) = follow_pods(&client);
    comes_to(&told, &["synced"]);
    eventually("a watch follows", || requests.lock().unwrap().len() >= 4);
    reflector.stop();
}
