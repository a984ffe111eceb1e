//! Pods of AWS with network interfaces of their own, on a namespace that plays the host of one.

use super::*;

const IP: &str = "10.52.1.2";
const HOST: &str = "10.52.0.1";
/// The policy rules of AWS for the pod, as they were seen: its table, and what comes from it goes there.
const AWS: &str = "ip link add eni1 type veth peer name peer1; ip link set eni1 up; ip link set peer1 up
    ip link add vlan1 type veth peer name trunk1; ip link set vlan1 up; ip link set trunk1 up; ip address add 10.52.0.1/32 dev vlan1
    ip rule delete pref 0; ip rule add pref 20 lookup local
    ip route add 10.52.1.2/32 dev eni1 table 101; ip route add default dev vlan1 table 101
    ip rule add iif eni1 lookup 101 pref 10; ip rule add from all to 10.52.0.0/16 lookup main pref 1024
    ip route add 10.52.0.0/16 dev vlan1; echo 1 > /proc/sys/net/ipv4/ip_forward
    echo 0 > /proc/sys/net/ipv4/conf/eni1/rp_filter";

impl World {
    fn host(&self, script: &str) -> String {
        run_in(self.node.host.netns(), "sh", &["-ec", script])
    }

    fn policy(&self) -> Vec<String> {
        let rules = self.host("ip rule show").replace('\t', " ");
        rules.lines().map(|line| line.trim_end().to_owned()).collect()
    }

    /// What leads packets of the host to the pod, and those of the pod to the host.
    fn is_led(&self) -> (bool, bool) {
        let to = self.host(&format!("ip route get {IP}"));
        let from = self.host(&format!("ip route get {HOST} from {IP} iif eni1"));
        (to.contains("dev eni1"), from.starts_with("local"))
    }
}

#[test]
fn probes_of_branch_interfaces_are_led_to_them_for_as_long_as_the_pod_is_in_the_mesh() {
    let mut world = World::without_agent(&["--verify-interval", "1s"]);
    world.host(AWS);
    world.host("echo 0 > /proc/sys/net/ipv4/tcp_early_demux");
    let before = world.policy();
    assert_eq!(world.is_led(), (false, false));
    world.start_agent();
    world.start_ztunnel();
    let netns = world.make_pod("mesh", "web", IP);
    world.add("mesh", "web", &netns, IP);
    assert_eq!(world.is_led(), (true, true), "{:?}", world.policy());
    let mut with_ours = before.clone();
    with_ours.extend([format!("512: from all to {IP} lookup 101"), "9: from all iif eni1 lookup local".to_owned()]);
    with_ours.sort();
    let sorted = |mut rules: Vec<String>| {
        rules.sort();
        rules
    };
    assert_eq!(sorted(world.policy()), with_ours);
    // Whoever takes them out, they come back.
    world.host("ip rule delete pref 512; ip rule delete pref 9");
    eventually("repaired", || sorted(world.policy()) == with_ours);
    // The interface goes with the pod, and the agent was not there to see it.
    world.kill_agent();
    world.host("ip rule delete pref 10; ip link delete eni1");
    world.server.delete(Kind::Pods, "mesh", "web");
    world.start_agent();
    let rest: Vec<String> = before.into_iter().filter(|rule| !rule.starts_with("10:")).collect();
    eventually("nothing is left", || world.policy() == rest);
    // Taken out of the mesh while it runs.
    world.host(
        "ip link add eni1 type veth peer name peer1; ip link set eni1 up; ip link set peer1 up
        ip route add 10.52.1.2/32 dev eni1 table 101; ip rule add iif eni1 lookup 101 pref 10",
    );
    let netns = world.make_pod("mesh", "web", IP);
    world.add("mesh", "web", &netns, IP);
    assert_eq!(world.is_led(), (true, true), "{:?}", world.policy());
    world.server.label_namespace("mesh", json!({ "istio.io/dataplane-mode": null }));
    world.assert_out("mesh", "web", &netns);
    assert_eq!(world.is_led(), (false, false));
}

#[test]
fn elsewhere_nothing_is_led() {
    let mut world = World::without_agent(&[]);
    world.host(AWS);
    let before = world.policy();
    world.start_agent();
    world.start_ztunnel();
    let netns = world.make_pod("mesh", "web", IP);
    world.add("mesh", "web", &netns, IP);
    // AWS has not made such pods reachable from here.
    assert_eq!(world.policy(), before);
    assert!(!world.node.run().join("branch-eni.json").exists());
}
