//! `--native-nftables`: the agent runs no program, and a node needs none.

use super::*;
use crate::support::netns::{nft_list, run_in};

const IP: &str = "10.44.0.2";

/// A node on which the agent finds no iptables, no nft, no ipset.
fn bare_node(flags: &[&'static str]) -> World {
    let mut node = Node::new();
    let script = "mount -t tmpfs none /usr/sbin && mount -t tmpfs none /usr/local && exec \"$@\"";
    let wrapper = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"];
    node.wrapper = wrapper.map(str::to_owned).to_vec();
    let flags = [&["--native-nftables"], flags].concat();
    let mut world = World { node, agent: None, ztunnel: None, flags };
    world.start_agent();
    world.start_ztunnel();
    world
}

/// Everything of ours in a pod, once, and nothing by iptables.
fn is_native(netns: &PodNetns, families: usize) -> bool {
    let text = nft_list(netns.netns());
    let count = |text: &str, part: &str| text.matches(part).count();
    count(&text, "table inet istio-ambient-") == 2
        && count(&text, "redirect to :15001") == families
        && count(
            &text,
            "ip daddr != 127.0.0.1 tcp dport != 15008 meta mark & 0x00000fff != 0x00000539 counter redirect to :15006",
        ) == 1
        && count(&rules(netns), "fwmark 0x111/0xfff") == families
        && !rules(netns).contains("ISTIO")
}

fn is_clean(netns: &PodNetns) -> bool {
    !nft_list(netns.netns()).contains("istio") && !has_rules(netns)
}

#[test]
fn a_pod_from_add_to_del_on_a_node_without_programs() {
    let world = bare_node(&["--ambient-ipv6", "--verify-interval", "1s"]);
    let netns = world.make_pod("web", IP);
    world.add("web", "c1", &netns, IP);
    eventually("enrolled", || world.state("web") == "enrolled");
    assert!(is_native(&netns, 2), "{}", nft_list(netns.netns()));
    eventually("published", || world.published().contains(&("web".to_owned(), "enabled".to_owned())));
    assert_eq!(world.plugin("CHECK", "web", "c1", netns.path(), IP).code, Some(0));
    // The host's side.
    let host = || nft_list(world.node.host.netns());
    eventually("the pod is in the probe set", || host().contains(&format!("elements = {{ {IP} comment \"web\" }}")));
    eventually("the rule is there", || host().contains("snat ip to 169.254.7.127"));
    let probers = || world.node.status().and_then(|status| status.probers);
    eventually("told", || probers().as_deref() == Some("any process of the host, for no kubelet was found"));
    // What others do to it is put right by the verification.
    let noticed = || world.agent().log().matches("enrolled; it is over").count();
    for damage in [
        &["flush", "chain", "inet", "istio-ambient-nat", "istio-output"][..],
        &["add table inet istio-ambient-mangle { flags dormant; }"],
        &["delete", "table", "inet", "istio-ambient-nat"],
        &["flush", "ruleset"],
    ] {
        let before = noticed();
        run_in(netns.netns(), "nft", damage);
        eventually("noticed", || noticed() > before);
        eventually("put right", || is_native(&netns, 2) && !nft_list(netns.netns()).contains("dormant"));
    }
    run_in(world.node.host.netns(), "nft", &["flush", "ruleset"]);
    eventually("the host's side is put right", || host().contains("comment \"web\"") && host().contains("snat ip to"));
    world.node.write_pod("web.json", &pod_json("web", IP, json!({"labels": {}})));
    eventually("nothing is left", || world.published().is_empty() && is_clean(&netns));
    eventually("nor on the host", || !host().contains("web"));
    let log = world.agent().log();
    assert!(log.contains("natively") && !log.contains("iptables"), "{log}");
}

#[test]
fn a_sidecar_on_a_node_without_programs() {
    let world = bare_node(&[]);
    let annotations = json!({"sidecar.istio.io/status": "{}", "sidecar.istio.io/interceptionMode": "TPROXY"});
    let pod = json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "s", "uid": "s", "annotations": annotations},
        "spec": {"containers": [{"name": "app"}, {"name": "istio-proxy", "args": ["proxy", "sidecar"]}]},
    });
    world.node.write_pod("s.json", &pod.to_string());
    let netns = netns(IP);
    world.add("s", "c1", &netns, IP);
    let text = nft_list(netns.netns());
    assert!(text.contains("tproxy ip to :15006") && text.contains("table inet istio-proxy-nat"), "{text}");
    world.add("s", "c1", &netns, IP);
    assert_eq!(nft_list(netns.netns()), text);
}

#[test]
fn an_agent_that_is_told_another_backend_moves_everything() {
    let mut world = World::new();
    let netns = world.make_pod("web", IP);
    world.add("web", "c1", &netns, IP);
    world.assert_enrolled("web", &netns);
    let moved = |world: &World| world.agent().log().matches("are where another backend puts them").count();
    let host = |world: &World| nft_list(world.node.host.netns()) + &run_in(world.node.host.netns(), "ipset", &["list"]);
    eventually("the pod is in the ipset", || host(&world).contains(&format!("{IP} comment \"web\"")));
    assert_eq!(world.node.status().unwrap().probers, None);
    for native in [true, false] {
        world.agent.take().unwrap().terminate();
        let more = if native { &["--native-nftables"][..] } else { &[] };
        world.flags = [&["--verify-interval", "1s"], more].concat();
        world.start_agent();
        if native {
            eventually("moved", || is_native(&netns, 1));
            eventually("and the host's side", || {
                !rules(&world.node.host).contains("ISTIO") && !host(&world).contains("Name: istio")
            });
            assert!(host(&world).contains(&format!("{IP} comment \"web\"")));
        } else {
            eventually("moved back", || is_right(&netns) && !nft_list(netns.netns()).contains("table inet istio"));
            eventually("and the host's side", || {
                rules(&world.node.host).contains("ISTIO_POSTRT") && !host(&world).contains("table inet istio")
            });
            assert!(host(&world).contains(&format!("{IP} comment \"web\"")));
        }
        eventually("still enrolled", || world.state("web") == "enrolled");
        assert_eq!(moved(&world), 1, "said once");
    }
}

/// What the settings of a node are by now is for new pods; the backend is for all.
#[test]
fn a_pod_that_is_moved_keeps_the_settings_it_was_enrolled_with() {
    let mut world = World::without_ztunnel(&["--ambient-ipv6", "--ambient-dns-capture"]);
    world.start_ztunnel();
    let netns = world.make_pod("web", IP);
    world.add("web", "c1", &netns, IP);
    eventually("enrolled", || world.state("web") == "enrolled");
    world.agent.take().unwrap().terminate();
    world.flags = vec!["--native-nftables"];
    world.start_agent();
    let text = || nft_list(netns.netns());
    eventually("moved", || text().contains("table inet istio-ambient-raw") && !rules(&netns).contains("ISTIO"));
    assert!(text().contains("ip6 daddr != ::1") && text().contains("redirect to :15053"), "{}", text());
    eventually("told", || world.agent().log().contains("have IPv6 rules keep them until they are made anew"));
}
