//! The host's probe set is filled and pruned at the start, before any ztunnel is there: a pod that the kubelet cannot probe
//! is started again and again.

use super::*;

const IP: &str = "10.49.2.2";
const SET: &str = "istio-inpod-probes-v4";

fn annotate(world: &World, name: &str) {
    let annotated = json!({ "metadata": { "annotations": { ANNOTATION: "enabled" } } });
    world.server.merge(Kind::Pods, "mesh", name, &annotated);
}

#[test]
fn a_pod_that_was_enrolled_is_entered_without_a_ztunnel() {
    let root = tempfile::tempdir().unwrap();
    let mut world = World::new();
    let recorded = world.make_pod("mesh", "recorded", IP);
    world.add("mesh", "recorded", &recorded, IP);
    world.assert_enrolled("mesh", "recorded", &recorded);
    world.kill_agent();
    world.ztunnel = None;
    run_in(world.node.host.netns(), "ipset", &["flush", SET]);
    // Another agent has enrolled this one.
    let annotated = world.make_pod("mesh", "annotated", "10.49.2.3");
    annotate(&world, "annotated");
    world.node.host_root = root.path().to_owned();
    std::fs::create_dir_all(root.path().join("proc/1")).unwrap();
    std::os::unix::fs::symlink("/", root.path().join("proc/1/root")).unwrap();
    put_process(root.path(), 11, &world.uid("mesh", "annotated"), &annotated);
    world.start_agent();
    let entered = BTreeMap::from([
        (IP.to_owned(), world.uid("mesh", "recorded")),
        ("10.49.2.3".to_owned(), world.uid("mesh", "annotated")),
    ]);
    eventually("both are entered", || world.probe_set() == entered);
    // One that joins the mesh while there is none.
    let joined = world.make_pod("plain", "joined", "10.49.2.4");
    put_process(root.path(), 12, &world.uid("plain", "joined"), &joined);
    eventually("known", || world.state("joined") == "none");
    world.server.label_namespace("plain", json!({ "istio.io/dataplane-mode": "ambient" }));
    eventually("rules without a ztunnel", || is_right(&joined));
    eventually("it is entered", || world.probe_set().len() == 3);
    assert_eq!(world.state("joined"), "pending");
    world.start_ztunnel();
    for (namespace, name, netns) in
        [("mesh", "recorded", &recorded), ("mesh", "annotated", &annotated), ("plain", "joined", &joined)]
    {
        world.assert_enrolled(namespace, name, netns);
    }
}

#[test]
fn what_belongs_to_pods_that_went_is_thrown_out_at_the_start() {
    let mut world = World::new();
    let (web, lost) = (world.make_pod("mesh", "web", IP), world.make_pod("mesh", "lost", "10.49.2.3"));
    world.add("mesh", "web", &web, IP);
    world.add("mesh", "lost", &lost, "10.49.2.3");
    world.assert_enrolled("mesh", "lost", &lost);
    world.assert_enrolled("mesh", "web", &web);
    let uid = world.uid("mesh", "lost");
    world.kill_agent();
    world.server.delete(Kind::Pods, "mesh", "web");
    // Left by another agent; and where this one's namespace is nobody knows.
    run_in(world.node.host.netns(), "ipset", &["add", SET, "10.49.2.9", "comment", "gone"]);
    std::fs::remove_file(world.node.run().join(format!("netns/{uid}.json"))).unwrap();
    world.start_agent();
    let rest = BTreeMap::from([("10.49.2.3".to_owned(), uid)]);
    eventually("only what belongs to a pod is left", || world.probe_set() == rest);
    assert_eq!(world.state("lost"), "lost");
}
