//! What the rules step costs, against the two restore programs it cannot do without.

use super::pod::{VARIANTS, plain, pod, programmer};
use ferrule::dataplane::inpod::Applied;
use ferrule::rules::inpod::{Settings, rules};
use ferrule::rules::render::restore;
use ferrule::sys::exec::{self, Command};
use ferrule::sys::netlink::Family;
use std::time::{Duration, Instant};

/// Prints medians of pairs. Meaningful only in a release build on a quiet machine:
/// `cargo test --release --test tests rules::cost -- --ignored --nocapture --test-threads 1`.
#[test]
#[ignore = "a measurement"]
#[expect(clippy::print_stdout, reason = "it prints what it measured")]
fn rules_step_against_two_bare_restores() {
    const PAIRS: usize = 200;
    for variant in VARIANTS {
        let (inpod, dir) = programmer(variant);
        for dns_capture in [false, true] {
            let settings = Settings { dns_capture, ..plain() };
            inpod.apply(&pod(), &settings).unwrap();
            let restores: Vec<_> = [(Family::V4, "iptables"), (Family::V6, "ip6tables")]
                .into_iter()
                .map(|(family, ip)| Command {
                    program: format!("/usr/sbin/{ip}-{variant}-restore").into(),
                    args: vec!["--noflush".into()],
                    // One each: with one for both, the second would give up.
                    env: vec![("XTABLES_LOCKFILE".into(), dir.path().join(ip).into())],
                    stdin: restore(&rules(&settings, family)).into_bytes(),
                    deadline: Duration::from_secs(10),
                    ..Command::default()
                })
                .collect();
            let mut bare = Vec::new();
            let mut ours = Vec::new();
            let mut checks = Vec::new();
            for _ in 0..PAIRS {
                let netns = pod();
                bare.push(time(|| {
                    let results = netns.enter(|| exec::run_all(&restores)).unwrap();
                    assert!(results.iter().all(Result::is_ok));
                }));
                let netns = pod();
                ours.push(time(|| assert_eq!(inpod.apply(&netns, &settings).unwrap(), Applied::Written)));
                checks.push(time(|| assert!(inpod.check(&netns, &settings).unwrap().is_empty())));
            }
            let (bare, ours, check) = (median(bare), median(ours), median(checks));
            let ratio = ours.as_secs_f64() / bare.as_secs_f64();
            println!("{variant} dns={dns_capture}: bare {bare:?}, apply {ours:?}, ratio {ratio:.2}, check {check:?}");
        }
    }
}

fn time(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
