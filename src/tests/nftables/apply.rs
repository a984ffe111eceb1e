//! Apply, verify, apply again, repair, remove: beside tables of others, which survive bit for bit.

use crate::rules::pod::{every_settings, everything, plain, pod, sh};
use crate::sidecar::scene;
use crate::support::engine::programmer;
use ferrule::dataplane::backend::Backend;
use ferrule::dataplane::engine::Applied;
use ferrule::rules::diff::Leftovers;
use ferrule::rules::inpod::Settings;
use ferrule::rules::program::Program;
use ferrule::rules::sidecar::{self, Dns, Interception};
use ferrule::sys::netns::Netns;

/// Tables of others, with names that look like ours, and the same chains.
const FOREIGN: &str = "
add table inet istio-ambient-nat-too
add chain inet istio-ambient-nat-too prerouting { type nat hook prerouting priority -100; }
add chain inet istio-ambient-nat-too istio-output
add rule inet istio-ambient-nat-too istio-output tcp dport 9999 return comment \"keep me\"
add table ip istio-ambient-nat
add set ip istio-ambient-nat s { type ipv4_addr; elements = { 10.9.9.9 comment \"keep\" }; }
add chain ip istio-ambient-nat output { type nat hook output priority -100; }
add rule ip istio-ambient-nat output ip daddr @s return
add table ip6 istio-proxy-mangle
add chain ip6 istio-proxy-mangle istio-inbound
add rule ip6 istio-proxy-mangle istio-inbound counter
add table inet other { flags dormant; }
add chain inet other input { type filter hook input priority 0; policy drop; }";

/// A pod with them, and with some of iptables.
fn beside_others() -> Netns {
    let netns = pod();
    sh(&netns, &format!("nft -f - <<'END'\n{FOREIGN}\nEND\n"));
    for variant in ["nft", "legacy"] {
        sh(&netns, &format!("iptables-{variant} -t nat -A OUTPUT -p tcp --dport 9998 -j ACCEPT"));
    }
    netns
}

/// All of nf_tables, with the handles by which anything written anew shows.
fn tables(netns: &Netns) -> String {
    sh(netns, "nft -a list ruleset")
}

/// Tables of ours.
fn ours(netns: &Netns) -> Vec<String> {
    let list = sh(netns, "nft list tables inet");
    let names = list.lines().filter_map(|line| line.strip_prefix("table inet "));
    names.filter(|name| name.starts_with("istio-") && !name.ends_with("-too")).map(str::to_owned).collect()
}

#[test]
fn every_setting_is_applied_once_and_removed_without_a_trace() {
    let (inpod, _dir) = programmer(Backend::Nftables);
    let ambient = every_settings().into_iter().map(|settings| Program::from(&settings));
    let tproxy =
        sidecar::Settings { interception: Interception::Tproxy, dns: Dns::All, drop_invalid: true, ..scene::plain() };
    let sidecars = [scene::plain(), tproxy].map(|settings| sidecar::program(&settings, true));
    for program in ambient.chain(sidecars) {
        let netns = beside_others();
        let before = (tables(&netns), everything(&netns));
        assert_eq!(inpod.apply(&netns, program.clone()).unwrap(), Applied::Written, "{program:?}");
        assert_eq!(ours(&netns).len(), program.rules[0].tables.len());
        let applied = (tables(&netns), everything(&netns));
        assert_eq!(inpod.check(&netns, program.clone()).unwrap(), Vec::<String>::new(), "{program:?}");
        assert_eq!(inpod.apply(&netns, program.clone()).unwrap(), Applied::AlreadyRight, "{program:?}");
        assert_eq!((tables(&netns), everything(&netns)), applied, "{program:?}");
        inpod.engine().remove(&netns, &program).unwrap();
        assert_eq!((tables(&netns), everything(&netns)), before, "{program:?}");
        inpod.engine().remove(&netns, &program).unwrap();
    }
}

#[test]
fn settings_change_over_rules_of_other_settings() {
    let (inpod, _dir) = programmer(Backend::Nftables);
    let netns = beside_others();
    let all: Vec<Settings> = every_settings().into_iter().filter(|settings| settings.ipv6).collect();
    let list = |netns: &Netns| (sh(netns, "nft list ruleset"), everything(netns));
    for settings in all.iter().chain(all.iter().rev().skip(1)) {
        let fresh = beside_others();
        inpod.apply(&fresh, settings).unwrap();
        assert_eq!(inpod.apply(&netns, settings).unwrap(), Applied::Written, "{settings:?}");
        assert_eq!(list(&netns), list(&fresh), "{settings:?}");
    }
    // Leftovers may be kept.
    let (dns, plain) = (Settings { dns_capture: true, ..plain() }, plain());
    inpod.apply(&netns, &dns).unwrap();
    inpod.engine().apply(&netns, &(&plain).into(), Leftovers::Keep).unwrap();
    assert_eq!(ours(&netns).len(), 3);
    assert_eq!(inpod.check(&netns, &plain).unwrap(), ["table inet istio-ambient-raw is a leftover"]);
}

#[test]
fn with_ipv6_off_nothing_of_ipv6_is_touched() {
    let (inpod, _dir) = programmer(Backend::Nftables);
    let netns = pod();
    let v6 = "nft list ruleset | grep ip6 || true; ip -6 rule; ip -6 route show table 100 2>/dev/null || true";
    let before = sh(&netns, v6);
    assert_eq!(inpod.apply(&netns, &Settings { ipv6: false, ..plain() }).unwrap(), Applied::Written);
    assert_eq!(sh(&netns, v6), before);
    sh(&netns, "echo 1 > /proc/sys/net/ipv6/conf/lo/disable_ipv6");
    assert_eq!(inpod.apply(&netns, &plain()).unwrap(), Applied::AlreadyRight);
    sh(&netns, "echo 0 > /proc/sys/net/ipv6/conf/lo/disable_ipv6");
    assert_eq!(inpod.apply(&netns, &plain()).unwrap(), Applied::Written);
    assert_ne!(sh(&netns, v6), before);
}

/// What others may do to our tables, and what is said about it.
const DAMAGE: &[(&str, &str)] = &[
    ("nft add table inet istio-ambient-nat '{ flags dormant; }'", "table inet istio-ambient-nat is switched off"),
    (
        "nft chain inet istio-ambient-nat output '{ policy drop; }'",
        "table inet istio-ambient-nat has chain output not attached as it should be",
    ),
    (
        "nft flush chain inet istio-ambient-nat output; nft delete chain inet istio-ambient-nat output
         nft add chain inet istio-ambient-nat output '{ type nat hook output priority 0; }'
         nft add rule inet istio-ambient-nat output jump istio-output",
        "table inet istio-ambient-nat has chain output not attached as it should be",
    ),
    (
        "nft insert rule inet istio-ambient-nat output accept",
        "table inet istio-ambient-nat has other rules in chain output",
    ),
    (
        "nft add rule inet istio-ambient-mangle istio-output counter drop",
        "table inet istio-ambient-mangle has other rules in chain istio-output",
    ),
    (
        "nft flush chain inet istio-ambient-mangle prerouting",
        "table inet istio-ambient-mangle has other rules in chain prerouting",
    ),
    ("nft add chain inet istio-ambient-nat another", "table inet istio-ambient-nat has a chain another"),
    ("nft delete table inet istio-ambient-nat", "table inet istio-ambient-nat is missing"),
    ("nft add table inet istio-ambient-raw", "table inet istio-ambient-raw is a leftover"),
    ("ip rule del pref 32764", "IPv4: the rule for marked packets is missing"),
    ("ip -6 route flush table 100", "IPv6: the local route for marked packets is missing"),
];

#[test]
fn damage_is_noticed_and_put_right() {
    let (inpod, _dir) = programmer(Backend::Nftables);
    let netns = beside_others();
    inpod.apply(&netns, &plain()).unwrap();
    let list = |netns: &Netns| (sh(netns, "nft list ruleset | sort"), everything(netns));
    let right = list(&netns);
    let others = || sh(&netns, "nft -a list table inet other; nft -a list table ip istio-ambient-nat");
    let before = others();
    let put_right = |script: &str, clause: &str| {
        let said = inpod.check(&netns, &plain()).unwrap();
        assert!(said.contains(&clause.to_owned()), "{script}: {said:?}");
        assert_eq!(inpod.apply(&netns, &plain()).unwrap(), Applied::Written, "{script}");
        assert_eq!(inpod.check(&netns, &plain()).unwrap(), Vec::<String>::new(), "{script}");
        assert_eq!((list(&netns), others()), (right.clone(), before.clone()), "{script}");
    };
    for (script, clause) in DAMAGE {
        sh(&netns, script);
        put_right(script, clause);
    }
    // Every rule of ours, one after the other.
    let mut deleted = 0;
    for table in ours(&netns) {
        let rules = |text: &str| -> Vec<(String, String)> {
            let mut chain = String::new();
            let mut rules = Vec::new();
            for line in text.lines().map(str::trim) {
                if let Some(rest) = line.strip_prefix("chain ") {
                    chain = rest.split(' ').next().unwrap().to_owned();
                } else if let Some((rule, handle)) = line.rsplit_once(" # handle ")
                    && !rule.ends_with('{')
                {
                    rules.push((chain.clone(), handle.to_owned()));
                }
            }
            rules
        };
        let count = rules(&sh(&netns, &format!("nft -a list table inet {table}"))).len();
        for number in 0..count {
            let (chain, handle) = rules(&sh(&netns, &format!("nft -a list table inet {table}"))).swap_remove(number);
            sh(&netns, &format!("nft delete rule inet {table} {chain} handle {handle}"));
            put_right(
                &format!("rule {number} of {table}"),
                &format!("table inet {table} has other rules in chain {chain}"),
            );
            deleted += 1;
        }
    }
    assert!(deleted >= 14, "{deleted}");
    sh(&netns, "nft flush ruleset");
    assert_eq!(inpod.apply(&netns, &plain()).unwrap(), Applied::Written);
    assert_eq!(ours(&netns).len(), 2);
}
