//! Pods with a sidecar: redirected by the agent in answer to the plugin, with no ztunnel and nothing published.

use super::*;

const IP: &str = "10.44.0.2";

/// The file of a pod with a sidecar, and its namespace.
fn make_pod(world: &World, name: &str, more: Value) -> PodNetns {
    let mut annotations = json!({"sidecar.istio.io/status": "{}"});
    annotations.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let pod = json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": name, "uid": name, "annotations": annotations},
        "spec": {"containers": [{"name": "app"}, {"name": "istio-proxy", "args": ["proxy", "sidecar"]}]},
    });
    world.node.write_pod(&format!("{name}.json"), &pod.to_string());
    netns(IP)
}

fn save(netns: &PodNetns) -> String {
    Backend::ALL.map(|backend| iptables_save(netns.netns(), backend, Family::V4)).concat()
}

#[test]
fn an_add_redirects_and_everything_after_it_succeeds() {
    let world = World::without_ztunnel(&[]);
    let netns = make_pod(&world, "s", json!({"traffic.sidecar.istio.io/excludeInboundPorts": "7"}));
    world.add("s", "c1", &netns, IP);
    let rules = save(&netns);
    for rule in [
        "-A PREROUTING -p tcp -j ISTIO_INBOUND",
        "-A ISTIO_INBOUND -p tcp -m tcp --dport 7 -j RETURN",
        "-A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006",
        "-A ISTIO_OUTPUT -j ISTIO_REDIRECT",
    ] {
        assert!(rules.contains(rule), "{rule}: {rules}");
    }
    // Twice, as a runtime may, or in a chain that names the plugin twice.
    world.add("s", "c1", &netns, IP);
    assert_eq!(save(&netns), rules);
    let check = || world.plugin("CHECK", "s", "c1", netns.path(), IP);
    assert_eq!(check().code, Some(0));
    crate::support::netns::run_in(netns.netns(), "iptables-nft", &["-t", "nat", "-F", "ISTIO_OUTPUT"]);
    let ended = check();
    let error: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((ended.code, error["code"].as_u64()), (Some(1), Some(100)), "{ended:?}");
    let message = error["msg"].as_str().unwrap();
    assert!(message.starts_with("the redirection to the sidecar is not in place: IPv4: "), "{message}");
    assert!(message.contains("ISTIO_OUTPUT"), "{message}");
    world.add("s", "c1", &netns, IP);
    assert_eq!((check().code, save(&netns)), (Some(0), rules));
    assert!(world.published().is_empty(), "it is no pod of the ambient mesh");
    assert_eq!(world.plugin("DEL", "s", "c1", netns.path(), IP).code, Some(0));
}

#[test]
fn a_bad_annotation_of_each_kind_fails_the_add_and_says_what_is_allowed() {
    let world = World::without_ztunnel(&[]);
    for (number, (key, value, allowed)) in [
        ("sidecar.istio.io/interceptionMode", "BOTH", "REDIRECT or TPROXY"),
        ("traffic.sidecar.istio.io/includeOutboundIPRanges", "10.0.0.1", "address ranges"),
        ("traffic.sidecar.istio.io/excludeOutboundIPRanges", "*", "address ranges"),
        ("traffic.sidecar.istio.io/includeInboundPorts", "http", "ports (0 to 65535)"),
        ("traffic.sidecar.istio.io/excludeInboundPorts", "65536", "ports (0 to 65535)"),
        ("traffic.sidecar.istio.io/includeOutboundPorts", "-1", "ports (0 to 65535)"),
        ("traffic.sidecar.istio.io/excludeOutboundPorts", "*", "ports (0 to 65535)"),
        ("traffic.sidecar.istio.io/excludeInterfaces", "eth0/1", "names of network interfaces"),
        ("traffic.sidecar.istio.io/kubevirtInterfaces", "a name", "names of network interfaces"),
        ("istio.io/reroute-virtual-interfaces", "sixteen-bytes-xx", "names of network interfaces"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("s{number}");
        let netns = make_pod(&world, &name, json!({key: value}));
        let (code, message) = world.add_fails(&name, "c1", netns.path(), IP);
        assert_eq!(code, 100, "{message}");
        for part in [key, &format!("{value:?}"), allowed] {
            assert!(message.contains(part), "{part}: {message}");
        }
        assert_eq!(save(&netns), "", "{key}");
    }
}

#[test]
fn without_ambient_mode_too() {
    let world = World::without_ztunnel(&["--ambient-enabled=false"]);
    let netns = make_pod(&world, "s", json!({"sidecar.istio.io/interceptionMode": "TPROXY"}));
    world.add("s", "c1", &netns, IP);
    assert!(save(&netns).contains("-j TPROXY --on-port 15006"));
    let routes = crate::support::netns::run_in(netns.netns(), "ip", &["route", "show", "table", "133"]);
    assert!(routes.starts_with("local default dev lo"), "{routes}");
    world.node.write_pod("plain.json", &pod_json("plain", IP, json!({"labels": {}})));
    let plain = super::netns(IP);
    world.add("plain", "c2", &plain, IP);
    assert_eq!(save(&plain), "");
}
