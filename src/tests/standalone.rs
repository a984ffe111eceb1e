//! The agent in standalone mode: the real executable, real namespaces and rules, the plugin as a runtime runs it, and
//! a stand-in for ztunnel.

mod churn;
mod enrol;
mod hearing;
mod native;
mod restart;
mod scarce;
mod sidecar;
mod socket;
mod watch;

use crate::standin::{self, Standin};
use crate::support::netns::{Backend, PodNetns, iptables_save};
use crate::support::node::{Agent, Node};
use crate::support::program::{Finished, ferrule_as, finish, tell_plugin};
use crate::support::{eventually, http};
use ferrule::node::view::{PodStatus, Status};
use ferrule::rules::family::Family;
use ferrule::sys::netlink;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

/// Pods with this label, or in namespaces with it, are in the mesh.
pub const SELECTOR: &str = r#"[{"podSelector":{"matchLabels":{"istio.io/dataplane-mode":"ambient"}}},
    {"podSelector":{"matchExpressions":[{"key":"istio.io/dataplane-mode","operator":"NotIn","values":["none"]}]},
     "namespaceSelector":{"matchLabels":{"istio.io/dataplane-mode":"ambient"}}}]"#;

/// A node with a running agent and, usually, a ztunnel.
struct World {
    ztunnel: Option<Standin>,
    agent: Option<Agent>,
    /// Last: its directories go with it, and the agent's log is shown when a test fails.
    node: Node,
    flags: Vec<&'static str>,
}

impl World {
    /// Agent and ztunnel, both ready.
    fn new() -> Self {
        let mut world = World::without_ztunnel(&[]);
        world.start_ztunnel();
        world
    }

