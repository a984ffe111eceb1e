//! Rules that are nearly right: noticed, put right with as little as possible, nothing of others touched.

use super::pod::{VARIANTS, everything, foreign, load, plain, pod, programmer, sh};
use ferrule::dataplane::inpod::Applied;
use ferrule::dataplane::xtables::variant::Variant;
use ferrule::rules::inpod::Settings;
use ferrule::sys::netns::Netns;

/// What was done, by a script in which `IPT` is the iptables of one family, and what is said about it.
const DAMAGE: &[(&str, &str)] = &[
    ("IPT -t nat -D ISTIO_OUTPUT 1", "chain ISTIO_OUTPUT of table nat differs"),
    ("IPT -t nat -F ISTIO_PRERT", "chain ISTIO_PRERT of table nat differs"),
    ("IPT -t nat -I ISTIO_OUTPUT -j ACCEPT", "chain ISTIO_OUTPUT of table nat differs"),
    (
        "IPT -t nat -R ISTIO_OUTPUT 2 -p tcp -m mark --mark 0x112/0xfff -j ACCEPT",
        "chain ISTIO_OUTPUT of table nat differs",
    ),
    ("IPT -t mangle -R ISTIO_PRERT 1 -j CONNMARK --set-xmark 0x1/0xfff", "chain ISTIO_PRERT of table mangle differs"),
    ("IPT -t nat -D OUTPUT -j ISTIO_OUTPUT", "rule \"-A OUTPUT -j ISTIO_OUTPUT\" of table nat is missing"),
    ("IPT -t mangle -D PREROUTING -j ISTIO_PRERT", "rule \"-A PREROUTING -j ISTIO_PRERT\" of table mangle is missing"),
    (
        "IPT -t nat -A OUTPUT -j ISTIO_OUTPUT; IPT -t nat -I OUTPUT -j ISTIO_OUTPUT",
        "rule \"-A OUTPUT -j ISTIO_OUTPUT\" of table nat is there more than once",
    ),
    ("IPT -t nat -F; IPT -t nat -X", "chain ISTIO_OUTPUT of table nat is missing"),
    (
        "IPT -t mangle -D OUTPUT -j ISTIO_OUTPUT; IPT -t mangle -F ISTIO_OUTPUT; IPT -t mangle -X ISTIO_OUTPUT",
        "chain ISTIO_OUTPUT of table mangle is missing",
    ),
    (
        "IPT -t raw -N ISTIO_OUTPUT; IPT -t raw -A OUTPUT -j ISTIO_OUTPUT; IPT -t raw -A ISTIO_OUTPUT -p udp --dport 53 -j CT --zone 1",
        "chain ISTIO_OUTPUT of table raw is a leftover",
    ),
    ("IPT -t raw -N ISTIO_PRERT", "chain ISTIO_PRERT of table raw is a leftover"),
    // Rules for marked packets.
    ("ip FAMILY rule del pref 32764", "the rule for marked packets is missing"),
    ("ip FAMILY route flush table 100", "the local route for marked packets is missing"),
];

/// Only nf_tables can do these.
const NFT_DAMAGE: &[(&str, &str)] = &[
    ("nft add table NFT nat '{ flags dormant; }'", "table nat is switched off"),
    ("nft add table NFT mangle '{ flags dormant; }'", "table mangle is switched off"),
    ("nft delete table NFT nat", "chain ISTIO_PRERT of table nat is missing"),
    ("nft flush ruleset", "chain ISTIO_PRERT of table mangle is missing"),
    ("nft add rule NFT nat ISTIO_OUTPUT counter", "chain ISTIO_OUTPUT of table nat differs"),
];

#[test]
fn damage_of_nft_rules_is_noticed_and_put_right() {
    repair(Variant::Nft, DAMAGE.iter().chain(NFT_DAMAGE));
}

#[test]
fn damage_of_legacy_rules_is_noticed_and_put_right() {
    repair(Variant::Legacy, DAMAGE);
}

