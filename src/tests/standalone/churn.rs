//! Many pods at once, and kills at any moment.

use super::*;
use crate::support::{churn, random};
use std::io::Write;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

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
            world.assert_ended(&name(n), netns);
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

/// A pod as its container runtime sees it.
struct Sandbox {
    number: usize,
    /// Its files say that it should be in the mesh.
    wanted: bool,
    /// Made anew for every ADD, and gone after the DEL, as runtimes do it.
    up: Option<(String, PodNetns)>,
    sandboxes: usize,
}

impl Sandbox {
    /// One random thing that can happen to a pod.
    fn live(&mut self, world: &World, random: u64, plugins_killed: &AtomicUsize) {
        match (random % 4, &self.up) {
            (0, _) => {
                self.wanted = !self.wanted;
                let metadata = if self.wanted { json!({}) } else { json!({"labels": {}}) };
                let name = name(self.number);
                world.node.write_pod(&format!("{name}.json"), &pod_json(&name, &ip(self.number), metadata));
            }
            (1, Some(_)) => self.down(world),
            (_, None) => {
                let kill_after = (random >> 2).is_multiple_of(3).then(|| Duration::from_micros(random % 20_000));
                if !self.start(world, kill_after) && kill_after.is_some() {
                    plugins_killed.fetch_add(1, Ordering::Relaxed);
                }
            }
            _ => {}
        }
    }

    /// ADD; a plugin that is killed or fails is followed by DEL. Says whether it ended well.
    fn start(&mut self, world: &World, kill_after: Option<Duration>) -> bool {
        let (name, ip) = (name(self.number), ip(self.number));
        self.sandboxes += 1;
        let container = format!("{name}-{}", self.sandboxes);
        let netns = netns(&ip);
        let worked = match kill_after {
            None => world.plugin("ADD", &name, &container, netns.path(), &ip).code == Some(0),
            Some(time) => {
                let (mut run, conf) = world.call("ADD", &name, &container, netns.path(), &ip);
                let mut child = run.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
                child.stdin.take().unwrap().write_all(&conf).unwrap();
                std::thread::sleep(time);
                child.kill().unwrap();
                child.wait().unwrap().success()
            }
        };
        self.up = Some((container, netns));
        if !worked {
            self.down(world);
        }
        worked
    }

    fn down(&mut self, world: &World) {
        let Some((container, netns)) = self.up.take() else { return };
        world.del(&name(self.number), &container, &netns);
    }
}

#[test]
fn kills_at_any_moment_during_churn() {
    let (kills, count) = churn((10, 16));
    let plugins_killed = AtomicUsize::new(0);
    let mut world = World::new();
    let mut next = random(0x2545_F491_4F6C_DD18);
    let mut pods: Vec<Sandbox> =
        (0..count).map(|number| Sandbox { number, wanted: false, up: None, sandboxes: 0 }).collect();
    for pod in &mut pods {
        pod.live(&world, 0, &plugins_killed);
    }
    for _ in 0..kills {
        let moment = Duration::from_micros(next() % 60_000);
        let agent = world.agent.take().unwrap();
        let mut next_agent = None;
        std::thread::scope(|scope| {
            for pod in &mut pods {
                let (world, random, plugins_killed) = (&world, next(), &plugins_killed);
                scope.spawn(move || pod.live(world, random, plugins_killed));
            }
            std::thread::sleep(moment);
            agent.kill();
            // The plugins wait for the next one.
            next_agent = Some(world.node.start_agent(&["--ambient-enablement-selector", SELECTOR]));
        });
        world.agent = next_agent;
        world.wait_for_agent();
    }
    eventually("ztunnel is back", || world.ztunnel().stats().ready);
    let up: Vec<&String> = pods.iter().filter_map(|pod| pod.up.as_ref()).map(|(container, _)| container).collect();
    let valid = json!({"ContainerIDs": up}).to_string();
    let mut enrolled = 0;
    for pod in &pods {
        let name = name(pod.number);
        match &pod.up {
            Some((_, netns)) if pod.wanted => {
                world.assert_enrolled(&name, netns);
                enrolled += 1;
            }
            Some((_, netns)) => {
                eventually("clean", || !has_rules(netns));
                world.assert_nothing_left(&name, netns);
            }
            // Its DEL may have come while there was no agent: then it is looked for, and said to be lost. Or it was
            // found before the runtime let go of it: that is what GC is for.
            None => eventually("not enrolled", || {
                http::request(&world.node.events(), "POST", "/gc", &valid).unwrap();
                ["waiting", "lost", "none"].contains(&world.state(&name).as_str())
            }),
        }
    }
    assert!(enrolled > 0, "nothing to see");
    let plugins_killed = plugins_killed.into_inner();
    assert!(plugins_killed >= kills / 2, "only {plugins_killed} plugins were killed");
    // Its own, and one for each enrolled pod.
    eventually("no namespace is held for nothing", || world.agent().namespaces().len() == enrolled + 1);
    let inodes: Vec<u64> =
        pods.iter().filter_map(|pod| pod.up.as_ref()).map(|(_, netns)| netns.netns().id().ino).collect();
    eventually("no program is left behind", || !strays(&inodes));
}

/// Whether a program still runs in one of these namespaces.
fn strays(inodes: &[u64]) -> bool {
    let links: Vec<String> = inodes.iter().map(|inode| format!("net:[{inode}]")).collect();
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok());
    processes
        .filter_map(|process| std::fs::read_link(process.path().join("ns/net")).ok())
        .any(|link| links.iter().any(|own| link.as_os_str() == own.as_str()))
}
