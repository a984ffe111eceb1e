//! The end of a pod: whatever tells of it, its rules stay, so that what is left of it does not talk past the mesh.

use super::*;

const IP: &str = "10.47.1.2";

impl World {
    /// ztunnel and the probe set have let go of the pod of this uid, and its rules are where they were.
    #[track_caller]
    fn assert_ended(&self, uid: &str, netns: &PodNetns) {
        eventually("ztunnel has let go", || self.ztunnel().stats().pods.get(uid).is_none_or(|pod| pod.netns == 0));
        eventually("its addresses have left", || !self.probe_set().values().any(|owner| owner == uid));
        eventually("it is recorded no more", || !self.node.run().join(format!("netns/{uid}.json")).exists());
        assert!(is_right(netns), "{}", rules(netns));
    }

    fn enrolled_pod(&self, name: &str, ip: &str) -> PodNetns {
        let netns = self.make_pod("mesh", name, ip);
        self.add("mesh", name, &netns, ip);
        self.assert_enrolled("mesh", name, &netns);
        netns
    }
}

#[test]
fn a_pod_that_is_deleted_by_force_keeps_its_rules() {
    let world = World::new();
    let netns = world.enrolled_pod("web", IP);
    let uid = world.uid("mesh", "web");
    world.server.delete(Kind::Pods, "mesh", "web");
    world.assert_ended(&uid, &netns);
}

#[test]
fn a_pod_that_has_finished_keeps_its_rules() {
    let world = World::new();
    for (phase, name, ip) in [("Succeeded", "job", IP), ("Failed", "worker", "10.47.1.3")] {
        let netns = world.enrolled_pod(name, ip);
        let uid = world.uid("mesh", name);
        world.server.merge(Kind::Pods, "mesh", name, &json!({ "status": { "phase": phase } }));
        eventually("not published any more", || world.annotation("mesh", name).is_none());
        eventually("ztunnel has let go", || world.ztunnel().stats().pods[&uid].netns == 0);
        eventually("its addresses have left", || world.probe_set().is_empty());
        assert!(is_right(&netns), "{phase}: {}", rules(&netns));
    }
}

#[test]
fn a_pod_that_ended_while_no_agent_ran_keeps_its_rules() {
    let mut world = World::new();
    let (gone, finished) = (world.enrolled_pod("gone", IP), world.enrolled_pod("finished", "10.47.1.3"));
    let uids = [world.uid("mesh", "gone"), world.uid("mesh", "finished")];
    world.kill_agent();
    world.server.delete(Kind::Pods, "mesh", "gone");
    world.server.merge(Kind::Pods, "mesh", "finished", &json!({ "status": { "phase": "Succeeded" } }));
    world.start_agent();
    eventually("ztunnel is back", || world.ztunnel().stats().ready);
    eventually("not published any more", || world.annotation("mesh", "finished").is_none());
    world.assert_ended(&uids[0], &gone);
    eventually("ztunnel has let go", || world.ztunnel().stats().pods.get(&uids[1]).is_none_or(|pod| pod.netns == 0));
    assert!(is_right(&finished), "{}", rules(&finished));
}

#[test]
fn a_list_that_has_lost_most_pods_is_confirmed_first() {
    let world = World::new();
    let (web, other) = (world.enrolled_pod("web", IP), world.enrolled_pod("other", "10.47.1.3"));
    let told = world.ztunnel().stats().events.len();
    let again = || {
        // What the watch could have told has been compacted away.
        world.server.compact();
        world.server.cut();
    };
    world.server.misbehave("list pods", 1, crate::apiserver::Fault::EmptyList);
    again();
    eventually("doubted", || world.log().contains("2 of 2 objects are missing at once"));
    world.server.merge(Kind::Pods, "mesh", "web", &json!({ "metadata": { "labels": { "x": "1" } } }));
    let third = world.make_pod("mesh", "third", "10.47.1.4");
    world.add("mesh", "third", &third, "10.47.1.4");
    for (name, netns) in [("web", &web), ("other", &other), ("third", &third)] {
        world.assert_enrolled("mesh", name, netns);
    }
    let events = world.ztunnel().stats().events;
    let dels = events[told..].iter().filter(|event| matches!(event, standin::Event::Del { .. })).count();
    assert_eq!(dels, 0, "{events:?}");
    // When they have gone, the second list says so too.
    let uid = world.uid("mesh", "web");
    world.server.misbehave("watch pods", None, crate::apiserver::Fault::Answer(410, None));
    for name in ["web", "other", "third"] {
        world.server.delete(Kind::Pods, "mesh", name);
    }
    again();
    world.assert_ended(&uid, &web);
}

#[test]
fn a_del_does_nothing_in_the_pod() {
    let mut world = World::new();
    let (web, other) = (world.enrolled_pod("web", IP), world.enrolled_pod("other", "10.47.1.3"));
    // A late one of another pod, whose path leads here by now, with a sandbox that nobody knows.
    let late = world.make_pod("mesh", "late", "10.47.1.4");
    nix::mount::umount(late.path()).unwrap();
    let bind = nix::mount::MsFlags::MS_BIND;
    nix::mount::mount(Some(other.path()), late.path(), None::<&str>, bind, None::<&str>).unwrap();
    world.plugin("DEL", "mesh", "late", &late, "10.47.1.4").succeeded();
    world.assert_enrolled("mesh", "other", &other);
    // Its own ends the enrolment, and leaves the rules to the namespace.
    world.plugin("DEL", "mesh", "web", &web, IP).succeeded();
    world.assert_ended(&world.uid("mesh", "web"), &web);
    world.assert_enrolled("mesh", "other", &other);
    // Nor where the agent does not know whose the namespace is.
    world.kill_agent();
    std::fs::remove_dir_all(world.node.run().join("netns")).unwrap();
    world.start_agent();
    eventually("lost", || world.state("other") == "lost");
    world.plugin("DEL", "mesh", "late", &late, "10.47.1.4").succeeded();
    assert!(is_right(&other), "{}", rules(&other));
}
