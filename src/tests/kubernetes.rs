//! The agent on a Kubernetes node: the real executable, an API server that behaves and one that does not, real
//! namespaces and rules, the plugin as a runtime runs it, and a stand-in for ztunnel.

mod alone;
mod attachments;
mod churn;
mod end;
mod eni;
mod excess;
mod fallback;
mod host;
mod leaving;
mod life;
mod outage;
mod ports;
mod probes;
mod publish;
mod records;
mod repair;
mod rollover;
mod sandboxed;
mod stop;
mod told;
mod uninstall;
mod unreadable;
mod warnings;

use crate::apiserver::{ApiServer, Kind};
use crate::standalone::{SELECTOR, has_rules, is_right, netns, rules};
use crate::standin::{self, Standin};
use crate::support::netns::{PodNetns, run_in};
use crate::support::node::{Agent, Node};
use crate::support::program::{Finished, ferrule_as, finish, tell_plugin};
use crate::support::{FERRULE, eventually, http};
use ferrule::node::view::{PodStatus, Status};
use nix::unistd::getpid;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use tempfile::TempDir;

/// In the network namespace of the node, which is the test's own.
const HEALTH: u16 = 8000;
const MONITORING: u16 = 15014;
const NODE: &str = "node-r";
const ANNOTATION: &str = "ambient.istio.io/redirection";

/// A node of a cluster.
struct World {
    ztunnel: Option<Standin>,
    agent: Option<Agent>,
    server: ApiServer,
    /// The agent's log is shown when a test fails: its directory goes after it.
    node: Node,
    flags: Vec<&'static str>,
    /// Merged into the plugin's configuration.
    conf: Value,
    _api_dir: TempDir,
}

impl World {
    /// API server, agent and ztunnel, all ready. Namespace `mesh` is in the mesh, `plain` is not.
    fn new() -> Self {
        let mut world = World::without_agent(&[]);
        world.start_agent();
        world.start_ztunnel();
        world
    }

    /// API server, ztunnel, an agent with these flags, and a pod `mesh/web` with this address that is in the mesh.
    fn enrolled(flags: &[&'static str], ip: &str) -> (Self, PodNetns) {
        let mut world = World::without_agent(flags);
        world.start_agent();
        world.start_ztunnel();
        let netns = world.make_pod("mesh", "web", ip);
        world.add("mesh", "web", &netns, ip);
        world.assert_enrolled("mesh", "web", &netns);
        (world, netns)
    }

    fn without_agent(flags: &[&'static str]) -> Self {
        let node = Node::new();
        let api_dir = tempfile::tempdir().unwrap();
        let server = node.host.enter(|| ApiServer::start(api_dir.path()));
        server.put_namespace("mesh", json!({ "istio.io/dataplane-mode": "ambient" }));
        server.put_namespace("plain", json!({}));
        World { ztunnel: None, agent: None, server, node, flags: flags.to_vec(), conf: json!({}), _api_dir: api_dir }
    }

    fn new_agent(&self) -> Agent {
        let port = self.server.port().to_string();
        let account = self.server.service_account_dir().to_str().unwrap().to_owned();
        let environment = [
            ("KUBERNETES_SERVICE_HOST", "127.0.0.1"),
            ("KUBERNETES_SERVICE_PORT", &port),
            ("SERVICE_ACCOUNT_DIR", &account),
            ("NODE_NAME", NODE),
        ];
        let ports = ["--health-port", "8000", "--monitoring-port", "15014"];
        let flags = [&["--ambient-enablement-selector", SELECTOR], ports.as_slice(), self.flags.as_slice()].concat();
        self.node.start_agent_in(&environment, &flags)
    }

    fn launch_agent(&mut self) {
        self.agent = Some(self.new_agent());
    }

    fn start_agent(&mut self) {
        self.launch_agent();
        self.wait_for_agent();
    }

    /// Waits until its stores are filled. Nothing is installed on this node, so it never calls itself ready.
    fn wait_for_agent(&self) {
        self.node.wait_for_agent();
    }

    fn server_down(&mut self) {
        let World { node, server, .. } = self;
        node.host.enter(|| server.go_down());
    }

    fn server_up(&mut self) {
        let World { node, server, .. } = self;
        node.host.enter(|| server.come_back());
    }

    fn log(&self) -> String {
        self.agent.as_ref().unwrap().log()
    }

    /// Asks a port of the node: status and body.
    fn get(&self, port: u16, path: &str) -> Option<(u16, String)> {
        self.node.host.enter(|| http::get(port, path))
    }

    fn metrics(&self) -> String {
        self.get(MONITORING, "/metrics").unwrap().1
    }

    fn kill_agent(&mut self) {
        self.agent.take().unwrap().kill();
    }

    /// Before there is an agent to connect to.
    fn start_ztunnel_early(&mut self) {
        let options = standin::Options { socket: self.node.ztunnel(), ..Default::default() };
        self.ztunnel = Some(Standin::start(options));
    }

    fn start_ztunnel(&mut self) {
        self.start_ztunnel_early();
        eventually("ztunnel has its snapshot", || self.ztunnel().stats().ready);
    }

    fn ztunnel(&self) -> &Standin {
        self.ztunnel.as_ref().unwrap()
    }

    fn status(&self) -> Option<Status> {
        self.node.status()
    }

    fn pod(&self, name: &str) -> Option<PodStatus> {
        // Of several with this name the one that the server has.
        let held = |pod: &PodStatus| {
            self.server.get(Kind::Pods, &pod.namespace, name).is_some_and(|p| p["metadata"]["uid"] == pod.uid)
        };
        let mut pods: Vec<_> = self.status()?.pods.into_iter().filter(|pod| pod.name == name).collect();
        pods.sort_by_key(|pod| !held(pod));
        pods.into_iter().next()
    }

    fn state(&self, name: &str) -> String {
        self.pod(name).map_or("unknown".to_owned(), |pod| format!("{:?}", pod.state).to_lowercase())
    }

    /// Addresses in the IPv4 probe set, and the uids they are entered for.
    fn probe_set(&self) -> BTreeMap<String, String> {
        let text = run_in(self.node.host.netns(), "ipset", &["save", "istio-inpod-probes-v4"]);
        let entries = text.lines().filter_map(|line| line.strip_prefix("add istio-inpod-probes-v4 "));
        let entries = entries.filter_map(|entry| entry.split_once(" comment "));
        entries.map(|(ip, uid)| (ip.to_owned(), uid.trim_matches('"').to_owned())).collect()
    }

    fn annotation(&self, namespace: &str, name: &str) -> Option<String> {
        self.server.annotation(namespace, name, ANNOTATION)
    }

    /// The pod's object, and its namespace with its address.
    fn make_pod(&self, namespace: &str, name: &str, ip: &str) -> PodNetns {
        self.server.put_pod(namespace, name, NODE, json!({}), &[ip]);
        netns(ip)
    }

    fn uid(&self, namespace: &str, name: &str) -> String {
        self.server.get(Kind::Pods, namespace, name).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// One call of the plugin, as a container runtime makes it.
    #[track_caller]
    fn plugin(&self, command: &str, namespace: &str, name: &str, netns: &PodNetns, ip: &str) -> Finished {
        self.plugin_under(&[], command, namespace, name, netns, ip)
    }

    /// Starts the agent by another program.
    #[track_caller]
    fn plugin_under(
        &self,
        wrapper: &[&str],
        command: &str,
        namespace: &str,
        name: &str,
        netns: &PodNetns,
        ip: &str,
    ) -> Finished {
        let mut conf = json!({
            "cniVersion": "1.1.0", "name": "net", "type": "istio-cni", "cni_agent_run_dir": self.node.run(),
            "ambient_enabled": true, "enablement_selectors": serde_json::from_str::<Value>(SELECTOR).unwrap(),
            "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": format!("{ip}/24")}]},
        });
        for (key, value) in self.conf.as_object().unwrap() {
            conf[key] = value.clone();
        }
        let uid = self.uid(namespace, name);
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_UID={uid}");
        let container = format!("box-{}", netns.netns().id().ino);
        let mut run = match wrapper {
            [] => ferrule_as("istio-cni", &[]),
            [program, args @ ..] => {
                let mut run = std::process::Command::new(program);
                run.args(args).arg(FERRULE).env_clear().env("PATH", "/usr/bin");
                run
            }
        };
        tell_plugin(&mut run, command, &container, &args, netns.path());
        // On the host, where the API server is.
        self.node.host.enter(|| finish(&mut run, conf.to_string().as_bytes()))
    }

