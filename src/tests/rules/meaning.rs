//! What our text means to the kernel is what the text of Istio 1.31 means (test-fixtures/rules/istio-1.31).

use super::pod::{VARIANTS, plain, saved, sh};
use ferrule::rules::family::Family;
use ferrule::rules::inpod::Settings;
use ferrule::rules::{host, inpod, render};
use ferrule::sys::netns::Netns;

const FAMILIES: [(Family, &str, &str); 2] = [(Family::V4, "iptables", "ipv4"), (Family::V6, "ip6tables", "ipv6")];

#[test]
fn rules_mean_what_istio_means() {
    let interfaces = || vec!["fake1s0f0".to_owned(), "fake1s0f1".to_owned()];
    let cases = [
        ("plain", plain()),
        ("dns", Settings { dns_capture: true, ..plain() }),
        ("ingress", Settings { ingress_mode: true, ..plain() }),
        ("virtual-interfaces", Settings { reroute_interfaces: interfaces(), ..plain() }),
        (
            "ingress-and-virtual-interfaces",
            Settings { ingress_mode: true, reroute_interfaces: interfaces(), ..plain() },
        ),
    ];
    for (name, settings) in cases {
        check(name, |family| render::restore(&inpod::rules(&settings, family)));
    }
    let probe = host::Settings {
        probe_v4: plain().probe_v4,
        probe_v6: "fd16:9254:7127:1337:ffff:ffff:ffff:ffff".parse().unwrap(),
        kubelet: None,
    };
    check("host", |family| render::restore(&host::rules(&probe, family)));
}

#[track_caller]
fn check(name: &str, ours: impl Fn(Family) -> String) {
    for (family, ip, suffix) in FAMILIES {
        let path = format!("{}/test-fixtures/rules/istio-1.31/{name}.{suffix}", env!("CARGO_MANIFEST_DIR"));
        let theirs = std::fs::read_to_string(path).unwrap();
        for variant in VARIANTS {
            let held = |input: &str| {
                let netns = Netns::scratch().unwrap();
                sh(&netns, "ipset create istio-inpod-probes-v4 hash:ip");
                sh(&netns, "ipset create istio-inpod-probes-v6 hash:ip family inet6");
                sh(&netns, &format!("{ip}-{variant}-restore --noflush <<'END'\n{input}END\n"));
                let mut lines = saved(&netns, variant, ip);
                // The order of chains means nothing.
                lines.sort_by_key(|line| line.split(' ').nth(1).unwrap_or_default().to_owned());
                lines.retain(|line| line.starts_with("-A"));
                lines
            };
            let (ours, theirs) = (held(&ours(family)), held(&theirs));
            assert!(ours.len() >= 2);
            assert_eq!(ours, theirs, "{name} {suffix} {variant}");
        }
    }
}
