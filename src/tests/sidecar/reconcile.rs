//! Over what is there: again, over other settings, beside rules of others, and out again.

use super::scene::{VARIANTS, plain};
use crate::support::engine::programmer;
use crate::support::netns::{PodNetns, run_in};
use ferrule::dataplane::backend::Backend;
use ferrule::dataplane::inpod::Applied;
use ferrule::dataplane::xtables::variant::Variant;
use ferrule::rules::diff::Leftovers;
use ferrule::rules::program::Program;
use ferrule::rules::sidecar::{Dns, Interception, Only, OwnerGroups, Settings, program};

/// Rules of others in every table, before ours: some as ours could be, had other settings made them.
const FOREIGN: &str = "
*mangle
:FOREIGN - [0:0]
-A PREROUTING -i eth5 -j RETURN
-A OUTPUT -o lo -p tcp -m mark --mark 0x1 -j RETURN
-A OUTPUT -p tcp --dport 9999 -j FOREIGN
-A FOREIGN -m comment --comment \"keep me\" -j RETURN
COMMIT
*nat
:FOREIGN - [0:0]
-A PREROUTING -i eth5 -j RETURN
-A OUTPUT -o eth6 -j RETURN
-A OUTPUT -p tcp --dport 9999 -j FOREIGN
-A FOREIGN -p udp -j RETURN
COMMIT
*raw
:FOREIGN - [0:0]
-A OUTPUT -j FOREIGN
COMMIT
";

fn pod(variant: Variant) -> PodNetns {
    let pod = PodNetns::new();
    for ip in ["iptables", "ip6tables"] {
        run_in(pod.netns(), "sh", &["-ec", &format!("{ip}-{variant}-restore --noflush <<'END'\n{FOREIGN}END\n")]);
    }
    pod
}

/// All that a namespace holds, but for counters and for tables in which nothing is.
fn state(pod: &PodNetns) -> Vec<String> {
    const SCRIPT: &str = "
        for tool in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do
            $tool-save 2>/dev/null | sed -n -e '/^[*]/{h;d}' -e \"/^-A/{G;s/^/$tool /;p}\" -e \"/^:[^ ]* -/{G;s/^/$tool /;p}\"
        done
        for family in -4 -6; do
            ip $family rule
            for table in 133 78; do ip $family route show table $table 2>/dev/null || true; done
        done
        ip -6 -o addr show dev lo";
    let text = run_in(pod.netns(), "sh", &["-ec", SCRIPT]).replace("\n*", " *");
    let mut lines: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
    // Chains are listed in no particular order.
    lines.sort_by_key(|line| (!line.contains(" :"), if line.contains(" :") { line.clone() } else { String::new() }));
    let counter = |line: String| line.split(" [0:0]").next().unwrap().to_owned();
    lines.into_iter().map(counter).collect()
}

/// Programs of every kind.
fn programs() -> Vec<(&'static str, Program)> {
    let tproxy = Settings { interception: Interception::Tproxy, ..plain() };
    let everything = Settings {
        inbound_ports: Only::These(vec![80]),
        outbound_ranges: Only::These(vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()]),
        outbound_ranges_excluded: vec!["10.9.0.0/16".parse().unwrap()],
        outbound_ports: vec![8080],
        interfaces_excluded: vec!["eth1".to_owned(), "eth2".to_owned()],
        reroute_interfaces: vec!["net1".to_owned(), "net2".to_owned()],
        owner_groups: OwnerGroups::Only(vec![7, 8]),
        dns: Dns::Resolvers(vec!["10.96.0.10".parse().unwrap()]),
        drop_invalid: true,
        proxy_uids: vec![1, 2],
        tproxy_mark: 77,
        tproxy_table: 78,
        ..tproxy.clone()
    };
    let nothing = Settings { inbound_ports: Only::These(vec![]), outbound_ranges: Only::These(vec![]), ..plain() };
    let interfaces = |excluded: &str, rerouted: &str| Settings {
        interfaces_excluded: vec![excluded.to_owned()],
        reroute_interfaces: vec![rerouted.to_owned()],
        ..plain()
    };
    vec![
        ("plain", program(&plain(), false)),
        ("everything", program(&everything, true)),
        ("plain with IPv6", program(&plain(), true)),
        ("TPROXY", program(&tproxy, true)),
        ("interfaces", program(&interfaces("eth1", "net1"), true)),
        ("other interfaces", program(&interfaces("eth8", "net9"), true)),
        ("DNS", program(&Settings { dns: Dns::All, ..plain() }, true)),
        ("nothing", program(&nothing, false)),
        ("everything in IPv4", program(&everything, false)),
    ]
}

