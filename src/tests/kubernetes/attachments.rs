//! Pods with several interfaces: each has an ADD and a DEL of its own, and the enrolment is that of the first.

use super::*;

const IP: &str = "10.49.1.2";
const SECOND: &str = "192.168.5.2";

impl World {
    /// The plugin for another interface than `eth0`.
    #[track_caller]
    fn attach(&self, command: &str, interface: &str, name: &str, netns: &PodNetns, ip: &str) {
        let variable = format!("CNI_IFNAME={interface}");
        self.plugin_under(&["/usr/bin/env", &variable], command, "mesh", name, netns, ip).succeeded();
    }

    fn addresses(&self) -> Vec<String> {
        self.probe_set().into_keys().collect()
    }
}

#[test]
fn only_the_first_attachment_ends_the_enrolment() {
    let (mut world, netns) = World::enrolled(&[], IP);
    let events = world.ztunnel().stats().events.len();
    world.attach("DEL", "net1", "web", &netns, SECOND);
    world.attach("ADD", "net1", "web", &netns, SECOND);
    world.attach("DEL", "net1", "web", &netns, SECOND);
    // The next agent knows which it was.
    world.kill_agent();
    world.start_agent();
    eventually("ztunnel is back", || world.ztunnel().stats().ready);
    world.assert_enrolled("mesh", "web", &netns);
    let told = world.ztunnel().stats().events.len();
    assert!(told > events);
    world.attach("DEL", "net1", "web", &netns, SECOND);
    assert_eq!(world.state("web"), "enrolled");
    assert_eq!(world.ztunnel().stats().events.len(), told, "ztunnel hears nothing of it");
    assert_eq!(world.addresses(), [IP]);
    world.plugin("DEL", "mesh", "web", &netns, IP).succeeded();
    eventually("it has ended", || world.state("web") == "waiting" && world.addresses().is_empty());
}

#[test]
fn the_first_attachment_may_be_any() {
    let world = World::new();
    let netns = world.make_pod("mesh", "web", SECOND);
    world.attach("ADD", "net1", "web", &netns, SECOND);
    world.assert_enrolled("mesh", "web", &netns);
    world.plugin("DEL", "mesh", "web", &netns, IP).succeeded();
    assert_eq!(world.state("web"), "enrolled");
    world.attach("DEL", "net1", "web", &netns, SECOND);
    eventually("it has ended", || world.state("web") == "waiting");
}

#[test]
fn the_address_of_another_attachment_replaces_none() {
    let mut world = World::new();
    let netns = world.make_pod("mesh", "web", IP);
    world.add("mesh", "web", &netns, IP);
    assert_eq!(world.addresses(), [IP]);
    netns.enter(|| ferrule::sys::netlink::add_address("lo", SECOND.parse().unwrap(), 32).unwrap());
    world.attach("ADD", "net1", "web", &netns, SECOND);
    assert_eq!(world.addresses(), [IP]);
    world.server.merge(Kind::Pods, "mesh", "web", &json!({ "metadata": { "annotations": { "x": "1" } } }));
    world.kill_agent();
    world.start_agent();
    world.assert_enrolled("mesh", "web", &netns);
    assert_eq!(world.addresses(), [IP]);
    assert_eq!(world.pod("web").unwrap().ips, [IP.parse::<std::net::IpAddr>().unwrap()]);
}

#[test]
fn while_the_api_knows_no_address_those_of_all_attachments_count() {
    let world = World::new();
    world.server.put_pod("mesh", "web", NODE, json!({}), &[]);
    let netns = netns(IP);
    netns.enter(|| ferrule::sys::netlink::add_address("lo", SECOND.parse().unwrap(), 32).unwrap());
    world.add("mesh", "web", &netns, IP);
    world.attach("ADD", "net1", "web", &netns, SECOND);
    assert_eq!(world.addresses(), [IP, SECOND]);
    world.attach("DEL", "net1", "web", &netns, SECOND);
    eventually("its address goes with it", || world.addresses() == [IP]);
    world.attach("ADD", "net1", "web", &netns, SECOND);
    assert_eq!(world.addresses(), [IP, SECOND]);
    world.server.merge(Kind::Pods, "mesh", "web", &json!({ "status": { "podIP": IP, "podIPs": [{ "ip": IP }] } }));
    eventually("what the API says", || world.addresses() == [IP]);
}

#[test]
fn an_address_of_an_earlier_sandbox_does_not_stay() {
    let (mut world, _first) = World::enrolled(&[], IP);
    // The API still knows the old address.
    let second = netns("10.49.1.9");
    world.add("mesh", "web", &second, "10.49.1.9");
    let ips = |world: &World| world.pod("web").unwrap().ips.iter().map(ToString::to_string).collect::<Vec<_>>();
    let record = |world: &World| {
        let path = world.node.run().join(format!("netns/{}.json", world.uid("mesh", "web")));
        std::fs::read_to_string(path).unwrap()
    };
    assert_eq!(ips(&world), ["10.49.1.9"]);
    assert!(!record(&world).contains(IP), "{}", record(&world));
    let known = json!({ "status": { "podIP": "10.49.1.9", "podIPs": [{ "ip": "10.49.1.9" }] } });
    world.server.merge(Kind::Pods, "mesh", "web", &known);
    world.kill_agent();
    world.start_agent();
    world.assert_enrolled("mesh", "web", &second);
    assert_eq!((ips(&world), world.addresses()), (vec!["10.49.1.9".to_owned()], vec!["10.49.1.9".to_owned()]));
    assert!(!record(&world).contains(IP), "{}", record(&world));
}
