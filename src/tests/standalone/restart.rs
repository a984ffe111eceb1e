//! Stops, kills and what the next start makes of them.

use super::*;
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

const PRIMARY: &str = r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"}]}"#;

fn ip(number: usize) -> String {
    format!("10.44.2.{number}")
}

#[test]
fn after_a_kill_the_next_start_converges() {
    let mut world = World::new();
    let names = ["same", "flushed", "left", "gone"];
    let netns: Vec<PodNetns> = names.iter().enumerate().map(|(n, name)| world.make_pod(name, &ip(n + 1))).collect();
    for (n, name) in names.iter().enumerate() {
        world.add(name, &format!("c{n}"), &netns[n], &ip(n + 1));
    }
    eventually("published", || world.published().len() == 4);
    world.kill_agent();
    for table in ["nat", "mangle"] {
        crate::support::netns::run_in(netns[1].netns(), "iptables-nft", &["-t", table, "-F"]);
    }
    world.node.write_pod("left.json", &pod_json("left", &ip(3), json!({"labels": {}})));
    std::fs::remove_file(world.node.pods().join("gone.json")).unwrap();
    world.start_agent();
    world.assert_enrolled("same", &netns[0]);
    world.assert_enrolled("flushed", &netns[1]);
    eventually("the others are over", || world.published().len() == 2);
    eventually("and clean", || !has_rules(&netns[2]));
    eventually("ztunnel serves two", || {
        world.ztunnel().stats().pods.values().filter(|pod| pod.netns != 0).count() == 2
    });
    world.assert_nothing_left("left", &netns[2]);
    world.assert_ended("gone", &netns[3]);
    world.del("same", "c0", &netns[0]);
    world.assert_ended("same", &netns[0]);
}

#[test]
fn a_start_that_cannot_read_a_file_takes_nobody_out() {
    let mut world = World::new();
    let netns = world.make_pod("web", &ip(1));
    world.add("web", "c1", &netns, &ip(1));
    world.assert_enrolled("web", &netns);
    world.kill_agent();
    // Cut by a crash; and then the whole directory is missing.
    let (pods, away) = (world.node.pods(), world.node.pods().with_file_name("away"));
    world.node.write_pod("web.json", "{");
    for (missing, why) in [(false, "web.json: not a JSON object"), (true, "pod directory: read the directory")] {
        if missing {
            std::fs::rename(&pods, &away).unwrap();
        }
        world.agent = Some(world.node.start_agent(&["--ambient-enablement-selector", SELECTOR]));
        let said = |status: Status| status.reasons.iter().any(|reason| reason.contains(why));
        eventually("it says why it is not ready", || world.status().is_some_and(said));
        // Nothing shows that it does nothing but time.
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(world.published(), [("web".to_owned(), "enabled".to_owned())]);
        assert!(is_right(&netns), "its rules stay");
        assert!(world.ztunnel().stats().pods.values().any(|pod| pod.netns != 0), "ztunnel serves it");
        if !missing {
            world.kill_agent();
        }
    }
    std::fs::rename(&away, &pods).unwrap();
    world.node.write_pod("web.json", &pod_json("web", &ip(1), json!({})));
    world.wait_for_agent();
    world.assert_enrolled("web", &netns);
}

#[test]
fn a_namespace_that_was_replaced_is_not_taken_for_the_pods() {
    let mut world = World::new();
    let old = world.make_pod("web", &ip(1));
    world.add("web", "c1", &old, &ip(1));
    eventually("published", || world.published().len() == 1);
    world.kill_agent();
    // At the same path there is now the namespace of somebody else.
    let other = netns(&ip(99));
    nix::mount::umount(old.path()).unwrap();
    let flags = nix::mount::MsFlags::MS_BIND;
    nix::mount::mount(Some(other.path()), old.path(), None::<&str>, flags, None::<&str>).unwrap();
    world.start_agent();
    eventually("lost", || world.state("web") == "lost");
    assert!(!has_rules(&other));
    assert_eq!(world.published(), [("web".to_owned(), "enabled".to_owned())]);
    // The runtime makes a new sandbox, and all is well.
    let new = netns(&ip(1));
    world.add("web", "c2", &new, &ip(1));
    world.assert_enrolled("web", &new);
}

#[test]
fn a_stop_leaves_everything_for_the_successor() {
    let mut world = World::new();
    let conf = world.node.net_dir().join("10-net.conflist");
    std::fs::write(&conf, PRIMARY).unwrap();
    world.agent().wait_ready();
    let netns = world.make_pod("web", &ip(1));
    world.add("web", "c1", &netns, &ip(1));
    eventually("published", || world.published().len() == 1);
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let began = Instant::now();
        let mut agent = world.agent.take().unwrap();
        agent.signal(signal);
        assert_eq!(agent.wait(), Some(0));
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert!(is_right(&netns));
        assert!(std::fs::read_to_string(&conf).unwrap().contains("istio-cni"));
        assert!(!world.node.events().exists() && !world.node.ztunnel().exists());
        world.start_agent();
        world.assert_enrolled("web", &netns);
    }
    world.flags = vec!["--ambient-disable-safe-upgrade"];
    world.agent.take().unwrap().terminate();
    world.start_agent();
    assert_eq!(world.agent.take().unwrap().terminate(), Some(0));
    assert_eq!(std::fs::read_to_string(&conf).unwrap(), PRIMARY, "the configuration is as it was");
    assert!(is_right(&netns), "pods keep their rules");
}

