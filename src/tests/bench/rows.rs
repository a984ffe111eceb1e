//! What is measured.

use super::node::{Node, Sandbox, plugin, timed};
use super::pairs::{self, Medians};
use super::{Options, Row};
use serde_json::json;
use std::process::Command;

/// Each returns a row or several.
pub const ALL: &[fn(&Options) -> Vec<Row>] = &[idle_plugin, rules_step, whole_add, memory, size];

fn ratio(name: &'static str, medians: Medians, goal: f64) -> Row {
    Row { name, value: medians.to_string(), goal: Some(goal), number: medians.ratio }
}

fn megabytes(name: &'static str, bytes: u64, goal: Option<f64>) -> Row {
    let number = bytes as f64 / 1e6;
    Row { name, value: format!("{number:.2} MB"), goal, number }
}

fn count(options: &Options, count: usize) -> usize {
    if options.quick { 2 } else { count }
}

/// The plugin for a pod of an excluded namespace, as most calls on a node outside the mesh are.
fn idle_plugin(options: &Options) -> Vec<Row> {
    let conf = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "istio-cni", "exclude_namespaces": ["kube-system"],
        "prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]},
    });
    let medians = pairs::measure(
        count(options, 400),
        |_| plugin(&options.ferrule, "ADD", "dns", "kube-system", "/var/run/netns/x", &conf),
        |_| {
            let mut command = Command::new("/bin/true");
            command.env_clear();
            timed(command, b"")
        },
    );
    vec![ratio("plugin with nothing to do / true", medians, 2.0)]
}

/// From the request to the moment ztunnel is handed the pod, which is when its rules are verified.
fn rules_step(options: &Options) -> Vec<Row> {
    add(options, "rules step / two restores", 1.3, |node, ztunnel, n, sandbox| {
        let sent = node.request(n, sandbox);
        ztunnel.next() - sent
    })
}

/// The plugin from its start to its end, for an ambient pod.
fn whole_add(options: &Options) -> Vec<Row> {
    add(options, "ADD of an ambient pod / two restores", 2.0, |node, ztunnel, n, sandbox| {
        let took = node.plugin("ADD", n, sandbox);
        ztunnel.next();
        took
    })
}

fn add(
    options: &Options,
    name: &'static str,
    goal: f64,
    enrol: impl Fn(&Node, &super::ztunnel::Ztunnel, usize, &Sandbox) -> std::time::Duration,
) -> Vec<Row> {
    let count = count(options, 100);
    let node = Node::start(&options.ferrule, count + 10);
    let ztunnel = node.ztunnel();
    // Made before, and gone only after: making and removing namespaces keeps the kernel busy.
    let sandboxes: Vec<_> = (0..count + 10).map(|_| (Sandbox::new(), Sandbox::new())).collect();
    let medians = pairs::measure(count, |n| enrol(&node, &ztunnel, n, &sandboxes[n].0), |n| sandboxes[n].1.restores());
    vec![ratio(name, medians, goal)]
}

/// What the agent keeps resident.
fn memory(options: &Options) -> Vec<Row> {
    let node = Node::start(&options.ferrule, 0);
    let _ztunnel = node.ztunnel();
    let without = node.resident();
    drop(node);
    let count = if options.quick { 5 } else { 250 };
    let node = Node::start(&options.ferrule, count);
    let ztunnel = node.ztunnel();
    let sandboxes: Vec<_> = (0..count).map(|_| Sandbox::new()).collect();
    for (n, sandbox) in sandboxes.iter().enumerate() {
        node.request(n, sandbox);
        ztunnel.next();
    }
    vec![
        megabytes("agent, resident, no pods", without, None),
        megabytes("agent, resident, 250 pods", node.resident(), Some(10.0)),
    ]
}

fn size(options: &Options) -> Vec<Row> {
    vec![megabytes("executable", std::fs::metadata(&options.ferrule).unwrap().len(), None)]
}
