//! Finding a running pod's network namespace: proc trees made here, with real namespaces behind them.

use ferrule::dataplane::procfs::refusal::Refusal;
use ferrule::dataplane::procfs::root::CgroupRoots;
use ferrule::dataplane::procfs::{Findings, Processes, Wanted};
use ferrule::error::Result;
use ferrule::sys::file::HostRoot;
use ferrule::sys::netlink;
use ferrule::sys::netns::{Netns, NetnsId};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const UID: &str = "2c48913c-b29f-11e7-9350-020968147796";
const OTHER: &str = "72f7f152-440c-66ac-9084-e0fc1d8a910c";
const HASH: &str = "2d3c7b0f5a5f4c3e9d1b8a7f6e5d4c3b";
const CONTAINER: &str = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961";

/// A namespace with an address.
fn pod_netns(address: &str) -> Netns {
    let netns = Netns::scratch().unwrap();
    let address: IpAddr = address.parse().unwrap();
    let add = move || netlink::add_address("lo", address, if address.is_ipv4() { 32 } else { 128 });
    netns.enter(add).unwrap().unwrap();
    netns
}

/// A host root whose `/proc` holds what is put there.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        for other in ["self", "sys", "1abc"] {
            std::fs::create_dir(dir.path().join("proc").join(other)).unwrap();
        }
        Tree(dir)
    }

    fn process(&self, pid: u32, start: u64, pod: &str, netns: &Netns) {
        self.linked(pid, start, pod, Path::new(&format!("/proc/self/fd/{}", netns.as_fd().as_raw_fd())));
    }

    fn file(&self, pid: u32, name: &str) -> PathBuf {
        self.0.path().join(format!("proc/{pid}/{name}"))
    }

    fn linked(&self, pid: u32, start: u64, pod: &str, netns: &Path) {
        let dir = self.0.path().join(format!("proc/{pid}"));
        std::fs::create_dir_all(dir.join("ns")).unwrap();
        symlink(netns, dir.join("ns/net")).unwrap();
        std::fs::write(dir.join("cgroup"), format!("0::/kubepods/burstable/pod{pod}/{CONTAINER}\n")).unwrap();
        let zeros = "0 ".repeat(18);
        std::fs::write(dir.join("stat"), format!("{pid} (a) b) S {zeros}{start} 0 0\n")).unwrap();
    }

    fn find(&self, wanted: &[Wanted], claimed: &[NetnsId]) -> Vec<(String, NetnsId)> {
        let found = self.search(wanted, claimed).found;
        found.into_iter().map(|(uid, netns)| (uid, netns.id())).collect()
    }

    fn search(&self, wanted: &[Wanted], claimed: &[NetnsId]) -> Findings {
        search(self.0.path(), wanted, claimed).unwrap()
    }
}

fn search(root: &Path, wanted: &[Wanted], claimed: &[NetnsId]) -> Result<Findings> {
    let (root, cgroup_roots) = (HostRoot::new(root), CgroupRoots::default());
    let processes = Processes { root: &root, cgroup_roots: &cgroup_roots, host: Netns::own().unwrap().id() };
    processes.find(wanted, &claimed.iter().copied().collect())
}

fn wanted(uid: &str, ips: &[&str]) -> Wanted {
    Wanted {
        uid: uid.to_owned(),
        alias: None,
        own_users: false,
        ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
    }
}

#[test]
fn the_oldest_process_whose_namespace_has_the_address() {
    let tree = Tree::new();
    let (right, newer, visited) = (pod_netns("10.9.0.7"), pod_netns("10.9.0.7"), pod_netns("10.9.0.8"));
    let host = Netns::own().unwrap();
    tree.process(10, 500, UID, &newer);
    tree.process(11, 400, UID, &right);
    tree.process(9, 450, UID, &right);
    // Older still, but visiting: the host, another pod.
    tree.process(12, 100, UID, &host);
    tree.process(13, 200, UID, &visited);
    assert_eq!(tree.find(&[wanted(UID, &["10.9.0.7"])], &[]), [(UID.to_owned(), right.id())]);
    // IPv4-mapped counts as IPv4; any of the addresses will do.
    assert_eq!(tree.find(&[wanted(UID, &["fd00::1", "::ffff:10.9.0.7"])], &[]), [(UID.to_owned(), right.id())]);
    // What belongs to another enrolment is not looked at.
    assert_eq!(tree.find(&[wanted(UID, &["10.9.0.7"])], &[right.id()]), [(UID.to_owned(), newer.id())]);
    // No address, or none that is there: no answer.
    assert_eq!(tree.find(&[wanted(UID, &[])], &[]), []);
    assert_eq!(tree.find(&[wanted(UID, &["10.9.0.9"])], &[]), []);
    // Never the host's, even with its own address.
    assert_eq!(tree.find(&[wanted(UID, &["127.0.0.1"])], &[]), []);
}

#[test]
fn age_counts_and_not_the_process_number() {
    let (old, new) = (pod_netns("10.9.0.7"), pod_netns("10.9.0.7"));
    for (old_pid, new_pid) in [(10, 2000), (2000, 10)] {
        let tree = Tree::new();
        tree.process(old_pid, 90, UID, &old);
        tree.process(new_pid, 100, UID, &new);
        assert_eq!(tree.find(&[wanted(UID, &["10.9.0.7"])], &[]), [(UID.to_owned(), old.id())], "{old_pid}");
    }
}

