//! Records of an earlier run are proved before they are used: whatever came into their place while no agent of ours ran
//! is not touched in their name.

use super::*;
use crate::rules::pod::plain;
use crate::sidecar::scene;
use crate::support::engine::{BACKENDS, programmer};
use ferrule::dataplane::backend::Backend;
use ferrule::dataplane::xtables::variant::Variant;
use ferrule::rules::inpod::Settings;
use ferrule::rules::sidecar;

const IP: &str = "10.48.1.2";

/// A node whose processes are those that a test puts there.
struct Stage {
    world: World,
    root: TempDir,
}

impl Stage {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut world = World::without_agent(&[]);
        world.node.host_root = root.path().to_owned();
        // Paths of namespaces are the host's.
        std::fs::create_dir_all(root.path().join("proc/1")).unwrap();
        std::os::unix::fs::symlink("/", root.path().join("proc/1/root")).unwrap();
        world.start_agent();
        world.start_ztunnel();
        Stage { world, root }
    }

    fn run(&self, pid: u32, namespace: &str, name: &str, netns: &PodNetns) {
        let _ = std::fs::remove_dir_all(self.root.path().join(format!("proc/{pid}")));
        put_process(self.root.path(), pid, &self.world.uid(namespace, name), netns);
    }

    /// A pod in the mesh with a process.
    fn enrolled(&self, pid: u32, name: &str, ip: &str) -> PodNetns {
        let netns = self.world.make_pod("mesh", name, ip);
        self.run(pid, "mesh", name, &netns);
        self.world.add("mesh", name, &netns, ip);
        self.world.assert_enrolled("mesh", name, &netns);
        netns
    }

    /// The pod is deleted and made again, and another agent enrols it.
    fn made_again(&self, name: &str) {
        let World { server, .. } = &self.world;
        server.delete(Kind::Pods, "mesh", name);
        server.put_pod("mesh", name, NODE, json!({}), &[IP]);
        server.merge(Kind::Pods, "mesh", name, &json!({ "metadata": { "annotations": { ANNOTATION: "enabled" } } }));
    }
}

/// Puts one namespace in the place of another's path.
fn replace(old: &PodNetns, new: &PodNetns) {
    nix::mount::umount(old.path()).unwrap();
    let bind = nix::mount::MsFlags::MS_BIND;
    nix::mount::mount(Some(new.path()), old.path(), None::<&str>, bind, None::<&str>).unwrap();
}

/// The rules of a pod in the mesh, as another agent puts them there.
fn put_rules(netns: &PodNetns) {
    let (inpod, _dir) = programmer(Backend::Iptables(Variant::Nft));
    inpod.apply(netns.netns(), &Settings { ipv6: false, ..plain() }).unwrap();
}

fn made_again(same_namespace: bool) {
    let mut stage = Stage::new();
    let old = stage.enrolled(11, "web", IP);
    let uid = stage.world.uid("mesh", "web");
    stage.world.kill_agent();
    stage.made_again("web");
    let new = netns(IP);
    let current = if same_namespace { &old } else { &new };
    if !same_namespace {
        replace(&old, &new);
        put_rules(&new);
    }
    stage.run(11, "mesh", "web", current);
    let before = rules(current);
    stage.world.start_agent();
    eventually("enrolled", || {
        assert_eq!(rules(current), before, "{}", stage.world.log());
        stage.world.state("web") == "enrolled"
    });
    stage.world.assert_enrolled("mesh", "web", current);
    assert_eq!(rules(current), before);
    let status = stage.world.status().unwrap();
    assert!(status.pods.iter().all(|pod| pod.uid != uid), "{status:?}");
    eventually("no record", || !stage.world.node.run().join(format!("netns/{uid}.json")).exists());
    let entered = BTreeMap::from([(IP.to_owned(), stage.world.uid("mesh", "web"))]);
    eventually("in the probe set", || stage.world.probe_set() == entered);
}

#[test]
fn a_pod_that_was_made_again_is_not_taken_for_its_predecessor() {
    made_again(true);
}

#[test]
fn a_pod_that_was_made_again_in_another_namespace_is_not_taken_for_its_predecessor() {
    made_again(false);
}

#[test]
fn a_pod_that_left_the_mesh_takes_no_rules_out_of_a_namespace_that_came_into_its_place() {
    let mut stage = Stage::new();
    let old = stage.enrolled(11, "web", IP);
    stage.world.kill_agent();
    // It left the mesh and its processes have ended; another one has its address, and the path of its namespace.
    let label = json!({ "metadata": { "labels": { "istio.io/dataplane-mode": "none" } } });
    stage.world.server.merge(Kind::Pods, "mesh", "web", &label);
    std::fs::remove_dir_all(stage.root.path().join("proc/11")).unwrap();
    let new = stage.world.make_pod("mesh", "other", IP);
    replace(&old, &new);
    put_rules(&new);
    let before = rules(&new);
    stage.world.start_agent();
    eventually("given up", || stage.world.state("web") == "none");
    eventually("recorded as it is", || {
        let path = stage.world.node.run().join(format!("netns/{}.json", stage.world.uid("mesh", "web")));
        !std::fs::read_to_string(path).unwrap_or_default().contains(r#""enrolled":true"#)
    });
    assert_eq!(rules(&new), before);
    // The other one is found by its process.
    stage.run(12, "mesh", "other", &new);
    stage.world.assert_enrolled("mesh", "other", &new);
}

#[test]
fn a_record_without_processes_is_believed_where_the_kernel_proves_the_namespace() {
    let mut stage = Stage::new();
    let netns = stage.enrolled(11, "web", IP);
    stage.world.kill_agent();
    std::fs::remove_dir_all(stage.root.path().join("proc/11")).unwrap();
    stage.world.start_agent();
    stage.world.assert_enrolled("mesh", "web", &netns);
    // Not where a process says that it is another pod's.
    stage.world.kill_agent();
    stage.world.server.put_pod("mesh", "other", NODE, json!({}), &[IP]);
    stage.run(12, "mesh", "other", &netns);
    stage.world.start_agent();
    stage.world.assert_enrolled("mesh", "other", &netns);
    assert_eq!(stage.world.state("web"), "lost");
}

#[test]
fn ambient_rules_do_not_go_where_a_sidecars_are() {
    for backend in BACKENDS {
        let stage = Stage::new();
        let world = &stage.world;
        let netns = world.make_pod("mesh", "web", IP);
        let (inpod, _dir) = programmer(backend);
        inpod.apply(netns.netns(), sidecar::program(&scene::plain(), true)).unwrap();
        let all = || [rules(&netns), crate::support::netns::nft_list(netns.netns())];
        let before = all();
        let (code, message) = world.add_fails("mesh", "web", &netns, IP);
        assert!(code == 101 && message.contains("the network namespace is a sidecar's: "), "{code} {message}");
        assert_eq!(all(), before, "{backend:?}");
        // It runs, and is found by its process.
        stage.run(11, "mesh", "web", &netns);
        eventually("told", || {
            world.pod("web").is_some_and(|pod| pod.reason.contains("the network namespace is a sidecar's: "))
        });
        assert_eq!(all(), before, "{backend:?}");
        assert_eq!(world.annotation("mesh", "web"), None);
    }
}
