//! Apply, verify, apply again, remove: for every setting, beside rules of others, with nothing left behind.

use super::pod::{
    VARIANTS, calls, counted_programs, every_settings, everything, foreign, plain, pod, programmer, routing, saved, sh,
};
use ferrule::dataplane::inpod::{Applied, InPod, Options};
use ferrule::dataplane::xtables::variant::Variant;
use ferrule::error::Kind;
use ferrule::rules::family::Family;
use ferrule::rules::inpod::{Settings, rules};
use ferrule::rules::render::restore;
use ferrule::sys::netns::Netns;
use std::path::Path;

#[test]
fn every_setting_is_applied_once_and_removed_without_a_trace() {
    for variant in VARIANTS {
        let programs = tempfile::tempdir().unwrap();
        counted_programs(programs.path());
        let inpod = with_programs(variant, programs.path());
        for settings in every_settings() {
            let case = format!("{variant} {settings:?}");
            let netns = pod();
            foreign(&netns, variant);
            let before = everything(&netns);

            assert_eq!(inpod.apply(&netns, &settings).unwrap(), Applied::Written, "{case}");
            let applied = everything(&netns);
            assert_eq!(applied, by_hand(variant, &settings), "{case}");
            assert_eq!(inpod.check(&netns, &settings).unwrap(), Vec::<String>::new(), "{case}");

            let run = calls(programs.path());
            assert_eq!(inpod.apply(&netns, &settings).unwrap(), Applied::AlreadyRight, "{case}");
            assert_eq!(calls(programs.path()), run, "{case}: a program was run though all was right");
            assert_eq!(everything(&netns), applied, "{case}");

            inpod.remove(&netns).unwrap();
            assert_eq!(everything(&netns), before, "{case}");
            let run = calls(programs.path());
            inpod.remove(&netns).unwrap();
            assert_eq!(calls(programs.path()), run, "{case}: a program was run though nothing was there");
        }
    }
}

/// Two plugins that a runtime starts for one sandbox, and a person's command beside the agent.
#[test]
fn several_at_once_come_to_the_same() {
    for variant in VARIANTS {
        let expected = by_hand(variant, &plain());
        for round in 0..8 {
            let netns = pod();
            foreign(&netns, variant);
            let outcomes: Vec<_> = std::thread::scope(|scope| {
                let workers: Vec<_> =
                    (0..3).map(|_| scope.spawn(|| programmer(variant).0.apply(&netns, &plain()))).collect();
                workers.into_iter().map(|worker| worker.join().unwrap()).collect()
            });
            assert!(outcomes.iter().all(Result::is_ok), "{variant}, round {round}: {outcomes:?}");
            assert_eq!(everything(&netns), expected, "{variant}, round {round}");
        }
    }
}

/// What a namespace holds after rules of others, then ours by the tools that people use.
fn by_hand(variant: Variant, settings: &Settings) -> Vec<String> {
    let netns = pod();
    foreign(&netns, variant);
    for (family, ip, flag, all) in
        [(Family::V4, "iptables", "-4", "0.0.0.0/0"), (Family::V6, "ip6tables", "-6", "::/0")]
    {
        if family == Family::V4 || settings.ipv6 {
            let input = restore(&rules(settings, family));
            sh(&netns, &format!("{ip}-{variant}-restore --noflush <<'END'\n{input}END\n"));
            sh(&netns, &format!("ip {flag} rule add fwmark 0x111/0xfff pref 32764 lookup 100"));
            sh(&netns, &format!("ip {flag} route replace local {all} dev lo table 100"));
        }
    }
    everything(&netns)
}

fn with_programs(variant: Variant, dir: &Path) -> InPod {
    let options = Options {
        force_variant: Some(variant),
        lock_dir: dir.join("locks"),
        program_dir: Some(dir.to_owned()),
        ..Default::default()
    };
    InPod::detect(options, &pod()).unwrap()
}

#[test]
fn settings_change_over_rules_of_other_settings() {
    for variant in VARIANTS {
        let (inpod, _dir) = programmer(variant);
        let netns = pod();
        foreign(&netns, variant);
        let mut all = every_settings();
        all.retain(|settings| settings.ipv6);
        for settings in all.iter().chain(all.iter().rev().skip(1)) {
            assert_eq!(inpod.apply(&netns, settings).unwrap(), Applied::Written, "{variant} {settings:?}");
            assert_eq!(everything(&netns), by_hand(variant, settings), "{variant} {settings:?}");
        }
    }
}

#[test]
fn with_ipv6_off_nothing_of_ipv6_is_touched_or_required() {
    for variant in VARIANTS {
        let programs = tempfile::tempdir().unwrap();
        counted_programs(programs.path());
        for twin in [format!("ip6tables-{variant}"), format!("ip6tables-{variant}-restore")] {
            std::fs::remove_file(programs.path().join(twin)).unwrap();
        }
        let inpod = with_programs(variant, programs.path());
        let netns = pod();
        let ipv6 = |netns: &Netns| (saved(netns, variant, "ip6tables"), routing(netns, "-6"));
        let before = ipv6(&netns);
        // Switched off by the settings, then by the namespace.
        assert_eq!(inpod.apply(&netns, &Settings { ipv6: false, ..plain() }).unwrap(), Applied::Written);
        assert_eq!(ipv6(&netns), before);
        sh(&netns, "echo 1 > /proc/sys/net/ipv6/conf/lo/disable_ipv6");
        assert_eq!(inpod.apply(&netns, &plain()).unwrap(), Applied::AlreadyRight);
        inpod.remove(&netns).unwrap();
        assert_eq!(inpod.apply(&netns, &plain()).unwrap(), Applied::Written);
        assert_eq!(ipv6(&netns), before);
        inpod.remove(&netns).unwrap();
        // Switched on: a pod must not be half protected.
        let other = pod();
        let before = everything(&other);
        let error = inpod.apply(&other, &plain()).unwrap_err().to_string();
        assert!(error.contains(&format!("ip6tables-{variant}-restore is not installed")), "{error}");
        assert!(error.contains("--ambient-ipv6"), "{error}");
        assert_eq!(everything(&other), before);
    }
}

