//! What others put where packets come to it before they come to our rules is seen, in tables of their own and outside of
//! the packet filter too.

use super::pod::{plain, pod, sh};
use crate::sidecar::scene;
use crate::support::engine::{BACKENDS, programmer};
use ferrule::dataplane::inpod::InPod;
use ferrule::rules::preceding::Preceding;
use ferrule::rules::program::Program;
use ferrule::rules::sidecar::{Interception, Settings, program};
use ferrule::sys::netns::Netns;

/// What is told after `script` was run in a pod with these rules.
fn told(inpod: &InPod, rules: &Program, script: &str) -> Vec<String> {
    let netns = pod();
    let before = inpod.bring(&netns, rules.clone()).unwrap();
    sh(&netns, script);
    let seen = |netns: &Netns| inpod.compare(netns, rules.clone()).unwrap();
    let now = seen(&netns);
    assert!(now.is_empty(), "{script}: {now:?}");
    assert_eq!(inpod.bring(&netns, rules.clone()).unwrap(), now.preceding, "{script}: both ways");
    Preceding::newcomers(&before, &now.preceding).iter().map(ToString::to_string).collect()
}

#[test]
fn what_comes_before_ours_is_told() {
    let chain = |family: &str, hook: &str, priority: i32, rule: &str| {
        format!(
            "nft add table {family} theirs; nft 'add chain {family} theirs c {{ type filter hook {hook} priority {priority}; }}';              nft add rule {family} theirs c {rule}"
        )
    };
    let transparent = Settings { interception: Interception::Tproxy, ..scene::plain() };
    for backend in BACKENDS {
        let (inpod, _dir) = programmer(backend);
        let ambient = Program::from(&plain());
        let sidecar = program(&scene::plain(), true);
        let routed = program(&transparent, true);
        for rules in [&ambient, &sidecar] {
            let check = |script: &str, expected: &[&str]| assert_eq!(told(&inpod, rules, script), expected, "{script}");
            check("true", &[]);
            for family in ["ip", "ip6", "inet"] {
                let clause = format!("base chain c of nf_tables' table {family} theirs");
                check(&chain(family, "output", -310, "tcp dport 80 accept"), &[&clause]);
                check(&chain(family, "prerouting", -101, "counter drop"), &[&clause]);
                check(&chain(family, "output", -99, "accept"), &[]);
                check(&chain(family, "output", -100, "tcp dport 80 accept"), &[&clause]);
                check(&chain(family, "prerouting", -100, "tcp dport 80 accept"), &[&clause]);
                check(&chain(family, "postrouting", -310, "accept"), &[]);
            }
            check(
                "nft add table inet theirs; nft 'add chain inet theirs c { type filter hook output priority -200; }'",
                &[],
            );
        }
        for rules in [&ambient, &routed] {
            let check = |script: &str, expected: &[&str]| assert_eq!(told(&inpod, rules, script), expected, "{script}");
            check("ip rule add pref 100 lookup 77", &["IPv4 policy rule 100"]);
            check("ip -6 rule add pref 100 fwmark 0x111/0xfff lookup 77", &["IPv6 policy rule 100"]);
            check("ip rule add pref 101 from 10.0.0.1 blackhole", &["IPv4 policy rule 101"]);
            check("ip rule add pref 40000 lookup 78", &[]);
        }
    }
}
