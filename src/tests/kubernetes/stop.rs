//! A stop: an upgrade, an uninstallation, or an API server that does not tell.

use super::*;
use crate::apiserver::Fault;

const CHAIN: &str = r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"}]}"#;

/// How much of what was installed is there after the stop.
#[derive(Debug, PartialEq)]
struct Left {
    entry: bool,
    plugin: bool,
    host_rules: bool,
    pod_rules: bool,
}

const ALL: Left = Left { entry: true, plugin: true, host_rules: true, pod_rules: true };
const PODS_ONLY: Left = Left { entry: false, plugin: false, host_rules: false, pod_rules: true };

fn daemon_set(affinity: Value) -> Value {
    json!({
        "metadata": {"name": "istio-cni-node", "namespace": "istio-system"},
        "spec": {"template": {"spec": {"affinity": affinity}}},
    })
}

/// Requires the label `mesh` on nodes.
fn affinity() -> Value {
    let terms = json!([{"matchExpressions": [{"key": "mesh", "operator": "Exists"}]}]);
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}})
}

/// Stops an agent that has a pod in the mesh, on a server that was prepared like this.
#[track_caller]
fn stop(flags: &[&'static str], prepare: impl FnOnce(&World)) -> Left {
    let mut world = World::without_agent(flags);
    // Of a sandbox that still needs the plugin there is no trace.
    let root = tempfile::tempdir().unwrap();
    for dir in ["proc", "var/lib/cni/results", "var/lib/cni/cache/results"] {
        std::fs::create_dir_all(root.path().join(dir)).unwrap();
    }
    world.node.host_root = root.path().to_owned();
    let conf = world.node.net_dir().join("10-net.conflist");
    std::fs::write(&conf, CHAIN).unwrap();
    world.start_agent();
    world.start_ztunnel();
    let netns = world.make_pod("mesh", "web", "10.47.1.2");
    world.add("mesh", "web", &netns, "10.47.1.2");
    let look = |world: &World| Left {
        entry: std::fs::read_to_string(&conf).unwrap().contains("istio-cni"),
        plugin: world.node.bin_dir().join("istio-cni").exists(),
        host_rules: crate::support::netns::run_in(world.node.host.netns(), "iptables-save", &[]).contains("ISTIO"),
        pod_rules: is_right(&netns),
    };
    eventually("everything is installed", || look(&world) == ALL);
    prepare(&world);
    assert_eq!(world.agent.take().unwrap().terminate(), Some(0));
    look(&world)
}

#[test]
fn a_daemon_set_that_stays_is_an_upgrade() {
    assert_eq!(stop(&[], |world| drop(world.server.put(Kind::DaemonSets, daemon_set(json!({}))))), ALL);
    let wanted = |world: &World| {
        world.server.put(Kind::DaemonSets, daemon_set(affinity()));
        world.server.put(Kind::Nodes, json!({"metadata": {"name": NODE, "labels": {"mesh": ""}}}));
    };
    assert_eq!(stop(&[], wanted), ALL);
}

#[test]
fn a_daemon_set_that_is_gone_or_going_is_the_end() {
    assert_eq!(stop(&[], |_| {}), PODS_ONLY);
    let going = |world: &World| {
        let mut set = daemon_set(json!({}));
        set["metadata"]["deletionTimestamp"] = json!("2026-11-30T05:13:08Z");
        world.server.put(Kind::DaemonSets, set);
    };
    assert_eq!(stop(&[], going), PODS_ONLY);
}

#[test]
fn a_node_that_is_not_wanted_any_more_is_the_end() {
    let unwanted = |world: &World| {
        world.server.put(Kind::DaemonSets, daemon_set(affinity()));
        world.server.put(Kind::Nodes, json!({"metadata": {"name": NODE, "labels": {}}}));
    };
    assert_eq!(stop(&[], unwanted), PODS_ONLY);
}

#[test]
fn lost_grants_are_the_end() {
    for status in [401, 403] {
        let refuse = |world: &World| world.server.misbehave("get daemonsets", None, Fault::Answer(status, None));
        assert_eq!(stop(&[], refuse), PODS_ONLY, "{status}");
    }
}

#[test]
fn no_answer_leaves_everything() {
    let silent = |world: &World| world.server.misbehave("get daemonsets", None, Fault::Close);
    assert_eq!(stop(&[], silent), ALL);
    let broken = |world: &World| world.server.misbehave("get daemonsets", None, Fault::Answer(500, None));
    assert_eq!(stop(&[], broken), ALL);
}

#[test]
fn without_safe_upgrade_a_stop_always_removes() {
    let stays = |world: &World| drop(world.server.put(Kind::DaemonSets, daemon_set(json!({}))));
    assert_eq!(stop(&["--ambient-disable-safe-upgrade"], stays), PODS_ONLY);
}