/// Does each damage to one of the families, in turn.
fn repair<'a>(variant: Variant, all: impl IntoIterator<Item = &'a (&'a str, &'a str)>) {
    let (inpod, _dir) = programmer(variant);
    let twin = pod();
    foreign(&twin, variant);
    inpod.apply(&twin, &plain()).unwrap();
    let right = of_ours(&twin);
    for (number, (damage, clause)) in all.into_iter().enumerate() {
        let (name, ip, flag, nft) =
            if number % 2 == 0 { ("IPv4", "iptables", "-4", "ip") } else { ("IPv6", "ip6tables", "-6", "ip6") };
        let case = format!("{variant} {name} {damage}");
        let netns = pod();
        foreign(&netns, variant);
        inpod.apply(&netns, &plain()).unwrap();
        let script = damage.replace("IPT", &format!("{ip}-{variant}")).replace("FAMILY", flag);
        sh(&netns, &script.replace("NFT", nft));
        let others = of_others(&netns);

        let said = inpod.check(&netns, &plain()).unwrap();
        assert!(said.contains(&format!("{name}: {clause}")), "{case}: {said:?}");
        assert_eq!(inpod.apply(&netns, &plain()).unwrap(), Applied::Written, "{case}");
        assert_eq!(inpod.check(&netns, &plain()).unwrap(), Vec::<String>::new(), "{case}");
        assert_eq!((of_ours(&netns), of_others(&netns)), (right.clone(), others.clone()), "{case}");

        inpod.remove(&netns).unwrap();
        assert_eq!((of_ours(&netns), of_others(&netns)), (vec![], others), "{case}");
    }
}

fn is_ours(line: &str) -> bool {
    ["ISTIO_OUTPUT", "ISTIO_PRERT", "0x111", "table 100", "local default"].iter().any(|name| line.contains(name))
}

fn of_ours(netns: &Netns) -> Vec<String> {
    everything(netns).into_iter().filter(|line| is_ours(line)).collect()
}

fn of_others(netns: &Netns) -> Vec<String> {
    everything(netns).into_iter().filter(|line| !is_ours(line) && !line.contains(" *")).collect()
}

/// An earlier Istio wrote them otherwise: the same names, other rules, a different order of tables.
const OLDER: &str = "\
*nat
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-I PREROUTING 1 -j ISTIO_PRERT
-I OUTPUT 1 -j ISTIO_OUTPUT
-A ISTIO_PRERT -p tcp -j REDIRECT --to-ports 15006
-A ISTIO_OUTPUT -p tcp -j REDIRECT --to-ports 15001
COMMIT
*raw
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_OUTPUT -p udp -m udp --dport 53 -j CT --zone 2
COMMIT
";

#[test]
fn an_older_version_is_replaced() {
    for variant in VARIANTS {
        let (inpod, _dir) = programmer(variant);
        for settings in [plain(), Settings { dns_capture: true, ..plain() }] {
            let netns = pod();
            foreign(&netns, variant);
            let before = of_others(&netns);
            load(&netns, variant, OLDER);
            assert_eq!(inpod.apply(&netns, &settings).unwrap(), Applied::Written);
            let other = pod();
            inpod.apply(&other, &settings).unwrap();
            assert_eq!(of_ours(&netns), of_ours(&other), "{variant}");
            assert_eq!(of_others(&netns), before);
        }
    }
}

#[test]
fn rules_of_the_other_variant_are_taken_out() {
    for (variant, other) in [(Variant::Nft, Variant::Legacy), (Variant::Legacy, Variant::Nft)] {
        let netns = pod();
        let (there, _dir) = programmer(other);
        foreign(&netns, other);
        let before = everything(&netns);
        there.apply(&netns, &Settings { dns_capture: true, ..plain() }).unwrap();
        let (inpod, _dir) = programmer(variant);
        let said = inpod.check(&netns, &plain()).unwrap();
        assert!(said.contains(&format!("IPv4: there are rules of ours in the {other} tables too")), "{said:?}");
        assert_eq!(inpod.apply(&netns, &plain()).unwrap(), Applied::Written);
        assert_eq!(inpod.check(&netns, &plain()).unwrap(), Vec::<String>::new());
        inpod.remove(&netns).unwrap();
        assert_eq!(everything(&netns), before);
        // Whichever variant holds them, all of them go.
        there.apply(&netns, &plain()).unwrap();
        inpod.remove(&netns).unwrap();
        assert_eq!(everything(&netns), before);
    }
}

#[test]
fn a_chain_of_ours_that_others_use_is_emptied() {
    for variant in VARIANTS {
        let netns = pod();
        let (inpod, _dir) = programmer(variant);
        inpod.apply(&netns, &plain()).unwrap();
        sh(&netns, &format!("iptables-{variant} -t nat -A OUTPUT -p tcp --dport 7 -j ISTIO_OUTPUT"));
        assert_eq!(inpod.apply(&netns, &plain()).unwrap(), Applied::AlreadyRight);
        inpod.remove(&netns).unwrap();
        let left = [
            format!("iptables-{variant} *nat"),
            format!("iptables-{variant} :ISTIO_OUTPUT -"),
            format!("iptables-{variant} -A OUTPUT -p tcp -m tcp --dport 7 -j ISTIO_OUTPUT"),
        ];
        let now: Vec<_> = everything(&netns).into_iter().filter(|line| line.contains("iptables-")).collect();
        assert_eq!(now, left);
        inpod.remove(&netns).unwrap();
    }
}
