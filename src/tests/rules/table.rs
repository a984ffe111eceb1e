//! Routes of others in the table to which marked packets are led: they stay as they are, and ours go elsewhere.

use super::pod::{everything, plain, pod, sh};
use crate::sidecar::scene;
use crate::support::engine::{BACKENDS, programmer};
use ferrule::dataplane::inpod::{Applied, InPod};
use ferrule::rules::program::Program;
use ferrule::rules::sidecar::{Interception, Settings, program};
use ferrule::sys::netns::Netns;

/// A pod with a second interface, as Multus gives it.
fn attached() -> Netns {
    let netns = pod();
    sh(
        &netns,
        "ip link add net1 type veth peer name far; ip link set far up; ip addr add 10.5.0.2/24 dev net1; ip addr add fd05::2/64 dev net1 nodad; ip link set net1 up",
    );
    netns
}

/// Policy rules by a mark, and a table's routes.
fn marked(netns: &Netns) -> String {
    sh(netns, "ip rule | grep fwmark || true; ip -6 rule | grep fwmark || true")
}

fn routes(netns: &Netns, table: u32) -> String {
    let show = |ip: &str| sh(netns, &format!("{ip} route show table {table} 2>/dev/null || true"));
    let all = show("ip") + &show("ip -6");
    let trimmed = all.lines().map(str::trim).collect::<Vec<_>>();
    trimmed.join("\n")
}

const OURS: &str = "local default dev lo scope host\nlocal default dev lo metric 1024 pref medium";

/// Both families' rules lead to this table, which has our routes and no other.
#[track_caller]
fn leads_to(netns: &Netns, table: u32) {
    let rules = marked(netns);
    assert_eq!(rules.matches(&format!("fwmark 0x111/0xfff lookup {table}")).count(), 2, "{rules}");
    assert_eq!(rules.lines().count(), 2, "{rules}");
    assert_eq!(routes(netns, table), OURS);
}

#[track_caller]
fn apply(inpod: &InPod, netns: &Netns) {
    assert_eq!(inpod.apply(netns, &plain()).unwrap(), Applied::Written);
    assert_eq!(inpod.check(netns, &plain()).unwrap(), Vec::<String>::new());
    assert_eq!(inpod.apply(netns, &plain()).unwrap(), Applied::AlreadyRight);
}

/// What the CNI plugin `sbr` puts there, before ours.
const SOURCE_BASED: &str = "ip rule add from 10.5.0.2 lookup 100; ip route add 10.5.0.0/24 dev net1 table 100
    ip route add default via 10.5.0.1 dev net1 table 100
    ip -6 rule add from fd05::2 lookup 100; ip -6 route add default via fd05::1 dev net1 table 100";

#[test]
fn where_the_usual_table_is_taken_another_is_used() {
    for backend in BACKENDS {
        let (inpod, _dir) = programmer(backend);
        for (theirs, table) in [("true", 100), (SOURCE_BASED, 15100)] {
            let netns = attached();
            sh(&netns, theirs);
            let (before, routes_before) = (everything(&netns), routes(&netns, 100));
            apply(&inpod, &netns);
            leads_to(&netns, table);
            if table != 100 {
                assert_eq!(routes(&netns, 100), routes_before);
                // Their packets do not come to lo, ours do.
                let way = |to: &str| sh(&netns, &format!("ip route get 192.0.2.1 {to}"));
                assert!(way("from 10.5.0.2").contains("via 10.5.0.1 dev net1"), "{}", way("from 10.5.0.2"));
                assert!(way("mark 0x111").starts_with("local 192.0.2.1 dev lo"), "{}", way("mark 0x111"));
            }
            inpod.remove(&netns).unwrap();
            assert_eq!(everything(&netns), before);
            assert_eq!(routes(&netns, 15100), "");
        }
    }
}

/// What comes to our table later takes marked packets away, or our route: ours move, it stays.
#[test]
fn a_route_that_comes_to_our_table_later_is_noticed_and_left_alone() {
    for backend in BACKENDS {
        let (inpod, _dir) = programmer(backend);
        for theirs in [
            // More specific than ours.
            "ip route add 192.0.2.0/24 dev net1 table 100; ip -6 route add 2001:db8::/32 dev net1 table 100",
            // In place of ours.
            "ip route replace default dev net1 table 100; ip -6 route add default dev net1 metric 1 table 100",
            "ip route flush table 100; ip -6 route flush table 100
             ip route add unreachable default table 100; ip -6 route add unreachable default table 100",
        ] {
            let netns = attached();
            apply(&inpod, &netns);
            leads_to(&netns, 100);
            sh(&netns, theirs);
            let told = inpod.check(&netns, &plain()).unwrap();
            for clause in
                ["IPv4: the rule for marked packets is missing", "IPv6: the rule for marked packets is missing"]
            {
                assert!(told.iter().any(|one| one == clause), "{theirs}: {told:?}");
            }
            apply(&inpod, &netns);
            leads_to(&netns, 15100);
            let left = routes(&netns, 100);
            assert!(!left.is_empty() && !left.contains("dev lo scope host"), "{theirs}: {left}");
            // Where that one is taken too, another.
            sh(
                &netns,
                "ip route add 192.0.2.0/24 dev net1 table 15100; ip -6 route add 2001:db8::/32 dev net1 table 15100",
            );
            apply(&inpod, &netns);
            leads_to(&netns, 15101);
            inpod.remove(&netns).unwrap();
            assert_eq!(marked(&netns), "");
            assert_eq!(routes(&netns, 100), left, "{theirs}");
            assert_eq!(routes(&netns, 15101), "");
        }
    }
}

/// The usual number is what Istio's tools look for.
#[test]
fn a_table_that_is_free_again_is_gone_back_to() {
    let (inpod, _dir) = programmer(BACKENDS[0]);
    let netns = attached();
    sh(&netns, SOURCE_BASED);
    apply(&inpod, &netns);
    sh(&netns, "ip route flush table 100; ip -6 route flush table 100");
    inpod.apply(&netns, &plain()).unwrap();
    leads_to(&netns, 100);
    assert_eq!(routes(&netns, 15100), "");
}

#[test]
fn a_sidecars_table_too() {
    let settings = Settings { interception: Interception::Tproxy, ..scene::plain() };
    for backend in BACKENDS {
        let (inpod, _dir) = programmer(backend);
        let netns = attached();
        sh(&netns, "ip route add default dev net1 table 133; ip -6 route add 2001:db8::/32 dev net1 table 133");
        let before = routes(&netns, 133);
        let rules: Program = program(&settings, true);
        assert_eq!(inpod.apply(&netns, rules.clone()).unwrap(), Applied::Written);
        assert_eq!(inpod.check(&netns, rules.clone()).unwrap(), Vec::<String>::new());
        assert_eq!(inpod.apply(&netns, rules.clone()).unwrap(), Applied::AlreadyRight);
        assert_eq!(marked(&netns).matches("fwmark 0x539 lookup 15100").count(), 2, "{}", marked(&netns));
        assert_eq!(routes(&netns, 15100), OURS);
        inpod.engine().remove(&netns, &rules).unwrap();
        assert_eq!((marked(&netns), routes(&netns, 133)), (String::new(), before));
        assert_eq!(routes(&netns, 15100), "");
    }
}
