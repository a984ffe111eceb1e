//! A node of a cluster to measure on: thousands of namespaces, pods that run already, and an API server that changes
//! its mind about them.

use super::node::{Node, Sandbox};
use super::ztunnel::Ztunnel;
use super::{Options, Row};
use crate::apiserver::ApiServer;
use ferrule::dataplane::xtables::variant::Variant;
use serde_json::{Value, json};
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const NODE: &str = "node-b";
/// A pod that is new to the watch is left to the plugin for so long.
const GRACE: Duration = Duration::from_millis(2500);

/// How much of everything.
struct Size {
    namespaces: usize,
    pods: usize,
    processes: usize,
    events: usize,
}

/// Makes a process of a pod below a host root of one's own: its cgroup names the pod, its namespace is at `netns`.
pub fn put_process(root: &Path, pid: u32, uid: &str, netns: &str) {
    let process = root.join(format!("proc/{pid}"));
    fs::create_dir_all(process.join("ns")).unwrap();
    symlink(netns, process.join("ns/net")).unwrap();
    let container = format!("{pid:064x}");
    fs::write(process.join("cgroup"), format!("0::/kubepods/burstable/pod{uid}/{container}\n")).unwrap();
    fs::write(process.join("stat"), format!("{pid} (a) S {}400 0 0\n", "0 ".repeat(18))).unwrap();
}

struct Cluster {
    node: Node,
    server: ApiServer,
    sandboxes: Vec<Sandbox>,
    root: TempDir,
    api_dir: TempDir,
}

impl Cluster {
    fn new(ferrule: &Path, size: &Size) -> Self {
        let (node, api_dir) = (Node::new(ferrule), tempfile::tempdir().unwrap());
        let server = node.on_host(|| ApiServer::start(api_dir.path()));
        for n in 0..size.namespaces {
            server.put_namespace(&format!("ns-{n}"), json!({ "team": format!("team-{}", n % 50), "turn": "0" }));
        }
        let root = tempfile::tempdir_in(super::node::MEMORY).unwrap();
        let sandboxes = (0..size.pods).map(|n| {
            let ip = Ipv4Addr::from(0x0a36_0002 + u32::try_from(n).unwrap());
            let sandbox = Sandbox::with_address(ip);
            let pod = server.put_pod(
                "ns-0",
                &format!("pod-{n}"),
                NODE,
                json!({ "app": "web", "turn": "0" }),
                &[&ip.to_string()],
            );
            let uid = pod.value["metadata"]["uid"].as_str().unwrap();
            put_process(root.path(), u32::try_from(n).unwrap() + 10, uid, &sandbox.path());
            sandbox
        });
        let sandboxes = sandboxes.collect();
        Cluster { node, server, sandboxes, root, api_dir }
    }

