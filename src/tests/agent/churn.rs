//! Many pods at once, and kills at any moment.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Kills of the agent in a normal run of the tests; the product was accepted with 200.
const KILLS: usize = 8;

/// KiB, from `/proc/PID/status`.
fn memory(world: &World) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", world.agent().pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Runs `each` for every number below `count`, on 16 threads.
fn parallel(count: usize, each: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while let Some(number) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|n| *n < count) {
                    each(number);
                }
            });
        }
    });
}

fn name(number: usize) -> String {
    format!("pod-{number}")
}

fn ip(number: usize) -> String {
    format!("10.45.{}.{}", number / 250, number % 250 + 1)
}

#[test]
fn a_hundred_pods_by_sixteen_plugins() {
    const PODS: usize = 100;
    let world = World::new();
    let netns: Vec<PodNetns> = (0..PODS).map(|n| world.make_pod(&name(n), &ip(n))).collect();
    let round = || {
        parallel(PODS, |n| world.add(&name(n), &format!("c{n}"), &netns[n], &ip(n)));
        eventually("all are published", || world.published().len() == PODS);
        for (n, netns) in netns.iter().enumerate() {
            assert!(is_right(netns), "{}", rules(netns));
            assert_eq!(world.ztunnel().stats().pods[&name(n)].netns, netns.netns().id().ino);
        }
        parallel(PODS, |n| world.del(&name(n), &format!("c{n}"), &netns[n]));
        eventually("none is left", || world.published().is_empty());
        for (n, netns) in netns.iter().enumerate() {
            world.assert_nothing_left(&name(n), netns);
        }
    };
    let files = socket::open_files(&world);
    round();
    eventually("descriptors as before", || socket::open_files(&world) <= files);
    let settled = memory(&world);
    round();
    eventually("descriptors as before", || socket::open_files(&world) <= files);
    let after = memory(&world);
    assert!(after < settled + 2048, "{settled} KiB, then {after} KiB");
}

#[test]
fn kills_at_any_moment_during_churn() {
    const PODS: usize = 16;
    let mut world = World::new();
    let netns: Vec<PodNetns> = (0..PODS).map(|n| world.make_pod(&name(n), &ip(n))).collect();
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for kill in 0..KILLS {
        let plan: Vec<u64> = (0..PODS).map(|_| next()).collect();
        let moment = Duration::from_micros(next() % 60_000);
        let agent = world.agent.take().unwrap();
        let mut next_agent = None;
        std::thread::scope(|scope| {
            for (n, plan) in plan.iter().enumerate() {
                let (world, netns) = (&world, &netns[n]);
                scope.spawn(move || match plan % 4 {
                    // Its outcome is whatever the kill leaves of it.
                    0 | 1 => drop(world.plugin("ADD", &name(n), &format!("c{kill}-{n}"), netns.path(), &ip(n))),
                    2 => world.node.write_pod(&format!("{}.json", name(n)), &pod_json(&name(n), &ip(n), json!({}))),
                    _ => {
                        let plain = pod_json(&name(n), &ip(n), json!({"labels": {}}));
                        world.node.write_pod(&format!("{}.json", name(n)), &plain);
                    }
                });
            }
            std::thread::sleep(moment);
            agent.kill();
            // The plugins wait for the next one.
            next_agent = Some(world.node.start_agent(&["--ambient-enablement-selector", SELECTOR]));
        });
        world.agent = next_agent;
        world.wait_for_agent();
    }
    // A runtime comes back to every pod that is wanted, and takes the others down.
    eventually("ztunnel is back", || world.ztunnel().stats().ready);
    let wanted: Vec<bool> = (0..PODS)
        .map(|n| {
            let file = world.node.pods().join(format!("{}.json", name(n)));
            std::fs::read_to_string(file).unwrap().contains("dataplane-mode")
        })
        .collect();
    for n in 0..PODS {
        if wanted[n] {
            world.add(&name(n), &format!("last-{n}"), &netns[n], &ip(n));
        }
    }
    for n in 0..PODS {
        if wanted[n] {
            world.assert_enrolled(&name(n), &netns[n]);
        } else {
            eventually("taken out", || !world.published().iter().any(|(uid, _)| *uid == name(n)));
            eventually("clean", || !has_rules(&netns[n]));
            world.assert_nothing_left(&name(n), &netns[n]);
        }
    }
}
