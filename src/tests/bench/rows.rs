//! What is measured.

use super::cluster;
use super::node::{Node, Sandbox, plugin, timed};
use super::pairs::{self, Medians};
use super::{Options, Row};
use ferrule::dataplane::backend::Backend;
use ferrule::dataplane::xtables::variant::Variant;
use serde_json::json;
use std::process::Command;
use std::time::Duration;

/// Measures something, in a row or several.
type Measure = fn(&Options) -> Vec<Row>;

/// What is measured, by a short name.
pub const ALL: &[(&str, Measure)] = &[
    ("plugin", idle_plugin),
    ("rules", rules_step),
    ("add", whole_add),
    ("memory", memory),
    ("cluster", cluster::rows),
    ("size", size),
];

const BACKENDS: [Backend; 3] = [Backend::Iptables(Variant::Nft), Backend::Iptables(Variant::Legacy), Backend::Nftables];

fn ratio(name: &'static str, medians: Medians, goal: f64) -> Row {
    Row { name, value: medians.to_string(), goal: Some(goal), number: medians.ratio }
}

pub fn megabytes(name: &'static str, bytes: u64, goal: Option<f64>) -> Row {
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
    let names = [
        "rules step / two restores",
        "rules step / two restores, legacy",
        "rules step, native nf_tables / two restores",
    ];
    let rows = names.into_iter().zip(BACKENDS).map(|(name, backend)| {
        let (count, node) = node_for_pairs(options, backend);
        let ztunnel = node.ztunnel();
        let medians = beside_restores(count, backend, |n, sandbox| {
            let sent = node.request(n, sandbox);
            ztunnel.next() - sent
        });
        ratio(name, medians, 1.3)
    });
    rows.collect()
}

/// The plugin from its start to its end, for an ambient pod; ztunnel opens its ports in it meanwhile.
fn whole_add(options: &Options) -> Vec<Row> {
    let names = [
        "ADD of an ambient pod / two restores",
        "ADD of an ambient pod / two restores, legacy",
        "ADD of an ambient pod, native nf_tables / two restores",
    ];
    let rows = names.into_iter().zip(BACKENDS).map(|(name, backend)| {
        let (count, node) = node_for_pairs(options, backend);
        let _ztunnel = node.standin();
        let medians = beside_restores(count, backend, |n, sandbox| node.plugin("ADD", n, sandbox));
        ratio(name, medians, 2.0)
    });
    rows.collect()
}

/// How many pairs, and an agent that knows a pod for each.
fn node_for_pairs(options: &Options, backend: Backend) -> (usize, Node) {
    let count = count(options, 100);
    (count, Node::start(&options.ferrule, count + pairs::WARM_UP, backend))
}

/// An enrolment beside the two restores of the same rules, each in a namespace of its own.
fn beside_restores(count: usize, backend: Backend, enrol: impl Fn(usize, &Sandbox) -> Duration) -> Medians {
    let variant = match backend {
        Backend::Iptables(variant) => variant,
        Backend::Nftables => Variant::Nft,
    };
    // Made before, and gone only after: making and removing namespaces keeps the kernel busy.
    let sandboxes: Vec<_> = (0..count + pairs::WARM_UP).map(|_| (Sandbox::new(), Sandbox::new())).collect();
    pairs::measure(count, |n| enrol(n, &sandboxes[n].0), |n| sandboxes[n].1.restores(variant))
}

/// What the agent keeps resident.
fn memory(options: &Options) -> Vec<Row> {
    let node = Node::start(&options.ferrule, 0, BACKENDS[0]);
    let _ztunnel = node.ztunnel();
    let without = node.resident();
    drop(node);
    let count = if options.quick { 5 } else { 250 };
    let node = Node::start(&options.ferrule, count, BACKENDS[0]);
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
