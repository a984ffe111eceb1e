//! Which iptables is taken.

use super::pod::{VARIANTS, counted_programs, plain, programmer, sh};
use ferrule::dataplane::backend::Backend;
use ferrule::dataplane::inpod::{InPod, Options};
use ferrule::dataplane::xtables::variant::Variant;
use ferrule::error::{Kind, Result};
use ferrule::sys::netns::Netns;
use std::path::Path;

fn detect(host: &Netns, force: Option<Variant>, programs: Option<&Path>) -> Result<InPod> {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        force_variant: force,
        lock_dir: dir.path().join("locks"),
        program_dir: programs.map(Path::to_owned),
        ..Default::default()
    };
    InPod::detect(options, host)
}

#[test]
fn the_variant_the_host_uses_is_taken() {
    let chosen = |host: &Netns| detect(host, None, None).unwrap().engine().backend();
    let host = Netns::scratch().unwrap();
    assert_eq!(chosen(&host), Backend::Iptables(Variant::Nft), "an empty host");
    sh(&host, "iptables-legacy -t nat -L >/dev/null");
    assert_eq!(chosen(&host), Backend::Iptables(Variant::Nft), "a legacy table without rules");
    sh(&host, "ip6tables-legacy -t filter -A INPUT -p tcp --dport 1 -j DROP");
    assert_eq!(chosen(&host), Backend::Iptables(Variant::Legacy), "legacy rules");
    sh(&host, "iptables-nft -t filter -A INPUT -p tcp --dport 1 -j DROP");
    assert_eq!(chosen(&host), Backend::Iptables(Variant::Legacy), "rules in both");
    for variant in VARIANTS {
        assert_eq!(
            detect(&host, Some(variant), None).unwrap().engine().backend(),
            Backend::Iptables(variant),
            "forced"
        );
    }
    let other = Netns::scratch().unwrap();
    sh(&other, "iptables-nft -t nat -N SOMETHING");
    assert_eq!(chosen(&other), Backend::Iptables(Variant::Nft), "an nft chain");
}

#[test]
fn looking_makes_nothing_in_the_hosts_namespace() {
    let host = Netns::scratch().unwrap();
    let names = "cat /proc/thread-self/net/ip_tables_names /proc/thread-self/net/ip6_tables_names; nft list ruleset";
    assert_eq!(sh(&host, names), "");
    detect(&host, None, None).unwrap();
    assert_eq!(sh(&host, names), "");
}

#[test]
fn looking_makes_nothing_in_a_pods_namespace() {
    for variant in VARIANTS {
        let (inpod, _dir) = programmer(variant);
        let pod = Netns::scratch().unwrap();
        let names =
            "cat /proc/thread-self/net/ip_tables_names /proc/thread-self/net/ip6_tables_names; nft list ruleset";
        assert!(!inpod.check(&pod, &plain()).unwrap().is_empty());
        inpod.remove(&pod).unwrap();
        assert_eq!(sh(&pod, names), "");
    }
}

#[test]
fn what_is_not_there_or_too_old_is_named() {
    let host = Netns::scratch().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let failure = |force| {
        let error = detect(&host, force, Some(dir.path())).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        error.to_string()
    };
    let said = failure(None);
    for part in ["iptables-nft: iptables-nft-restore is not installed", "iptables-legacy: ", "install iptables"] {
        assert!(said.contains(part), "{said}");
    }

    counted_programs(dir.path());
    let replace = |name: &str, script: &str| std::fs::write(dir.path().join(name), script).unwrap();
    replace("iptables-nft-restore", "#!/bin/sh\necho no nf_tables here >&2; exit 1\n");
    assert_eq!(
        detect(&host, None, Some(dir.path())).unwrap().engine().backend(),
        Backend::Iptables(Variant::Legacy),
        "nft does not work"
    );
    let said = failure(Some(Variant::Nft));
    for part in ["of variant nft (FORCE_IPTABLES_BINARY)", "iptables-nft-restore --noflush", "no nf_tables here"] {
        assert!(said.contains(part), "{said}");
    }
    replace("iptables-legacy", "#!/bin/sh\necho 'iptables v1.8.5 (legacy)'\n");
    let said = failure(None);
    assert!(said.contains("iptables-legacy: version 1.8.5 is too old, 1.8.6 is needed"), "{said}");
}
