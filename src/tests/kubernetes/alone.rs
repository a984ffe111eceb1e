//! The plugin without an agent, and a pod with a sidecar: it programs the redirection itself, with the host's iptables.

use super::*;
use crate::support::netns::{Backend, iptables_save};
use ferrule::rules::family::Family;
use std::process::Command;

const IP: &str = "10.49.2.2";

/// A pod with a sidecar, and its namespace.
pub(super) fn make_sidecar_pod(world: &World, name: &str, annotations: Value, ip: &str) -> PodNetns {
    let netns = world.make_pod("plain", name, ip);
    let mut all = json!({ "sidecar.istio.io/status": "{}" });
    all.as_object_mut().unwrap().extend(annotations.as_object().unwrap().clone());
    let patch = json!({
        "metadata": { "annotations": all },
        "spec": { "containers": [{"name": "app"}, {"name": "istio-proxy", "args": ["proxy", "sidecar"]}] },
    });
    world.server.merge(Kind::Pods, "plain", name, &patch);
    netns
}

pub(super) fn save(netns: &PodNetns) -> String {
    Backend::ALL.map(|backend| iptables_save(netns.netns(), backend, Family::V4)).concat()
}

impl World {
    /// The plugin's ADD, started by another program; what that wrote to its standard error too.
    fn add_under(&self, wrapper: &[&str], name: &str, netns: &PodNetns, ip: &str) -> Finished {
        self.plugin_under(wrapper, "ADD", "plain", name, netns, ip)
    }
}

#[test]
fn the_plugin_redirects_the_pod_itself() {
    let world = World::abandoned();
    let excluded = json!({ "traffic.sidecar.istio.io/excludeInboundPorts": "7" });
    let netns = make_sidecar_pod(&world, "web", excluded, IP);
    let host = save(&world.node.host);
    let ended = world.plugin("ADD", "plain", "web", &netns, IP);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(serde_json::from_str::<Value>(&ended.stdout).unwrap()["ips"][0]["address"], format!("{IP}/24"));
    let rules = save(&netns);
    for rule in [
        "-A PREROUTING -p tcp -j ISTIO_INBOUND",
        "-A ISTIO_INBOUND -p tcp -m tcp --dport 7 -j RETURN",
        "-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN",
        "-A ISTIO_OUTPUT -j ISTIO_REDIRECT",
    ] {
        assert!(rules.contains(rule), "{rule}: {rules}");
    }
    world.add("plain", "web", &netns, IP);
    assert_eq!(save(&netns), rules, "a second ADD changes nothing");
    assert_eq!(save(&world.node.host), host, "nor anything on the host");
    // And an agent that comes back agrees.
    let mut world = world;
    world.start_agent();
    world.add("plain", "web", &netns, IP);
    assert_eq!(save(&netns), rules);
}

#[test]
fn everything_after_the_add_succeeds_without_an_agent_too() {
    let world = World::abandoned();
    let netns = make_sidecar_pod(&world, "web", json!({}), IP);
    // CHECK also where nothing is as it should be: nobody can tell.
    for verb in ["CHECK", "ADD", "CHECK", "DEL", "DEL"] {
        let ended = world.plugin(verb, "plain", "web", &netns, IP);
        assert_eq!(ended.code, Some(0), "{verb}: {ended:?}");
    }
}

#[test]
fn a_bad_annotation_fails_the_add_and_is_named() {
    let world = World::abandoned();
    let netns = make_sidecar_pod(&world, "web", json!({ "sidecar.istio.io/interceptionMode": "BOTH" }), IP);
    let (code, message) = world.add_fails("plain", "web", &netns, IP);
    assert_eq!(code, 100, "{message}");
    let said = "pod plain/web: annotation sidecar.istio.io/interceptionMode: \"BOTH\" is not allowed; it takes REDIRECT or TPROXY";
    assert_eq!(message, said);
    assert_eq!(save(&netns), "");
}

#[test]
fn a_host_without_iptables_fails_the_add_and_says_so_first() {
    let world = World::abandoned();
    let netns = make_sidecar_pod(&world, "web", json!({}), IP);
    let bare = ["unshare", "-m", "sh", "-ec", "mount -t tmpfs none /usr/sbin; exec \"$@\"", "sh"];
    let ended = world.add_under(&bare, "web", &netns, IP);
    let error: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {ended:?}"));
    assert_eq!((ended.code, error["code"].as_u64()), (Some(1), Some(11)), "{ended:?}");
    let message = error["msg"].as_str().unwrap();
    let first = "the pod cannot be redirected to its sidecar without the node agent: no iptables that works here";
    assert!(message.starts_with(first) && message.contains("node agent not ready ("), "{message}");
    assert_eq!(save(&netns), "");
}

/// What the programs that the plugin starts open, and how the plugin mounts, seen by strace.
fn traced(inject: &[&str]) -> (Finished, String, PodNetns) {
    let world = World::abandoned();
    let netns = make_sidecar_pod(&world, "web", json!({}), IP);
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("trace");
    let strace = [&["strace", "-fqqy", "-o", log.to_str().unwrap(), "-e", "trace=mount,read"], inject].concat();
    let ended = world.add_under(&strace, "web", &netns, IP);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(save(&netns).contains("-A ISTIO_OUTPUT -j ISTIO_REDIRECT"), "{}", save(&netns));
    let unchanged = Command::new("findmnt").arg("/etc/nsswitch.conf").output().unwrap();
    assert_eq!(unchanged.stdout, b"", "nobody else sees the mount");
    (ended, std::fs::read_to_string(log).unwrap(), netns)
}

/// How much is read, each time, of the file that says how users are looked up.
fn read(trace: &str) -> Vec<usize> {
    let reads = trace.lines().filter(|line| line.contains("read(") && line.contains("</etc/nsswitch.conf>"));
    reads.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
}

const WARNING: &str = "/etc/nsswitch.conf stays in sight of iptables";

#[test]
fn no_user_is_looked_up_over_the_network() {
    let (ended, trace, _netns) = traced(&[]);
    let read = read(&trace);
    assert!(!read.is_empty() && read.iter().all(|bytes| *bytes == 0), "{read:?}");
    assert!(trace.contains("MS_REC|MS_PRIVATE") && !trace.contains("MS_SLAVE"), "{trace}");
    assert!(!ended.stderr.contains(WARNING), "{}", ended.stderr);
}

#[test]
fn where_private_mounts_are_refused_slaves_do() {
    let (ended, trace, _netns) = traced(&["-e", "inject=mount:error=EACCES:when=1"]);
    assert!(read(&trace).iter().all(|bytes| *bytes == 0), "{trace}");
    assert!(trace.contains("MS_REC|MS_SLAVE") && !ended.stderr.contains(WARNING), "{trace}");
}

#[test]
fn where_every_mount_is_refused_it_goes_on_with_a_warning() {
    let (ended, trace, _netns) = traced(&["-e", "inject=mount:error=EPERM"]);
    assert!(read(&trace).iter().any(|bytes| *bytes > 0), "the others show nothing if it is never read: {trace}");
    assert!(ended.stderr.contains(WARNING), "{}", ended.stderr);
}
