//! While the redirection to a sidecar is replaced by another, no connection passes by it, in or out.

use super::envoy::listener;
use super::scene::{Scene, plain};
use crate::support::engine::{BACKENDS, programmer};
use crate::support::traffic::{Flow, none_escapes};
use ferrule::dataplane::inpod::Applied;
use ferrule::rules::sidecar::{Dns, Interception, Only, OwnerGroups, Settings, program};

/// Settings of every kind, by all of which the connections are redirected that are made here.
fn settings() -> Vec<Settings> {
    let ranges = Only::These(vec!["10.2.0.0/16".parse().unwrap()]);
    let interfaces = Settings {
        interfaces_excluded: vec!["eth1".to_owned()],
        reroute_interfaces: vec!["net1".to_owned()],
        ..plain()
    };
    vec![
        plain(),
        Settings { interception: Interception::Tproxy, ..plain() },
        interfaces.clone(),
        Settings { inbound_ports: Only::These(vec![80, 9000]), outbound_ranges: ranges.clone(), ..plain() },
        Settings { interception: Interception::Tproxy, dns: Dns::All, drop_invalid: true, ..interfaces.clone() },
        Settings { dns: Dns::All, owner_groups: OwnerGroups::AllBut(vec![7]), ..plain() },
        Settings { outbound_ranges_excluded: vec!["10.3.0.0/16".parse().unwrap()], ..interfaces },
        Settings { outbound_ranges: ranges, tproxy_mark: 77, tproxy_table: 78, ..plain() },
    ]
}

#[test]
fn no_connection_escapes_while_settings_change() {
    let settings = settings();
    for backend in BACKENDS {
        let scene = Scene::without_envoy();
        let (inpod, _dir) = programmer(backend);
        let apply = |round: usize| {
            // Each after the one before it, and then after the last but one, and so on.
            let at = round * (1 + round / settings.len() % 3) % settings.len();
            let program = program(&settings[at], round % 2 == 1);
            inpod.apply(scene.pod.netns(), program).unwrap()
        };
        assert_eq!(apply(0), Applied::Written);
        let proxy = |port: u16| scene.pod.enter(|| listener(([0; 4], port).into()).unwrap());
        let flow = |from, to: &str, proxy| Flow { from, to: to.parse().unwrap(), refused: true, proxy };
        let outbound = flow(scene.pod.netns(), "10.2.0.1:9000", proxy(15001));
        let inbound = flow(scene.world.netns(), "10.0.1.2:9000", proxy(15006));
        none_escapes(&format!("{backend:?}"), &[outbound, inbound], 4 * settings.len(), |round| {
            apply(round);
        });
    }
}
