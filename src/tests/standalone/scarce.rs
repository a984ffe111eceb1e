//! A node that lacks something: programs, descriptors, space on the disk. The pod's event says what; once it is there,
//! all goes on without a restart.

use super::*;
use nix::mount::{MsFlags, mount, umount};
use std::path::PathBuf;
use std::time::Duration;

const IP: &str = "10.44.4.2";

/// A world whose agent sees mounts of its own.
fn with_own_mounts(ready: &str) -> World {
    let mut world = World { node: Node::new(), agent: None, ztunnel: None, flags: vec![] };
    let script = format!("mount --make-rprivate / && {ready} && exec \"$0\" \"$@\"");
    world.node.wrapper = ["unshare", "-m", "sh", "-c", script.as_str()].map(str::to_owned).to_vec();
    world.start_agent();
    world.start_ztunnel();
    world
}

/// Runs a command among the agent's mounts.
fn among_mounts(world: &World, command: &str) {
    let pid = world.agent().pid().to_string();
    let status = Command::new("nsenter").args(["-t", &pid, "-m", "sh", "-c", command]).status().unwrap();
    assert!(status.success(), "{command}");
}

const HIDE: &str = "mount -t tmpfs none /usr/sbin";

#[test]
fn without_iptables_the_add_says_so_and_works_once_it_is_there() {
    let world = with_own_mounts(HIDE);
    let netns = world.make_pod("web", IP);
    let (code, message) = world.add_fails("web", "c1", netns.path(), IP);
    assert_eq!(code, 101);
    assert!(
        message.starts_with("the traffic rules could not be put in place: ") && message.contains("iptables"),
        "{message}"
    );
    world.assert_nothing_left("web", &netns);
    among_mounts(&world, "umount /usr/sbin");
    world.add("web", "c2", &netns, IP);
    world.assert_enrolled("web", &netns);

    // It vanishes from a running agent, too.
    among_mounts(&world, HIDE);
    let other = world.make_pod("other", "10.44.4.3");
    let (code, message) = world.add_fails("other", "c3", other.path(), "10.44.4.3");
    assert_eq!((code, message.contains("iptables")), (101, true), "{message}");
    world.assert_nothing_left("other", &other);
    among_mounts(&world, "umount /usr/sbin");
    world.add("other", "c4", &other, "10.44.4.3");
    world.assert_enrolled("other", &other);
}

#[test]
fn without_descriptors_the_add_fails_and_works_later() {
    let world = World::new();
    let netns = world.make_pod("web", IP);
    let limit = |files: usize| {
        let pid = world.agent().pid().to_string();
        let status = Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={files}:4096")]).status().unwrap();
        assert!(status.success());
    };
    for spare in 1..6 {
        limit(socket::open_files(&world) + spare);
        let (status, text) = world.istio_add("web", netns.path(), &Value::Null);
        assert!(status == 200 || text.contains("Too many open files"), "{spare} to spare: {status} {text}");
        limit(4096);
        world.istio_add("web", netns.path(), &Value::Null);
        world.assert_enrolled("web", &netns);
        let body = json!({"PodName": "web", "PodNamespace": "default", "Netns": netns.path()});
        http::request(&world.node.events(), "POST", "/cmddel", &body.to_string()).unwrap();
        world.assert_ended("web", &netns);
    }
}

#[test]
fn with_a_full_disk_pods_start_and_nothing_is_lost() {
    let mut world = World { node: Node::new(), agent: None, ztunnel: None, flags: vec![] };
    let run = world.node.run();
    mount(Some("none"), &run, Some("tmpfs"), MsFlags::empty(), Some("size=256k")).unwrap();
    world.start_agent();
    world.start_ztunnel();
    let filler = run.join("filler");
    let _ = std::fs::write(&filler, vec![0; 1 << 20]);
    let netns = world.make_pod("web", IP);
    world.add("web", "c1", &netns, IP);
    assert_eq!(world.state("web"), "enrolled");
    assert!(is_right(&netns));
    let said = |text: &str| world.agent().log().matches(text).count();
    eventually("it is said", || said("No space left on device") >= 2);
    assert!(world.published().is_empty());
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(said("what is published about pods is not on disk"), 1, "and not said again");
    std::fs::remove_file(&filler).unwrap();
    world.assert_enrolled("web", &netns);
    world.add("web", "c1", &netns, IP);
    // Nor does a restart lose anything.
    world.kill_agent();
    world.start_agent();
    world.assert_enrolled("web", &netns);
    drop(world.agent.take());
    umount(&run).unwrap();
}

/// A control group that limits the number of threads; removed when dropped.
struct Threads {
    group: PathBuf,
    pid: u32,
}

impl Threads {
    fn of(pid: u32) -> Self {
        // The hierarchy of version 1, or the one of version 2.
        let v1 = Path::new("/sys/fs/cgroup/pids");
        let root = if v1.exists() { v1 } else { Path::new("/sys/fs/cgroup") };
        let group = root.join(format!("ferrule-test-{pid}"));
        std::fs::create_dir(&group).unwrap();
        std::fs::write(group.join("cgroup.procs"), pid.to_string()).unwrap();
        Threads { group, pid }
    }

    /// Room for this many more than there are.
    fn spare(&self, spare: usize) {
        let now: usize = std::fs::read_to_string(self.group.join("pids.current")).unwrap().trim().parse().unwrap();
        std::fs::write(self.group.join("pids.max"), (now + spare).to_string()).unwrap();
    }

    fn unlimited(&self) {
        std::fs::write(self.group.join("pids.max"), "max").unwrap();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let all = self.group.parent().unwrap().join("cgroup.procs");
        let _ = std::fs::write(all, self.pid.to_string());
        let _ = std::fs::remove_dir(&self.group);
    }
}

#[test]
fn without_threads_the_add_fails_and_works_later() {
    let world = World::new();
    let netns = world.make_pod("web", IP);
    world.add("web", "c0", &netns, IP);
    world.del("web", "c0", &netns);
    let threads = Threads::of(world.agent().pid());
    for spare in 0..4 {
        threads.spare(spare);
        let body = json!({"Netns": netns.path(), "PodName": "web", "PodNamespace": "default", "IPs": null}).to_string();
        match http::request(&world.node.events(), "POST", "/cmdadd", &body) {
            // There is no thread to serve the connection.
            Err(_) => eventually("said", || world.agent().log().contains("start thread")),
            Ok((status, text)) => {
                assert!(
                    status == 200 || text.contains("start thread") || text.contains("Try again"),
                    "{spare}: {status} {text}"
                );
            }
        }
        threads.unlimited();
        world.istio_add("web", netns.path(), &Value::Null);
        world.assert_enrolled("web", &netns);
        let body = json!({"PodName": "web", "PodNamespace": "default", "Netns": netns.path()});
        http::request(&world.node.events(), "POST", "/cmddel", &body.to_string()).unwrap();
        world.assert_ended("web", &netns);
    }
}