    fn launch(&mut self) {
        let (port, dir) = (self.server.port().to_string(), self.api_dir.path().to_owned());
        let root = self.root.path().to_owned();
        self.node.launch(|command| {
            command.arg("--host-root").arg(root);
            command.arg(r#"--ambient-enablement-selector=[{"namespaceSelector":{"matchLabels":{"mesh":"on"}}}]"#);
            command.env("KUBERNETES_SERVICE_HOST", "127.0.0.1").env("KUBERNETES_SERVICE_PORT", port);
            command.env("SERVICE_ACCOUNT_DIR", dir).env("NODE_NAME", NODE);
        });
    }

    /// Watches that were begun.
    fn watches(&self) -> usize {
        self.server.requests().iter().filter(|request| request.contains("watch=1")).count()
    }

    /// Puts the namespace of all pods into the mesh, or takes it out; how long until every pod is annotated so.
    fn flip(&self, on: bool) -> Duration {
        let before = self.server.patches().len();
        let begin = Instant::now();
        self.server.label_namespace("ns-0", json!({ "mesh": on.then_some("on") }));
        // Each is annotated once it is done; what it was meanwhile does not count.
        let value = if on { json!("enabled") } else { Value::Null };
        let annotation = |body: &Value| body["metadata"]["annotations"]["ambient.istio.io/redirection"].clone();
        self.node.wait_until("every pod is annotated", || {
            let patches = self.server.patches();
            patches.len() >= before + self.sandboxes.len()
                && patches[before..].iter().filter(|patch| annotation(&patch.body) == value).count()
                    >= self.sandboxes.len()
        });
        // What is published goes before the rules do.
        self.node.wait_until("every pod's rules are out", || self.node.removing() == 0);
        begin.elapsed()
    }

    /// So many changes of namespaces and pods, and the end of them has reached the agent.
    fn events(&self, count: usize, namespaces: usize) {
        for n in 0..count {
            let labels = json!({ "metadata": { "labels": { "turn": n.to_string() } } });
            let kind = if n % 2 == 0 { crate::apiserver::Kind::Pods } else { crate::apiserver::Kind::Namespaces };
            match kind {
                crate::apiserver::Kind::Pods => {
                    self.server.merge(kind, "ns-0", &format!("pod-{}", n / 2 % self.sandboxes.len()), &labels);
                }
                _ => self.server.merge(kind, "", &format!("ns-{}", n / 2 % namespaces), &labels),
            }
        }
        self.server.delete(crate::apiserver::Kind::Pods, "ns-0", "last");
        self.node.wait_until("gone", || !self.node.knows("last"));
        self.server.put_pod("ns-0", "last", NODE, json!({}), &[]);
        self.node.wait_until("the agent has seen the last pod", || self.node.knows("last"));
    }
}

/// A node with thousands of namespaces and 250 pods, through its life.
pub fn rows(options: &Options) -> Vec<Row> {
    let size = match options.quick {
        true => Size { namespaces: 20, pods: 3, processes: 50, events: 100 },
        false => Size { namespaces: 5000, pods: 250, processes: 5000, events: 100_000 },
    };
    let mut cluster = Cluster::new(&options.ferrule, &size);
    cluster.launch();
    cluster.node.wait_until("the agent serves", || cluster.node.is_served());
    let listed = cluster.node.resident();
    cluster.events(size.events, size.namespaces);
    let followed = cluster.node.resident();
    let ztunnel = cluster.node.ztunnel();
    std::thread::sleep(GRACE);
    let on = cluster.flip(true);
    let off = cluster.flip(false);
    for sandbox in &cluster.sandboxes {
        assert_eq!(sandbox.saved().matches("ISTIO").count(), 0, "something is left");
    }
    let yardsticks: Vec<_> = cluster.sandboxes.iter().map(|_| Sandbox::new()).collect();
    let yardstick: Duration = yardsticks.iter().map(|sandbox| sandbox.restores(Variant::Nft)).sum();
    cluster.flip(true);
    cluster.node.stop();
    drop(ztunnel);
    for pid in 0..size.processes - size.pods {
        let host = cluster.node.host_path();
        put_process(cluster.root.path(), u32::try_from(pid + 1000).unwrap(), &format!("of-host-{pid}"), &host);
    }
    let before = cluster.watches();
    cluster.launch();
    // The lists are over when the watches begin.
    cluster.node.wait_until("the lists are over", || cluster.watches() == before + 2);
    let begin = Instant::now();
    let ztunnel = Ztunnel::connect(&cluster.node.ztunnel_socket());
    let started = begin.elapsed();
    assert_eq!(ztunnel.snapshot, size.pods, "adds and keeps in the snapshot");
    let ratio = |name, time: Duration, goal| {
        let number = time.as_secs_f64() / yardstick.as_secs_f64();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Row { name, value: format!("{number:.2}  ({:.0} ms / {:.0} ms)", ms(time), ms(yardstick)), goal, number }
    };
    let megabytes = |name, bytes| super::rows::megabytes(name, bytes, Some(10.0));
    let seconds = started.as_secs_f64();
    vec![
        megabytes("agent, resident, 5,000 namespaces and 250 pods", listed),
        megabytes("agent, resident, after 100,000 events", followed),
        ratio("250 pods join the mesh / 250 x two restores", on, Some(1.5)),
        ratio("250 pods leave it / 250 x two restores", off, Some(1.5)),
        Row {
            name: "start with 250 enrolled pods and 5,000 processes",
            value: format!("{seconds:.2} s"),
            goal: Some(1.0),
            number: seconds,
        },
    ]
}
