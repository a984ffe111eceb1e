//! What is printed for `nft -f` and what is written over netlink are the same to the kernel.

use crate::support::netns::{nft_list, run_in};
use ferrule::dataplane::nftables::tables as own;
use ferrule::rules::nftables::{tables, text};
use ferrule::rules::program::{Program, Purpose};
use ferrule::rules::sidecar::{Dns, Interception, Only, OwnerGroups};
use ferrule::rules::{host, sidecar};
use ferrule::sys::netns::Netns;
use std::io::Write;

#[track_caller]
fn check(program: &Program) {
    let tables = tables(program.purpose, &program.rules);
    let by_text = Netns::scratch().unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text::script(&tables).as_bytes()).unwrap();
    let path = file.path().to_str().unwrap();
    run_in(&by_text, "nft", &["-f", path]);
    let by_netlink = Netns::scratch().unwrap();
    by_netlink.enter(|| own::write(&tables)).unwrap().unwrap();
    let (written, loaded) = (nft_list(&by_netlink), nft_list(&by_text));
    assert_eq!(written, loaded, "{}", text::script(&tables));
    // Over what is there, the same.
    run_in(&by_text, "nft", &["-f", path]);
    assert_eq!(nft_list(&by_text), loaded);
    by_netlink.enter(|| own::write(&tables)).unwrap().expect("again");
    assert_eq!(nft_list(&by_netlink), loaded);
    for table in &tables {
        assert!(loaded.contains(&format!("table inet {} {{", table.name)), "{loaded}");
        let rules: usize = table.chains.iter().map(|chain| chain.rules.len()).sum();
        assert!(rules > 0);
    }
}

#[test]
fn of_ambient_pods() {
    for settings in crate::rules::pod::every_settings() {
        check(&(&settings).into());
    }
}

#[test]
fn of_the_host() {
    let settings =
        host::Settings { probe_v4: [169, 254, 7, 127].into(), probe_v6: "fd16::1".parse().unwrap(), kubelet: None };
    for ipv6 in [true, false] {
        // Written twice, the host's table keeps its chains' old rules: the second needs to know them.
        let program = host::program(&settings, ipv6);
        let tables = tables(Purpose::Host, &program.rules);
        let by_text = Netns::scratch().unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text::script(&tables).as_bytes()).unwrap();
        let by_netlink = Netns::scratch().unwrap();
        by_netlink.enter(|| own::write(&tables)).unwrap().unwrap();
        for _ in 0..2 {
            run_in(&by_text, "nft", &["-f", file.path().to_str().unwrap()]);
            assert_eq!(nft_list(&by_text), nft_list(&by_netlink));
        }
        assert_eq!(nft_list(&by_text).contains("ip6"), ipv6);
    }
}

#[test]
fn of_pods_with_a_sidecar() {
    let plain = crate::sidecar::scene::plain;
    let these = |nets: &[&str]| Only::These(nets.iter().map(|net| net.parse().unwrap()).collect());
    let resolvers = |ips: &[&str]| Dns::Resolvers(ips.iter().map(|ip| ip.parse().unwrap()).collect());
    let mut all = vec![
        sidecar::Settings::default(),
        plain(),
        sidecar::Settings { inbound_ports: Only::These(vec![]), ..plain() },
        sidecar::Settings { inbound_ports: Only::These(vec![80, 81]), outbound_ports: vec![8080, 9090], ..plain() },
        sidecar::Settings { outbound_ranges: these(&["10.0.0.0/8", "10.1.2.3/13", "fd00::/9", "::/0"]), ..plain() },
        sidecar::Settings { outbound_ranges: these(&["0.0.0.0/0", "1.2.3.4/32", "fd00::1/128"]), ..plain() },
        sidecar::Settings { outbound_ranges: these(&["127.1.0.0/16", "::1/128"]), ..plain() },
        sidecar::Settings { outbound_ranges_excluded: vec!["10.9.0.0/16".parse().unwrap()], ..plain() },
        sidecar::Settings { loopback_v4: "127.0.0.0/8".parse().unwrap(), ..plain() },
        sidecar::Settings { loopback_v4: "0.0.0.0/0".parse().unwrap(), ..plain() },
        sidecar::Settings { interfaces_excluded: vec!["eth1".into(), "a-b.c_d".into()], ..plain() },
        sidecar::Settings { reroute_interfaces: vec!["net1".into(), "net2".into()], ..plain() },
        sidecar::Settings { owner_groups: OwnerGroups::AllBut(vec![202, 203]), ..plain() },
        sidecar::Settings { owner_groups: OwnerGroups::Only(vec![202, 203]), ..plain() },
        sidecar::Settings { owner_groups: OwnerGroups::Only(vec![]), ..plain() },
        sidecar::Settings { proxy_uids: vec![0, 1, 4_294_967_294], proxy_gids: vec![1234], ..plain() },
        sidecar::Settings { drop_invalid: true, ..plain() },
        sidecar::Settings { dns: Dns::All, ..plain() },
        sidecar::Settings { dns: resolvers(&["10.96.0.10", "fd00::10"]), ..plain() },
        sidecar::Settings { dns: resolvers(&["10.96.0.10"]), ..plain() },
        sidecar::Settings { tproxy_mark: 0x1234_5678, tproxy_table: 99, ..plain() },
    ];
    all.push(sidecar::Settings {
        inbound_ports: Only::These(vec![80]),
        outbound_ranges: these(&["10.0.0.0/8", "fd00::/8"]),
        outbound_ranges_excluded: vec!["10.9.0.0/16".parse().unwrap(), "fd09::/16".parse().unwrap()],
        outbound_ports: vec![8080],
        interfaces_excluded: vec!["eth1".to_owned()],
        reroute_interfaces: vec!["net1".to_owned()],
        owner_groups: OwnerGroups::Only(vec![7, 8]),
        dns: resolvers(&["10.96.0.10"]),
        drop_invalid: true,
        ..plain()
    });
    for settings in all {
        for interception in [Interception::Redirect, Interception::Tproxy] {
            for ipv6 in [false, true] {
                check(&sidecar::program(&sidecar::Settings { interception, ..settings.clone() }, ipv6));
            }
        }
    }
}

#[test]
fn a_large_batch_is_taken() {
    let ranges = (0..2000_u32).map(|n| std::net::IpAddr::from((0x0a00_0000 + n).to_be_bytes()).into());
    let settings =
        sidecar::Settings { outbound_ranges: Only::These(ranges.collect()), ..crate::sidecar::scene::plain() };
    let program = sidecar::program(&settings, false);
    let netns = Netns::scratch().unwrap();
    netns.enter(|| own::write(&tables(program.purpose, &program.rules))).unwrap().unwrap();
    assert_eq!(nft_list(&netns).matches("jump istio-redirect").count(), 2000);
}