#[test]
fn a_failure_half_way_leaves_nothing_and_a_repeat_works() {
    for variant in VARIANTS {
        let programs = tempfile::tempdir().unwrap();
        counted_programs(programs.path());
        let inpod = with_programs(variant, programs.path());
        let settings = plain();
        // Known to the programmer from another pod, so that only the pod's own part fails.
        inpod.apply(&pod(), &settings).unwrap();

        let program = programs.path().join(format!("ip6tables-{variant}-restore"));
        let aside = programs.path().join("aside");
        let netns = pod();
        foreign(&netns, variant);
        let before = everything(&netns);
        std::fs::rename(&program, &aside).unwrap();
        let error = inpod.apply(&netns, &settings).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound, "{error}");
        assert!(error.to_string().contains(program.to_str().unwrap()), "{error}");
        assert_eq!(everything(&netns), before, "{variant}");

        // A program that fails: its complaint is kept.
        std::fs::write(&program, "#!/bin/sh\necho no memory left >&2\nexit 4\n").unwrap();
        std::fs::set_permissions(&program, std::fs::metadata(&aside).unwrap().permissions()).unwrap();
        let error = inpod.apply(&netns, &settings).unwrap_err();
        assert_eq!(error.kind(), Kind::ProgramFailed, "{error}");
        assert!(error.to_string().contains("no memory left"), "{error}");
        assert_eq!(everything(&netns), before, "{variant}");

        // A program that does nothing and says that all is well.
        std::fs::write(&program, "#!/bin/sh\ncat >/dev/null\n").unwrap();
        let error = inpod.apply(&netns, &settings).unwrap_err().to_string();
        assert!(error.contains("IPv6: chain ISTIO_OUTPUT of table nat is missing"), "{error}");
        assert_eq!(everything(&netns), before, "{variant}");

        std::fs::rename(&aside, &program).unwrap();
        assert_eq!(inpod.apply(&netns, &settings).unwrap(), Applied::Written);
    }
}

#[test]
fn a_failure_keeps_the_rules_a_pod_already_had() {
    for variant in VARIANTS {
        let programs = tempfile::tempdir().unwrap();
        counted_programs(programs.path());
        let inpod = with_programs(variant, programs.path());
        let netns = pod();
        inpod.apply(&netns, &plain()).unwrap();
        let other = Settings { ingress_mode: true, ..plain() };
        inpod.apply(&pod(), &other).unwrap();
        let before = everything(&netns);
        for ip in ["iptables", "ip6tables"] {
            std::fs::remove_file(programs.path().join(format!("{ip}-{variant}-restore"))).unwrap();
        }
        inpod.apply(&netns, &other).unwrap_err();
        assert_eq!(everything(&netns), before, "{variant}");
    }
}

#[test]
fn the_hosts_namespace_is_refused_before_anything() {
    for variant in VARIANTS {
        let host = pod();
        foreign(&host, variant);
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            force_variant: Some(variant),
            lock_dir: dir.path().join("locks"),
            program_dir: None,
            ..Default::default()
        };
        let before = (everything(&host), sh(&host, "iptables-nft-save; ip6tables-nft-save; nft list tables"));
        let inpod = InPod::detect(options, &host).unwrap();
        let again = host.try_clone().unwrap();
        for error in [
            inpod.apply(&again, &plain()).unwrap_err(),
            inpod.check(&again, &plain()).unwrap_err(),
            inpod.remove(&again).unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::HostNetns, "{error}");
        }
        let without_dates = |text: String| text.lines().filter(|l| !l.starts_with('#')).collect::<Vec<_>>().join("\n");
        let after = (everything(&host), sh(&host, "iptables-nft-save; ip6tables-nft-save; nft list tables"));
        assert_eq!((after.0, without_dates(after.1)), (before.0, without_dates(before.1)));
    }
}

#[test]
fn many_pods_at_once() {
    let (inpod, _dir) = programmer(Variant::Nft);
    let pods: Vec<_> = (0..12).map(|_| pod()).collect();
    std::thread::scope(|scope| {
        for pod in &pods {
            scope.spawn(|| assert_eq!(inpod.apply(pod, &plain()).unwrap(), Applied::Written));
        }
    });
    for pod in &pods {
        assert_eq!(inpod.check(pod, &plain()).unwrap(), Vec::<String>::new());
    }
}

#[test]
fn legacy_locks_are_per_namespace_and_not_the_hosts() {
    let (inpod, dir) = programmer(Variant::Legacy);
    let netns = pod();
    // Somebody holds the lock that iptables takes by default.
    let host_lock = std::fs::File::options().create(true).append(true).open("/run/xtables.lock").unwrap();
    let _ = host_lock.try_lock();
    assert_eq!(inpod.apply(&netns, &plain()).unwrap(), Applied::Written);
    for family in ["ipv4", "ipv6"] {
        assert!(dir.path().join("locks").join(format!("{}.{family}", netns.id().ino)).is_file());
    }
}