#[test]
fn several_pods_in_one_walk() {
    let tree = Tree::new();
    let (a, b, fixed) = (pod_netns("10.9.0.7"), pod_netns("fd00::8"), pod_netns("10.9.0.9"));
    tree.process(10, 1, UID, &a);
    tree.process(11, 2, &OTHER.replace('-', "_"), &b);
    tree.process(12, 3, HASH, &fixed);
    // A process without pod, one that ends during the walk, one that cannot be read.
    tree.process(13, 4, "x", &a);
    tree.linked(14, 5, UID, Path::new("/proc/0/ns/net"));
    std::fs::create_dir(tree.0.path().join("proc/15")).unwrap();
    let static_uid = "0b9ee37d-3f2c-4d1c-8c4e-0d6d3c3a1f10";
    let got = tree.find(
        &[
            wanted(UID, &["10.9.0.7"]),
            wanted(OTHER, &["fd00::8"]),
            Wanted { alias: Some(HASH.to_owned()), ..wanted(static_uid, &["10.9.0.9"]) },
            wanted("11111111-b29f-11e7-9350-020968147796", &["10.9.0.7"]),
            wanted("not-a-uuid", &["10.9.0.7"]),
        ],
        &[],
    );
    assert_eq!(got, [(static_uid.to_owned(), fixed.id()), (UID.to_owned(), a.id()), (OTHER.to_owned(), b.id())]);
}

#[test]
fn one_namespace_is_never_given_to_two_pods() {
    let tree = Tree::new();
    let shared = pod_netns("10.9.0.7");
    tree.process(10, 1, UID, &shared);
    tree.process(11, 2, OTHER, &shared);
    let got = tree.find(&[wanted(UID, &["10.9.0.7"]), wanted(OTHER, &["10.9.0.7"])], &[]);
    assert_eq!(got, [(UID.to_owned(), shared.id())]);
}

#[test]
fn a_real_process_tree() {
    // Our own processes are in no pod: the walk ends without an answer and without an error.
    let findings = search(Path::new("/"), &[wanted(UID, &["127.0.0.1"])], &[]).unwrap();
    assert!(findings.found.is_empty() && findings.refused.is_empty(), "{findings:?}");
}

#[test]
fn no_proc_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let error = search(dir.path(), &[], &[]).unwrap_err();
    assert!(error.to_string().contains(&format!("{}/proc", dir.path().display())), "{error}");
}

#[test]
fn five_thousand_processes_cost_a_fraction_of_a_second() {
    let tree = Tree::new();
    let netns = pod_netns("10.9.0.7");
    let host = Netns::own().unwrap();
    tree.process(2, 5000, UID, &netns);
    tree.process(3, 1, OTHER, &host);
    let proc = tree.0.path().join("proc");
    for pid in 4..=5001 {
        let (dir, like) = (proc.join(pid.to_string()), proc.join(if pid % 5 == 0 { "2" } else { "3" }));
        std::fs::create_dir(&dir).unwrap();
        symlink(like.join("ns"), dir.join("ns")).unwrap();
        for file in ["cgroup", "stat"] {
            std::fs::hard_link(like.join(file), dir.join(file)).unwrap();
        }
    }
    // The best of three: the machine may be busy with other things.
    let took = (0..3).map(|_| {
        let begin = Instant::now();
        assert_eq!(tree.find(&[wanted(UID, &["10.9.0.7"])], &[]), [(UID.to_owned(), netns.id())]);
        begin.elapsed()
    });
    let best = took.min().unwrap();
    assert!(best < Duration::from_millis(500), "{best:?}");
}

/// What is refused is told, with an example of each kind.
#[test]
fn what_is_refused_is_told() {
    let tree = Tree::new();
    let (right, visited) = (pod_netns("10.9.0.7"), pod_netns("10.9.0.8"));
    let delegated = format!("/user.slice/user-1000.slice/user@1000.service/pod{UID}");
    for pid in 10..20 {
        tree.process(pid, 1, UID, &right);
        std::fs::write(tree.file(pid, "cgroup"), format!("0::{delegated}/{pid}\n")).unwrap();
    }
    tree.process(20, 2, OTHER, &right);
    std::fs::write(tree.file(20, "cgroup"), format!("0::/kubepods/pod{OTHER}/{CONTAINER}/pod{UID}\n")).unwrap();
    tree.process(21, 3, UID, &visited);
    let findings = tree.search(&[wanted(UID, &["10.9.0.7"])], &[]);
    assert!(findings.found.is_empty());
    let refused: Vec<String> = findings.refused[UID].iter().map(ToString::to_string).collect();
    assert_eq!(refused.len(), 3, "{refused:?}");
    for part in [delegated.as_str(), "which is inside another pod's", "none of the pod's addresses"] {
        assert!(refused.iter().any(|why| why.contains(part)), "{part}: {refused:?}");
    }
    // The pod itself, younger than all of them, is found beside them.
    tree.process(22, 4, UID, &right);
    let findings = tree.search(&[wanted(UID, &["10.9.0.7"])], &[]);
    assert_eq!(findings.found[UID].id(), right.id());
    assert_eq!(findings.refused[UID].len(), 3);
}

/// Bounded, whatever a pod does.
#[test]
fn a_pod_with_hundreds_of_networks_is_looked_into_so_far() {
    let tree = Tree::new();
    let others: Vec<Netns> = (0..100).map(|_| Netns::scratch().unwrap()).collect();
    for (pid, netns) in (100..).zip(&others) {
        tree.process(pid, u64::from(pid), UID, netns);
    }
    let right = pod_netns("10.9.0.7");
    tree.process(10, 1000, UID, &right);
    let findings = tree.search(&[wanted(UID, &["10.9.0.7"])], &[]);
    assert!(findings.found.is_empty());
    assert_eq!(findings.refused[UID], [Refusal::Bare]);
    tree.process(11, 1, UID, &right);
    assert_eq!(tree.search(&[wanted(UID, &["10.9.0.7"])], &[]).found[UID].id(), right.id());
}