    fn without_ztunnel(flags: &[&'static str]) -> Self {
        let mut world = World { node: Node::new(), agent: None, ztunnel: None, flags: flags.to_vec() };
        world.start_agent();
        world
    }

    fn start_agent(&mut self) {
        let flags = [&["--ambient-enablement-selector", SELECTOR], self.flags.as_slice()].concat();
        self.agent = Some(self.node.start_agent(&flags));
        self.wait_for_agent();
    }

    /// Waits until its stores are filled. Nothing is installed on this node, so it never calls itself ready.
    fn wait_for_agent(&self) {
        self.node.wait_for_agent();
    }

    fn agent(&self) -> &Agent {
        self.agent.as_ref().unwrap()
    }

    fn kill_agent(&mut self) {
        self.agent.take().unwrap().kill();
    }

    fn start_ztunnel(&mut self) {
        let options = standin::Options { socket: self.node.ztunnel(), ..Default::default() };
        self.ztunnel = Some(Standin::start(options));
        eventually("ztunnel has its snapshot", || self.ztunnel().stats().ready);
    }

    fn ztunnel(&self) -> &Standin {
        self.ztunnel.as_ref().unwrap()
    }

    fn status(&self) -> Option<Status> {
        self.node.status()
    }

    fn pod(&self, name: &str) -> Option<PodStatus> {
        self.status()?.pods.into_iter().find(|pod| pod.name == name)
    }

    /// `enrolled`, `pending`, …; `unknown` when the agent does not show it.
    fn state(&self, name: &str) -> String {
        self.pod(name).map_or("unknown".to_owned(), |pod| format!("{:?}", pod.state).to_lowercase())
    }

    /// What `state.json` says: uid and value.
    fn published(&self) -> Vec<(String, String)> {
        let text = std::fs::read_to_string(self.node.run().join("state.json")).unwrap_or_default();
        let state: Value = serde_json::from_str(&text).unwrap_or_default();
        let pods = state["pods"].as_object().cloned().unwrap_or_default();
        pods.into_iter().map(|(uid, pod)| (uid, pod["redirection"].as_str().unwrap().to_owned())).collect()
    }

    /// Writes the file of a pod in the mesh, with uid NAME, and makes its namespace with its address.
    fn make_pod(&self, name: &str, ip: &str) -> PodNetns {
        self.node.write_pod(&format!("{name}.json"), &pod_json(name, ip, json!({})));
        netns(ip)
    }

    /// One call of the plugin, as a container runtime makes it.
    #[track_caller]
    fn plugin(&self, command: &str, name: &str, container: &str, netns: &Path, ip: &str) -> Finished {
        let (mut run, conf) = self.call(command, name, container, netns, ip);
        finish(&mut run, &conf)
    }

    /// The plugin as a container runtime calls it, and its standard input.
    fn call(&self, command: &str, name: &str, container: &str, netns: &Path, ip: &str) -> (Command, Vec<u8>) {
        let conf = json!({
            "cniVersion": "1.1.0", "name": "net", "type": "istio-cni", "cni_agent_run_dir": self.node.run(),
            "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": format!("{ip}/24")}]},
        });
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name};K8S_POD_UID={name}");
        let mut run = ferrule_as("istio-cni", &[]);
        tell_plugin(&mut run, command, container, &args, netns);
        (run, conf.to_string().into_bytes())
    }

    /// ADD that must work.
    #[track_caller]
    fn add(&self, name: &str, container: &str, netns: &PodNetns, ip: &str) {
        self.plugin("ADD", name, container, netns.path(), ip).succeeded();
    }

    /// ADD that must fail; returns the CNI error's code and message.
    #[track_caller]
    fn add_fails(&self, name: &str, container: &str, netns: &Path, ip: &str) -> (u64, String) {
        self.plugin("ADD", name, container, netns, ip).cni_error()
    }

    #[track_caller]
    fn del(&self, name: &str, container: &str, netns: &PodNetns) {
        self.plugin("DEL", name, container, netns.path(), "10.0.0.1").succeeded();
    }

    /// Istio's own plugin asks, by path.
    fn istio_add(&self, name: &str, netns: &Path, ips: &Value) -> (u16, String) {
        let body = json!({"Netns": netns, "PodName": name, "PodNamespace": "default", "IPs": ips});
        http::request(&self.node.events(), "POST", "/cmdadd", &body.to_string()).unwrap()
    }

    #[track_caller]
    fn assert_nothing_left(&self, name: &str, netns: &PodNetns) {
        // They go after what is published, and after ztunnel.
        eventually("its rules are out", || !has_rules(netns));
        self.assert_over(name);
    }

    /// It has ended: its rules are left to go with its namespace.
    #[track_caller]
    fn assert_ended(&self, name: &str, netns: &PodNetns) {
        self.assert_over(name);
        assert!(is_right(netns), "rules of {name}:\n{}", rules(netns));
    }

    #[track_caller]
    fn assert_over(&self, name: &str) {
        eventually("not published", || !self.published().iter().any(|(uid, _)| uid == name));
        let serves = |ztunnel: &Standin| ztunnel.stats().pods.get(name).is_some_and(|pod| pod.netns != 0);
        eventually("ztunnel serves it no more", || !self.ztunnel.as_ref().is_some_and(serves));
        // Where the sandbox is may be remembered, but not that it has rules.
        let record = std::fs::read_to_string(self.node.run().join(format!("netns/{name}.json"))).unwrap_or_default();
        assert!(!record.contains(r#""enrolled":true"#), "{record}");
    }

    #[track_caller]
    fn assert_enrolled(&self, name: &str, netns: &PodNetns) {
        eventually("enrolled", || self.state(name) == "enrolled");
        assert!(is_right(netns), "rules of {name}:\n{}", rules(netns));
        eventually("published", || self.published().contains(&(name.to_owned(), "enabled".to_owned())));
        let served = self.ztunnel().stats().pods[name].netns;
        assert_eq!(served, netns.netns().id().ino, "ztunnel serves another namespace");
    }
}

/// A pod in the mesh, with uid NAME; `metadata` is merged in.
fn pod_json(name: &str, ip: &str, metadata: Value) -> String {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "uid": name, "namespace": "default",
                     "labels": {"istio.io/dataplane-mode": "ambient"}},
        "status": {"podIP": ip, "podIPs": [{"ip": ip}]},
    });
    for (key, value) in metadata.as_object().unwrap() {
        pod["metadata"][key] = value.clone();
    }
    pod.to_string()
}

/// A namespace with this address.
pub fn netns(ip: &str) -> PodNetns {
    let netns = PodNetns::new();
    let address: IpAddr = ip.parse().unwrap();
    netns.enter(|| netlink::add_address("lo", address, 32).unwrap());
    netns
}

/// What netfilter and routing of a namespace say, in one text.
pub fn rules(netns: &PodNetns) -> String {
    let netns = netns.netns();
    let mut text = String::new();
    for family in [Family::V4, Family::V6] {
        for backend in Backend::ALL {
            text += &iptables_save(netns, backend, family);
        }
    }
    for args in [["-4", "rule"], ["-6", "rule"]] {
        text += &crate::support::netns::run_in(netns, "ip", &args);
    }
    text
}

/// Anything of ours.
pub fn has_rules(netns: &PodNetns) -> bool {
    let rules = rules(netns);
    rules.contains("ISTIO") || rules.contains("0x111")
}

/// Everything of ours, once.
pub fn is_right(netns: &PodNetns) -> bool {
    let rules = rules(netns);
    let count = |text: &str| rules.matches(text).count();
    count("-A ISTIO_PRERT ! -d 127.0.0.1/32 -p tcp") == 1
        && count("-A OUTPUT -j ISTIO_OUTPUT") == 2
        && count("--to-ports 15001") == 1
        && count("fwmark 0x111/0xfff") == 1
}