#[test]
fn over_other_settings_with_reconcile_exactly_the_new_ones_are_left() {
    for variant in VARIANTS {
        let (inpod, _dir) = programmer(Backend::Iptables(variant));
        let engine = inpod.engine();
        let programs = programs();
        let fresh: Vec<Vec<String>> = programs
            .iter()
            .map(|(_, program)| {
                let pod = pod(variant);
                engine.apply(pod.netns(), program, Leftovers::Remove).unwrap();
                state(&pod)
            })
            .collect();
        let pod = pod(variant);
        let before = state(&pod);
        // Every program over the one before it, and over the last but one.
        for step in [1, 2] {
            for (at, (name, program)) in programs.iter().enumerate().step_by(step) {
                let case = format!("{variant}: {name}, step {step}");
                assert_eq!(engine.apply(pod.netns(), program, Leftovers::Remove).unwrap(), Applied::Written, "{case}");
                assert_eq!(state(&pod), fresh[at], "{case}");
                let again = engine.apply(pod.netns(), program, Leftovers::Remove).unwrap();
                assert_eq!(again, Applied::AlreadyRight, "{case}");
            }
        }
        // By whatever program it is taken out.
        engine.remove(pod.netns(), &programs[1].1).unwrap();
        assert_eq!(state(&pod), before, "{variant}");
        engine.remove(pod.netns(), &programs[0].1).unwrap();
        assert_eq!(state(&pod), before, "{variant}");
    }
}

#[test]
fn over_other_settings_without_reconcile_the_old_ones_stay_beside_the_new_ones() {
    for variant in VARIANTS {
        let (inpod, _dir) = programmer(Backend::Iptables(variant));
        let engine = inpod.engine();
        let programs = programs();
        let (plain, interfaces) = (&programs[2].1, &programs[4].1);
        let pod = pod(variant);
        engine.apply(pod.netns(), interfaces, Leftovers::Keep).unwrap();
        let old = state(&pod);
        engine.apply(pod.netns(), plain, Leftovers::Keep).unwrap();
        assert_eq!(engine.check(pod.netns(), plain, Leftovers::Keep).unwrap(), Vec::<String>::new());
        let both = state(&pod);
        assert_eq!(both, old, "{variant}: all that plain settings want was there already");
        let left = engine.check(pod.netns(), plain, Leftovers::Remove).unwrap();
        for rule in ["-A PREROUTING -i net1 -j ISTIO_REDIRECT", "-A OUTPUT -o eth1 -j RETURN"] {
            let clause = format!("IPv4: rule \"{rule}\" of table nat is not wanted");
            assert!(left.contains(&clause), "{left:?}");
        }
        assert_eq!(engine.apply(pod.netns(), plain, Leftovers::Remove).unwrap(), Applied::Written);
        assert!(!state(&pod).iter().any(|line| line.contains("net1") || line.contains("eth1")));
    }
}

#[test]
fn damage_is_noticed_and_put_right() {
    for variant in VARIANTS {
        let (inpod, _dir) = programmer(Backend::Iptables(variant));
        let (_, program) = &programs()[1];
        let pod = pod(variant);
        inpod.apply(pod.netns(), program.clone()).unwrap();
        let right = state(&pod);
        for script in [
            "IPT -t nat -D PREROUTING -i net1 -j RETURN",
            "IPT -t nat -D OUTPUT -o eth1 -j RETURN",
            "IPT -t nat -A OUTPUT -o eth1 -j RETURN",
            "IPT -t nat -D OUTPUT -j ISTIO_OUTPUT; IPT -t nat -I OUTPUT -j ISTIO_OUTPUT",
            "IPT -t mangle -D PREROUTING -p tcp -j ISTIO_INBOUND",
            "IPT -t mangle -D OUTPUT -o lo -p tcp -m mark --mark 77 -j RETURN",
            "IPT -t mangle -F ISTIO_INBOUND",
            "IPT -t raw -F ISTIO_OUTPUT_DNS",
            "IPT -t nat -I ISTIO_OUTPUT -j RETURN",
            "IPT -t nat -A PREROUTING -i net3 -j ISTIO_REDIRECT",
            "ip rule del fwmark 77; ip -6 rule del fwmark 77",
            "ip route flush table 78",
            "ip addr del ::6/128 dev lo",
        ] {
            for ip in ["iptables", "ip6tables"] {
                let script = script.replace("IPT", &format!("{ip}-{variant}"));
                if script.contains(variant.to_string().as_str()) || ip == "iptables" {
                    run_in(pod.netns(), "sh", &["-ec", &script]);
                }
            }
            assert!(!inpod.check(pod.netns(), program.clone()).unwrap().is_empty(), "{variant} {script}");
            assert_eq!(inpod.apply(pod.netns(), program.clone()).unwrap(), Applied::Written, "{variant} {script}");
            assert_eq!(state(&pod), right, "{variant} {script}");
        }
    }
}