#[test]
fn a_stop_does_not_wait_for_what_hangs() {
    let world = World::new();
    let netns = world.make_pod("web", &ip(1));
    world.ztunnel().set_faults(vec![(crate::standin::On::Uid("web".into()), crate::standin::Fault::NoAck)]);
    std::thread::scope(|scope| {
        let add = scope.spawn(|| world.istio_add("web", netns.path(), &Value::Null));
        eventually("it waits for ztunnel", || world.state("web") == "pending");
        let began = Instant::now();
        world.agent().signal(Signal::SIGTERM);
        eventually("it ends", || !world.node.events().exists());
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert_ne!(add.join().unwrap().0, 200);
    });
}

#[test]
fn nothing_is_installed_once_a_stop_has_begun() {
    let world = World::new();
    let netns = world.make_pod("web", &ip(1));
    world.ztunnel().set_faults(vec![(crate::standin::On::Uid("web".into()), crate::standin::Fault::NoAck)]);
    let conf = world.node.net_dir().join("10-net.conflist");
    std::thread::scope(|scope| {
        scope.spawn(|| world.istio_add("web", netns.path(), &Value::Null));
        eventually("it waits for ztunnel", || world.state("web") == "pending");
        world.agent().signal(Signal::SIGTERM);
        eventually("the stop begins", || world.agent().log().contains("stopping: SIGTERM"));
        std::fs::write(&conf, PRIMARY).unwrap();
        eventually("it ends", || world.agent().log().contains("stopped"));
    });
    assert_eq!(std::fs::read_to_string(&conf).unwrap(), PRIMARY);
}

#[test]
fn what_an_uninstallation_took_out_of_pods_is_not_published_any_more() {
    let mut world = World::new();
    let (web, other) = (world.make_pod("web", &ip(1)), world.make_pod("other", &ip(2)));
    world.add("web", "c1", &web, &ip(1));
    world.add("other", "c2", &other, &ip(2));
    eventually("published", || world.published().len() == 2);
    world.kill_agent();
    let mut run = crate::support::program::ferrule(&["uninstall", "--pods", "--host-root", "/"]);
    run.arg("--cni-agent-run-dir").arg(world.node.run());
    run.arg("--mounted-cni-net-dir").arg(world.node.net_dir()).arg("--cni-bin-dir").arg(world.node.bin_dir());
    let ended = world.node.host.enter(|| finish(&mut run, b""));
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    assert!(!has_rules(&web) && !has_rules(&other));
    assert_eq!(world.published(), []);
    world.start_agent();
    eventually("the next one misses nothing", || world.state("web") == "waiting");
}

#[test]
fn a_second_agent_takes_over() {
    let mut world = World::new();
    let netns = world.make_pod("web", &ip(1));
    world.add("web", "c1", &netns, &ip(1));
    eventually("published", || world.published().len() == 1);
    let mut old = world.agent.take().unwrap();
    world.start_agent();
    assert_eq!(old.wait(), Some(0), "the old one leaves");
    world.assert_enrolled("web", &netns);
    let second = world.make_pod("second", &ip(2));
    world.add("second", "c2", &second, &ip(2));
    world.assert_enrolled("second", &second);
}

/// IPv6 that is turned off is not taken out of running pods: they would talk past the mesh.
#[test]
fn ipv6_rules_of_running_pods_stay_when_it_is_turned_off() {
    for reconcile in [&[][..], &["--ambient-reconcile-pod-rules-on-startup"]] {
        let mut world = World::without_ztunnel(&["--ambient-ipv6"]);
        world.start_ztunnel();
        let netns = world.make_pod("web", &ip(1));
        world.add("web", "c1", &netns, &ip(1));
        eventually("enrolled", || world.state("web") == "enrolled");
        let v6 = || {
            let script = "ip6tables-nft-save; ip -6 rule; ip -6 route show table 100";
            let text = crate::support::netns::run_in(netns.netns(), "sh", &["-c", script]);
            let meant = |line: &&str| line.starts_with("-A") || line.contains("fwmark") || line.contains("local");
            text.lines().filter(meant).map(str::to_owned).collect::<Vec<_>>()
        };
        let before = v6();
        assert!(before.len() > 6, "{before:?}");
        world.agent.take().unwrap().terminate();
        world.flags = [&["--verify-interval", "1s"], reconcile].concat();
        world.start_agent();
        let told = "pods in the mesh that have IPv6 rules keep them";
        eventually("told", || world.agent().log().contains(told));
        eventually("enrolled", || world.state("web") == "enrolled");
        assert_eq!(v6(), before);
        // One that leaves the mesh loses them.
        world.node.write_pod("web.json", &pod_json("web", &ip(1), json!({"labels": {}})));
        eventually("out", || world.state("web") == "none" && !has_rules(&netns));
        assert_eq!(v6().iter().filter(|line| line.contains("ISTIO") || line.contains("fwmark")).count(), 0);
    }
}
