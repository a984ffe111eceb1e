//! While rules are replaced, no connection passes by the redirection.

use super::pod::{plain, pod, sh};
use crate::support::engine::{BACKENDS, programmer};
use crate::support::traffic::{Flow, none_escapes};
use ferrule::dataplane::backend::Backend;
use ferrule::dataplane::inpod::Applied;
use ferrule::dataplane::xtables::variant::Variant;
use ferrule::rules::inpod::Settings;
use ferrule::sys::netns::Netns;
use std::net::TcpListener;

#[test]
fn no_connection_escapes_while_rules_are_replaced() {
    for backend in BACKENDS {
        let (inpod, _dir) = programmer(backend);
        let other = Settings { reroute_interfaces: vec!["v0".into()], dns_capture: true, ..plain() };
        under_traffic(&format!("{backend:?}"), 30, |netns, round| {
            let settings = if round % 2 == 0 { &plain() } else { &other };
            assert_eq!(inpod.apply(netns, settings).unwrap(), Applied::Written);
        });
    }
}

#[test]
fn no_connection_escapes_while_the_backend_changes() {
    for from in [Variant::Nft, Variant::Legacy] {
        let (iptables, native) = (programmer(Backend::Iptables(from)), programmer(Backend::Nftables));
        under_traffic(&format!("{from} and back"), 20, |netns, round| {
            let (inpod, _dir) = if round % 2 == 0 { &iptables } else { &native };
            assert_eq!(inpod.apply(netns, &plain()).unwrap(), Applied::Written);
        });
    }
}

/// Does something to a pod, which by the first time has its rules, while it connects to the outside.
fn under_traffic(name: &str, rounds: usize, act: impl Fn(&Netns, usize)) {
    let netns = pod();
    sh(&netns, "ip link add out0 type veth peer name out1; ip addr add 10.77.0.2/24 dev out0");
    sh(&netns, "ip link set out0 up; ip link set out1 up");
    act(&netns, 0);
    let proxy = netns.enter(|| TcpListener::bind("0.0.0.0:15001").unwrap()).unwrap();
    let flow = Flow { from: &netns, to: "10.77.0.1:80".parse().unwrap(), refused: false, proxy };
    none_escapes(name, &[flow], rounds, |round| act(&netns, round));
}
