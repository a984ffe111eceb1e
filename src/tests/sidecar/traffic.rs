//! Each setting, shown by a connection that arrives where it should and by one that must not.

use super::scene::{Scene, plain};
use ferrule::rules::sidecar::{Dns, Interception, Only, OwnerGroups, Settings};

/// The parties that an answer came through, without addresses: `inbound app`.
fn way(answer: &str) -> String {
    answer.split(" | ").map(|part| part.split(' ').next().unwrap()).collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn is(answer: String, want: &str) {
    assert_eq!(way(&answer), want, "{answer}");
}

#[test]
fn without_rules_nothing_is_redirected() {
    let scene = Scene::new();
    assert_eq!(scene.world_asks("10.0.1.2:80"), "app 10.0.1.2 from 10.0.1.1");
    assert_eq!(scene.app_asks("10.2.0.1:80"), "world 10.2.0.1 from 10.0.1.2");
    is(scene.app_asks("udp:10.2.0.1:53"), "world");
    is(scene.vm_asks("10.2.0.1:80"), "world");
    is(scene.group_asks(202, "10.2.0.1:80"), "world");
    is(scene.group_asks(1000, "10.0.1.1>10.0.1.2:80"), "none");
}

#[test]
fn inbound_and_outbound_and_neither() {
    let scene = Scene::new();
    scene.with(&plain(), false, |scene| {
        assert_eq!(scene.world_asks("10.0.1.2:80"), "inbound 10.0.1.2:80 | app 10.0.1.2 from 127.0.0.6");
        assert_eq!(scene.app_asks("10.2.0.1:80"), "outbound 10.2.0.1:80 | world 10.2.0.1 from 10.0.1.2");
        // The application to itself.
        assert_eq!(scene.app_asks("10.0.1.2:80"), "app 10.0.1.2 from 10.0.1.2");
        assert_eq!(scene.app_asks("127.0.0.1:80"), "app 127.0.0.1 from 127.0.0.1");
        // Envoy's own traffic does not come back to it, except where it is the pod's inbound traffic.
        assert_eq!(scene.envoy_asks("10.2.0.1:80"), "world 10.2.0.1 from 10.0.1.2");
        assert_eq!(scene.envoy_asks("127.0.0.1:80"), "app 127.0.0.1 from 127.0.0.1");
        assert_eq!(scene.envoy_asks("10.0.1.2:80"), "inbound 10.0.1.2:80 | app 10.0.1.2 from 127.0.0.6");
        // Excluded by default.
        is(scene.world_asks("10.0.1.2:15021"), "app");
        is(scene.app_asks("10.2.0.1:15020"), "world");
        // DNS and the rest of UDP are left alone, and so is IPv6.
        is(scene.app_asks("udp:10.2.0.1:53"), "world");
        is(scene.world_asks("[fd00:1::2]:80"), "app");
        is(scene.app_asks("[fd00:2::1]:80"), "world");
        // What the pod only forwards is inbound too, and Envoy cannot pass it on as such.
        is(scene.vm_asks("10.2.0.1:80"), "inbound none");
    });
}

#[test]
fn ports() {
    let scene = Scene::new();
    let listed = Settings { inbound_ports: Only::These(vec![80]), ..plain() };
    scene.with(&listed, false, |scene| {
        is(scene.world_asks("10.0.1.2:80"), "inbound app");
        is(scene.world_asks("10.0.1.2:81"), "app");
    });
    let none = Settings { inbound_ports: Only::These(vec![]), ..plain() };
    scene.with(&none, false, |scene| {
        is(scene.world_asks("10.0.1.2:80"), "app");
        is(scene.app_asks("10.2.0.1:80"), "outbound world");
    });
    let excluded = Settings { inbound_ports_excluded: vec![81], outbound_ports_excluded: vec![81], ..plain() };
    scene.with(&excluded, false, |scene| {
        is(scene.world_asks("10.0.1.2:81"), "app");
        is(scene.world_asks("10.0.1.2:15021"), "inbound app");
        is(scene.app_asks("10.2.0.1:81"), "world");
        is(scene.app_asks("10.2.0.1:15020"), "outbound world");
    });
    let outbound = Settings { outbound_ranges: Only::These(vec![]), outbound_ports: vec![8080], ..plain() };
    scene.with(&outbound, false, |scene| {
        is(scene.app_asks("10.2.0.1:8080"), "outbound world");
        is(scene.app_asks("10.2.0.1:80"), "world");
    });
}

#[test]
fn ports_of_the_sidecar() {
    let scene = Scene::new();
    scene.with(&plain(), false, |scene| is(scene.world_asks("10.0.1.2:81"), "inbound app"));
    // Nobody but the sidecar takes what comes for its tunnel port.
    let tunnel = Settings { tunnel_port: 81, ..plain() };
    scene.with(&tunnel, false, |scene| {
        is(scene.world_asks("10.0.1.2:81"), "app");
        is(scene.envoy_asks("10.0.1.2:81"), "app");
        is(scene.world_asks("10.0.1.2:80"), "inbound app");
    });
    // The stand-in says outbound at the one port, and inbound at the other.
    let swapped = Settings { outbound_port: 15006, inbound_port: 15001, ..plain() };
    scene.with(&swapped, false, |scene| {
        assert!(scene.world_asks("10.0.1.2:80").starts_with("outbound 10.0.1.2:80"));
        assert!(scene.app_asks("10.2.0.1:80").starts_with("inbound 10.2.0.1:80"));
    });
}

#[test]
fn ranges() {
    let scene = Scene::new();
    let included = Settings { outbound_ranges: Only::These(vec!["10.2.0.0/16".parse().unwrap()]), ..plain() };
    scene.with(&included, false, |scene| {
        is(scene.app_asks("10.2.0.1:80"), "outbound world");
        is(scene.app_asks("10.3.0.1:80"), "world");
    });
    let excluded = Settings { outbound_ranges_excluded: vec!["10.3.0.0/16".parse().unwrap()], ..plain() };
    scene.with(&excluded, false, |scene| {
        is(scene.app_asks("10.2.0.1:80"), "outbound world");
        is(scene.app_asks("10.3.0.1:80"), "world");
    });
    // The application's talk with itself is captured too where a loopback address is asked for.
    let loopback = Settings { outbound_ranges: Only::These(vec!["127.1.0.0/16".parse().unwrap()]), ..plain() };
    scene.with(&loopback, false, |scene| {
        is(scene.app_asks("127.1.2.3:80"), "outbound inbound app");
        is(scene.app_asks("127.0.0.1:80"), "app");
    });
    // What is loopback is a setting.
    let wide = Settings { loopback_v4: "127.0.0.0/8".parse().unwrap(), ..plain() };
    is(scene.envoy_asks("127.0.0.5:80"), "app");
    scene.with(&plain(), false, |scene| is(scene.envoy_asks("127.0.0.5:80"), "inbound app"));
    scene.with(&wide, false, |scene| is(scene.envoy_asks("127.0.0.5:80"), "app"));
}

#[test]
fn interfaces() {
    let scene = Scene::new();
    scene.with(&plain(), false, |scene| {
        is(scene.world_asks("10.4.0.2:80"), "inbound app");
        is(scene.app_asks("10.4.0.1:80"), "outbound world");
    });
    for interception in [Interception::Redirect, Interception::Tproxy] {
        let excluded = Settings { interfaces_excluded: vec!["eth1".to_owned()], interception, ..plain() };
        scene.with(&excluded, false, |scene| {
            is(scene.world_asks("10.4.0.2:80"), "app");
            is(scene.app_asks("10.4.0.1:80"), "world");
            is(scene.world_asks("10.0.1.2:80"), "inbound app");
            is(scene.app_asks("10.2.0.1:80"), "outbound world");
        });
    }
    let rerouted = Settings { reroute_interfaces: vec!["net1".to_owned()], ..plain() };
    scene.with(&rerouted, false, |scene| {
        assert!(scene.vm_asks("10.2.0.1:80").starts_with("outbound 10.2.0.1:80 | world"));
        is(scene.world_asks("10.0.1.2:80"), "inbound app");
    });
    let ranges = Only::These(vec!["10.2.0.0/16".parse().unwrap()]);
    let rerouted = Settings { reroute_interfaces: vec!["net1".to_owned()], outbound_ranges: ranges, ..plain() };
    scene.with(&rerouted, false, |scene| {
        is(scene.vm_asks("10.2.0.1:80"), "outbound world");
        is(scene.vm_asks("10.3.0.1:80"), "world");
    });
}

#[test]
fn users_and_groups() {
    let scene = Scene::new();
    let other = Settings { proxy_uids: vec![1234], proxy_gids: vec![5678], ..plain() };
    scene.with(&other, false, |scene| {
        is(scene.group_asks(5678, "10.2.0.1:80"), "world");
        // Envoy is not what it is taken for: its own traffic comes back to it, again and again.
        let answer = scene.group_asks(202, "10.2.0.1:80");
        assert!(!answer.contains("world"), "{answer}");
    });
    let but = Settings { owner_groups: OwnerGroups::AllBut(vec![202]), ..plain() };
    scene.with(&but, false, |scene| {
        is(scene.group_asks(202, "10.2.0.1:80"), "world");
        is(scene.group_asks(203, "10.2.0.1:80"), "outbound world");
    });
    let only = Settings { owner_groups: OwnerGroups::Only(vec![202, 203]), ..plain() };
    scene.with(&only, false, |scene| {
        is(scene.group_asks(202, "10.2.0.1:80"), "outbound world");
        is(scene.group_asks(203, "10.2.0.1:80"), "outbound world");
        is(scene.group_asks(204, "10.2.0.1:80"), "world");
    });
}

#[test]
fn dns() {
    let scene = Scene::new();
    let all = Settings { dns: Dns::All, ..plain() };
    scene.with(&all, true, |scene| {
        for server in ["10.2.0.1:53", "[fd00:2::1]:53", "10.3.0.1:53"] {
            is(scene.app_asks(&format!("udp:{server}")), "dns");
            is(scene.app_asks(server), "dns");
            // The sidecar's own queries go where it sends them.
            is(scene.envoy_asks(&format!("udp:{server}")), "world");
            is(scene.envoy_asks(server), "world");
        }
        is(scene.app_asks("10.2.0.1:80"), "outbound world");
    });
    let listed = Settings { dns: Dns::Resolvers(vec!["10.2.0.1".parse().unwrap()]), ..plain() };
    scene.with(&listed, true, |scene| {
        is(scene.app_asks("udp:10.2.0.1:53"), "dns");
        is(scene.app_asks("10.2.0.1:53"), "dns");
        is(scene.app_asks("udp:10.3.0.1:53"), "world");
        is(scene.app_asks("10.3.0.1:53"), "outbound world");
        is(scene.app_asks("udp:[fd00:2::1]:53"), "world");
    });
}

#[test]
fn ipv6() {
    let scene = Scene::new();
    scene.with(&plain(), true, |scene| {
        assert_eq!(scene.world_asks("[fd00:1::2]:80"), "inbound [fd00:1::2]:80 | app fd00:1::2 from ::6");
        assert_eq!(scene.app_asks("[fd00:2::1]:80"), "outbound [fd00:2::1]:80 | world fd00:2::1 from fd00:1::2");
        is(scene.app_asks("[fd00:1::2]:80"), "app");
        is(scene.app_asks("[::1]:80"), "app");
        is(scene.envoy_asks("[fd00:2::1]:80"), "world");
        is(scene.envoy_asks("[fd00:1::2]:80"), "inbound app");
        is(scene.world_asks("[fd00:1::2]:15021"), "app");
        // Both families at once.
        is(scene.world_asks("10.0.1.2:80"), "inbound app");
        is(scene.app_asks("10.2.0.1:80"), "outbound world");
    });
    let ranges = Settings { outbound_ranges: Only::These(vec!["fd00:2::/32".parse().unwrap()]), ..plain() };
    scene.with(&ranges, true, |scene| {
        is(scene.app_asks("[fd00:2::1]:80"), "outbound world");
        is(scene.app_asks("[fd00:3::1]:80"), "world");
        is(scene.app_asks("10.2.0.1:80"), "world");
    });
}

#[test]
fn transparent_capture_keeps_the_source_address() {
    let scene = Scene::new();
    let all = Settings { interception: Interception::Tproxy, ..plain() };
    scene.with(&all, true, |scene| {
        assert_eq!(scene.world_asks("10.0.1.2:80"), "inbound 10.0.1.2:80 of 10.0.1.1 | app 10.0.1.2 from 127.0.0.6");
        assert_eq!(scene.world_asks("[fd00:1::2]:80"), "inbound [fd00:1::2]:80 of fd00:1::1 | app fd00:1::2 from ::6");
        // Under the client's address to the application: its answers are led back by mark and route.
        assert_eq!(scene.group_asks(1000, "10.0.1.1>10.0.1.2:80"), "app 10.0.1.2 from 10.0.1.1");
        assert_eq!(scene.group_asks(1000, "fd00:1::1>[fd00:1::2]:80"), "app fd00:1::2 from fd00:1::1");
        is(scene.world_asks("10.0.1.2:15021"), "app");
        is(scene.app_asks("10.2.0.1:80"), "outbound world");
        is(scene.app_asks("10.0.1.2:80"), "app");
        is(scene.app_asks("127.0.0.1:80"), "app");
        is(scene.envoy_asks("10.2.0.1:80"), "world");
        is(scene.envoy_asks("10.0.1.2:80"), "inbound app");
    });
    let listed = Settings { inbound_ports: Only::These(vec![80]), tproxy_mark: 77, tproxy_table: 78, ..all };
    scene.with(&listed, false, |scene| {
        is(scene.world_asks("10.0.1.2:80"), "inbound app");
        is(scene.world_asks("10.0.1.2:81"), "app");
        // With another mark than Envoy's, nothing leads the answers back.
        is(scene.group_asks(1000, "10.0.1.1>10.0.1.2:80"), "none");
    });
}

/// Envoy may start later than its pod: until then nothing passes by.
#[test]
fn without_envoy_nothing_gets_in() {
    let scene = Scene::without_envoy();
    is(scene.world_asks("10.0.1.2:80"), "app");
    for interception in [Interception::Redirect, Interception::Tproxy] {
        scene.with(&Settings { interception, ..plain() }, true, |scene| {
            is(scene.world_asks("10.0.1.2:80"), "none");
            is(scene.world_asks("[fd00:1::2]:80"), "none");
            is(scene.world_asks("10.0.1.2:15021"), "app");
            is(scene.app_asks("10.2.0.1:80"), "none");
        });
    }
}
