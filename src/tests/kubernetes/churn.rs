//! Pods of a cluster that come, go and change their minds while the agent is killed again and again.

use super::*;
use crate::support::{churn, random};
use std::collections::BTreeSet;
use std::time::Duration;

/// A pod, with whatever object and sandbox it has at the moment.
struct Life {
    number: u32,
    name: String,
    ip: String,
    /// Its label puts it into the mesh.
    wanted: bool,
    up: Option<PodNetns>,
}

fn label(wanted: bool) -> Value {
    json!({ "istio.io/dataplane-mode": if wanted { "ambient" } else { "none" } })
}

impl Life {
    fn new(world: &World, number: u32) -> Self {
        let (name, ip) = (format!("pod-{number}"), format!("10.54.{}.{}", number / 250, number % 250 + 1));
        let mut life = Life { number, name, ip, wanted: number.is_multiple_of(2), up: None };
        life.create(world);
        life
    }

    fn create(&mut self, world: &World) {
        world.server.put_pod("plain", &self.name, NODE, label(self.wanted), &[&self.ip]);
        self.start(world);
    }

    /// ADD until it works, each time with a new sandbox, as a kubelet does.
    fn start(&mut self, world: &World) {
        for _ in 0..5 {
            let sandbox = netns(&self.ip);
            if world.plugin("ADD", "plain", &self.name, &sandbox, &self.ip).code == Some(0) {
                put_process(&world.node.host_root, self.number + 10, &world.uid("plain", &self.name), &sandbox);
                self.up = Some(sandbox);
                return;
            }
            world.plugin("DEL", "plain", &self.name, &sandbox, &self.ip);
        }
        panic!("{} does not start", self.name);
    }

    fn stop(&mut self, world: &World) {
        if let Some(sandbox) = self.up.take() {
            let process = world.node.host_root.join(format!("proc/{}", self.number + 10));
            std::fs::remove_dir_all(process).unwrap();
            assert_eq!(world.plugin("DEL", "plain", &self.name, &sandbox, &self.ip).code, Some(0));
        }
    }

    /// One random thing that can happen to a pod.
    fn live(&mut self, world: &World, random: u64) {
        match random % 4 {
            0 => {
                self.wanted = !self.wanted;
                let patch = json!({"metadata": {"labels": label(self.wanted)}});
                world.server.merge(Kind::Pods, "plain", &self.name, &patch);
            }
            // Its sandbox is made anew.
            1 => {
                self.stop(world);
                self.start(world);
            }
            // Another pod takes its name.
            2 => {
                self.stop(world);
                world.server.delete(Kind::Pods, "plain", &self.name);
                self.wanted = random.is_multiple_of(8);
                self.create(world);
            }
            _ => {}
        }
    }
}

#[test]
fn whenever_the_agent_is_killed_the_pods_end_as_they_should_be() {
    let (kills, count) = churn((8, 12));
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("proc")).unwrap();
    let mut world = World::without_agent(&[]);
    world.node.host_root = root.path().to_owned();
    world.start_agent();
    world.start_ztunnel();
    let mut next = random(0x9E37_79B9_7F4A_7C15);
    let mut pods: Vec<Life> = (0..u32::try_from(count).unwrap()).map(|number| Life::new(&world, number)).collect();
    for _ in 0..kills {
        let moment = Duration::from_micros(next() % 80_000);
        let agent = world.agent.take().unwrap();
        let mut successor = None;
        std::thread::scope(|scope| {
            for pod in &mut pods {
                let (world, random) = (&world, next());
                scope.spawn(move || pod.live(world, random));
            }
            std::thread::sleep(moment);
            agent.kill();
            // The plugins wait for the next one.
            successor = Some(world.new_agent());
        });
        world.agent = successor;
        world.wait_for_agent();
    }
    eventually("ztunnel is back", || world.ztunnel().stats().ready);
    let (mut entered, mut held) = (BTreeMap::new(), BTreeSet::from([world.node.host.netns().id().ino]));
    for pod in &pods {
        let sandbox = pod.up.as_ref().unwrap();
        if pod.wanted {
            world.assert_enrolled("plain", &pod.name, sandbox);
            entered.insert(pod.ip.clone(), world.uid("plain", &pod.name));
            held.insert(sandbox.netns().id().ino);
        } else {
            world.assert_out("plain", &pod.name, sandbox);
        }
    }
    assert!(!entered.is_empty() && entered.len() < pods.len(), "{entered:?}");
    eventually("the probe set is exact", || world.probe_set() == entered);
    eventually("no namespace is held for nothing", || world.agent.as_ref().unwrap().namespaces() == held);
    let outside = std::fs::read_to_string(world.node.run().join("outside.json")).unwrap();
    let told = |pod: &Life| outside.contains(&world.uid("plain", &pod.name));
    assert!(pods.iter().all(|pod| told(pod) != pod.wanted), "{outside}");
    let served = world.ztunnel().stats().pods.into_iter().filter(|(_, pod)| pod.netns != 0).map(|(uid, _)| uid);
    assert_eq!(served.collect::<BTreeSet<_>>(), entered.values().cloned().collect());
}
