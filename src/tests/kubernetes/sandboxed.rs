//! Runtimes with a network stack of their own: what leaves and reaches such a pod passes the kernel's rules by.

use super::*;
use crate::support::netns::run_in;

const IP: &str = "10.45.1.2";

/// What gVisor does when the sandbox starts: packets are read and written below the kernel's stack.
fn take_addresses_over(netns: &PodNetns) {
    run_in(netns.netns(), "ip", &["addr", "flush", "dev", "lo", "scope", "global"]);
}

fn addresses(ips: &[&str]) -> Value {
    let ips: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
    json!({ "status": { "podIP": ips.first().map(|ip| ip["ip"].clone()), "podIPs": ips } })
}

#[track_caller]
fn assert_bypassed(world: &World) {
    eventually("noticed", || world.state("web") == "lost");
    let reason = world.pod("web").unwrap().reason;
    assert!(reason.contains("no rule") && reason.contains("--exclude-runtime-classes"), "{reason}");
    eventually("not published", || world.annotation("mesh", "web").is_none());
}

#[test]
fn a_pod_whose_runtime_takes_its_address_over_is_never_said_to_be_in_the_mesh() {
    let root = tempfile::tempdir().unwrap();
    let mut world = World::without_agent(&["--verify-interval", "10m"]);
    world.node.host_root = root.path().to_owned();
    world.start_agent();
    world.start_ztunnel();
    let netns = world.make_pod("mesh", "web", IP);
    world.server.merge(Kind::Pods, "mesh", "web", &addresses(&[]));
    put_process(root.path(), 11, &world.uid("mesh", "web"), &netns);
    world.add("mesh", "web", &netns, IP);
    take_addresses_over(&netns);
    // The kubelet writes the addresses down when the sandbox runs; nobody has to wait for the next verification.
    world.server.merge(Kind::Pods, "mesh", "web", &addresses(&[IP]));
    assert_bypassed(&world);
    // After a restart the same is said of it, also where an earlier agent had published it.
    world.kill_agent();
    let enabled = json!({ "metadata": { "annotations": { ANNOTATION: "enabled" } } });
    world.server.merge(Kind::Pods, "mesh", "web", &enabled);
    world.start_agent();
    assert_bypassed(&world);
}

#[test]
fn an_address_that_is_away_and_comes_back_is_followed() {
    let (world, netns) = World::enrolled(&["--verify-interval", "300ms"], IP);
    take_addresses_over(&netns);
    assert_bypassed(&world);
    // Still so one verification later.
    eventually("an Event tells", || {
        world.server.events().iter().any(|event| event["message"].as_str().unwrap().contains("no rule sees"))
    });
    run_in(netns.netns(), "ip", &["addr", "add", IP, "dev", "lo"]);
    world.assert_enrolled("mesh", "web", &netns);
}

#[test]
fn runtime_classes_can_be_left_out() {
    let mut world = World::without_agent(&["--exclude-runtime-classes", "gvisor,kata-qemu"]);
    world.start_agent();
    world.start_ztunnel();
    let check = |name: &str, ip: &str, class: &str, is_in: bool| {
        let netns = world.make_pod("mesh", name, ip);
        world.server.merge(Kind::Pods, "mesh", name, &json!({ "spec": { "runtimeClassName": class } }));
        eventually("seen", || world.pod(name).is_some());
        world.add("mesh", name, &netns, ip);
        match is_in {
            true => world.assert_enrolled("mesh", name, &netns),
            false => world.assert_out("mesh", name, &netns),
        }
        if !is_in {
            let reason = world.pod(name).unwrap().reason;
            assert_eq!(reason, format!("runtime class {class} is excluded (--exclude-runtime-classes)"));
        }
    };
    check("sandboxed", IP, "gvisor", false);
    check("virtual", "10.45.1.3", "kata-qemu", false);
    check("usual", "10.45.1.4", "runc", true);
}
