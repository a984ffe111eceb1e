//! What a pod's owner may write as long as the API lets it: nobody else waits for it, and it is not kept.

use super::*;
use ferrule::sys::clock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How many pods have what is too much.
const PODS: u32 = 60;

const IP: &str = "10.45.1.2";

/// 42,000 names, 246 kB: what the API server takes of all annotations together.
fn names() -> String {
    let names: Vec<String> = (0..42_000).map(|n| format!("v{n}")).collect();
    names.join(",")
}

fn annotated(key: &str, value: &str) -> Value {
    json!({ "metadata": { "annotations": { key: value } } })
}

/// The longest of some ADDs of pods that are not in the mesh.
fn slowest_add(world: &World) -> Duration {
    let add = |n: u32| {
        let (name, ip) = (format!("plain-{n}"), format!("10.45.2.{n}"));
        let netns = world.make_pod("plain", &name, &ip);
        let began = Instant::now();
        world.add("plain", &name, &netns, &ip);
        let took = began.elapsed();
        world.server.delete(Kind::Pods, "plain", &name);
        took
    };
    (0..10).map(add).max().unwrap()
}

#[test]
fn the_longest_annotations_hold_up_nobody() {
    let (world, _netns) = World::enrolled(&[], IP);
    let usual = slowest_add(&world);
    let changes = [
        ("istio.io/reroute-virtual-interfaces", names()),
        ("traffic.sidecar.istio.io/excludeInterfaces", names()),
        ("traffic.sidecar.istio.io/includeOutboundIPRanges", "10.0.0.0/8,".repeat(22_000)),
    ];
    for n in 0..PODS {
        world.server.put_pod("mesh", &format!("other-{n}"), NODE, json!({}), &[&format!("10.45.3.{n}")]);
    }
    for (key, value) in &changes {
        for n in 0..PODS {
            world.server.merge(Kind::Pods, "mesh", &format!("other-{n}"), &annotated(key, value));
        }
        // What is written is also read; what comes after it is measured.
        let mark = world.make_pod("plain", &format!("mark-{}", value.len()), "10.45.1.9");
        eventually("read", || world.pod(&format!("mark-{}", value.len())).is_some());
        drop(mark);
        // Changed each second meanwhile; before there were bounds, an ADD took half a minute.
        let stop = AtomicBool::new(false);
        let took = std::thread::scope(|scope| {
            let change = || {
                for n in 0..10 {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    world.server.merge(Kind::Pods, "mesh", "web", &annotated(key, &format!("{value},w{n}")));
                    clock::sleep(Duration::from_secs(1));
                }
            };
            scope.spawn(change);
            let took = slowest_add(&world);
            stop.store(true, Ordering::Relaxed);
            took
        });
        assert!(took < usual * 2 + Duration::from_secs(4), "{took:?} instead of {usual:?} with {key}");
    }
    eventually("enrolled", || world.state("web") == "enrolled");
    let log = world.log();
    let longest = log.lines().map(str::len).max().unwrap_or(0);
    assert!(longest < 2000, "a line of {longest} bytes");
}

/// A pod with more annotations of ours than mean anything is told as one that cannot be read, and costs only itself.
#[test]
fn any_number_of_annotations_costs_only_their_pod() {
    let world = World::new();
    let netns = world.make_pod("mesh", "web", IP);
    let many: serde_json::Map<String, Value> =
        (0..9_000).map(|n| (format!("ambient.istio.io/{n}"), json!(""))).collect();
    world.server.merge(Kind::Pods, "mesh", "web", &json!({ "metadata": { "annotations": many } }));
    let other = world.make_pod("mesh", "other", "10.45.1.3");
    world.add("mesh", "other", &other, "10.45.1.3");
    world.assert_enrolled("mesh", "other", &other);
    let (_, message) = world.add_fails("mesh", "web", &netns, IP);
    assert!(message.contains("more than 64 annotations"), "{message}");
}