    /// ADD that must work.
    #[track_caller]
    fn add(&self, namespace: &str, name: &str, netns: &PodNetns, ip: &str) {
        self.plugin("ADD", namespace, name, netns, ip).succeeded();
    }

    /// ADD that must fail; returns the CNI error's code and message.
    #[track_caller]
    fn add_fails(&self, namespace: &str, name: &str, netns: &PodNetns, ip: &str) -> (u64, String) {
        self.plugin("ADD", namespace, name, netns, ip).cni_error()
    }

    #[track_caller]
    fn assert_enrolled(&self, namespace: &str, name: &str, netns: &PodNetns) {
        eventually("enrolled", || self.state(name) == "enrolled");
        assert!(is_right(netns), "rules of {name}:\n{}", rules(netns));
        eventually("annotated", || self.annotation(namespace, name).as_deref() == Some("enabled"));
        let served = self.ztunnel().stats().pods[&self.uid(namespace, name)].netns;
        assert_eq!(served, netns.netns().id().ino, "ztunnel serves another namespace");
    }

    #[track_caller]
    fn assert_out(&self, namespace: &str, name: &str, netns: &PodNetns) {
        eventually("taken out", || matches!(self.state(name).as_str(), "none" | "unknown"));
        eventually("its rules are out", || !has_rules(netns));
        eventually("annotation gone", || self.annotation(namespace, name).is_none());
        let served =
            self.ztunnel.as_ref().map(|z| z.stats().pods.get(&self.uid(namespace, name)).map_or(0, |p| p.netns));
        assert!(matches!(served, None | Some(0)), "ztunnel still serves {name}");
    }
}

/// Makes a process of a pod below a host root of a test's own.
fn put_process(root: &Path, pid: u32, uid: &str, netns: &PodNetns) {
    let file = format!("/proc/{}/fd/{}", getpid(), netns.netns().as_fd().as_raw_fd());
    crate::bench::cluster::put_process(root, pid, uid, &file);
}
