//! Disks that are full, read-only or broken.

use super::{BRIDGE, Kept, Node, identity, ours};
use crate::support::eventually;
use crate::support::install_plugins;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::fs;
use std::path::{Path, PathBuf};

/// Something mounted over a directory, for as long as the value lives.
pub(super) struct Mounted(PathBuf);

impl Mounted {
    pub(super) fn tmpfs(path: &Path, options: &str) -> Self {
        mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), Some(options)).unwrap();
        Mounted(path.to_path_buf())
    }

    /// The directory itself, read-only.
    fn read_only(path: &Path) -> Self {
        let none = None::<&str>;
        mount(Some(path), path, none, MsFlags::MS_BIND, none).unwrap();
        let mounted = Mounted(path.to_path_buf());
        mount(none, path, none, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, none).unwrap();
        mounted
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_full_disk_leaves_the_configuration_whole() {
    // Too few bytes, and too few inodes.
    for (options, operation) in [("size=16k", "write "), ("nr_inodes=3", "create ")] {
        let node = Node::new();
        let _mounted = Mounted::tmpfs(&node.net(""), options);
        node.write("10-podnet.conflist", BRIDGE);
        let filler = node.net("filler");
        let _ = fs::write(&filler, vec![0; 64 << 10]);
        let mut kept = Kept::start(node.options());
        kept.not_ready("No space left on device");
        let problem = kept.problems().unwrap()[0].clone();
        assert!(problem.starts_with(operation) && problem.contains("10-podnet.conflist"), "{problem}");
        assert_eq!(node.read("10-podnet.conflist"), BRIDGE);
        assert_eq!(node.names(), ["10-podnet.conflist", "filler"]);
        fs::remove_file(&filler).unwrap();
        kept.ready();
        assert_eq!(ours(&node.read("10-podnet.conflist")), 1);
    }
}

#[test]
fn a_full_disk_leaves_the_executable_whole() {
    let node = Node::new();
    node.write("10-podnet.conflist", BRIDGE);
    fs::write(node.path("ferrule"), vec![7; 40 << 10]).unwrap();
    let _mounted = Mounted::tmpfs(&node.path("opt/cni/bin"), "size=64k");
    let binary = node.path("opt/cni/bin/istio-cni");
    fs::write(&binary, vec![6; 40 << 10]).unwrap();
    let mut kept = Kept::start(node.options());
    kept.not_ready("No space left on device");
    let problems = kept.problems().unwrap().join("\n");
    assert!(problems.contains("opt/cni/bin") && problems.contains("--cni-bin-dir"), "{problems}");
    assert_eq!(fs::read(&binary).unwrap(), vec![6; 40 << 10]);
    assert_eq!(node.read("10-podnet.conflist"), BRIDGE, "no configuration before the plugin is there");
    assert_eq!(fs::read_dir(node.path("opt/cni/bin")).unwrap().count(), 1, "no temporary file stays");
}

#[test]
fn a_read_only_disk() {
    let node = Node::new();
    node.write("10-podnet.conflist", BRIDGE);
    let mut kept = Kept::start(node.options());
    kept.ready();
    drop(kept);
    // Everything right already: installed.
    let bin = Mounted::read_only(&node.path("opt/cni/bin"));
    let net = Mounted::read_only(&node.net(""));
    let before = identity(&node.net("10-podnet.conflist"));
    Kept::start(node.options()).ready();
    assert_eq!(identity(&node.net("10-podnet.conflist")), before);
    // Another executable, another configuration: errors that help.
    fs::write(node.path("ferrule"), "another").unwrap();
    let mut kept = Kept::start(node.options());
    kept.not_ready("Read-only file system");
    let problem = kept.problems().unwrap()[0].clone();
    assert!(problem.contains(&node.path("opt/cni/bin").display().to_string()), "{problem}");
    assert!(problem.contains("k3s") && problem.contains("GKE"), "{problem}");
    drop(kept);
    drop(bin);
    let mut options = node.options();
    options.entry.ambient_enabled = false;
    let mut kept = Kept::start(options);
    kept.not_ready("Read-only file system");
    let problem = kept.problems().unwrap()[0].clone();
    assert!(problem.contains("10-podnet.conflist"), "{problem}");
    drop(net);
    kept.ready();
    let conf = node.read("10-podnet.conflist");
    assert!(conf.contains("\"ambient_enabled\": false"), "{conf}");
}

#[test]
fn missing_directories_are_named() {
    let node = Node::new();
    node.write("10-podnet.conflist", BRIDGE);
    fs::remove_dir_all(node.path("opt/cni/bin")).unwrap();
    let mut kept = Kept::start(node.options());
    kept.not_ready("opt/cni/bin");
    let (problem, dir) = (kept.problems().unwrap()[0].clone(), node.path("opt/cni/bin"));
    let start = format!("the directory {} does not exist; make it (mkdir -p), or ", dir.display());
    assert!(problem.starts_with(&start) && problem.contains("--cni-bin-dir"), "{problem}");
    assert_eq!(node.read("10-podnet.conflist"), BRIDGE);
    fs::create_dir(node.path("opt/cni/bin")).unwrap();
    install_plugins(&node.path("opt/cni/bin"), BRIDGE);
    kept.ready();
    assert_eq!(ours(&node.read("10-podnet.conflist")), 1);
    // The run dir is ours to make; anything else in its place is not ours to remove.
    drop(kept);
    fs::remove_dir_all(node.path("run/istio-cni")).unwrap();
    fs::write(node.path("run/istio-cni"), "").unwrap();
    node.write("10-podnet.conflist", BRIDGE);
    let mut kept = Kept::start(node.options());
    kept.not_ready("run/istio-cni");
    fs::remove_file(node.path("run/istio-cni")).unwrap();
    kept.ready();
    eventually("the last good content is kept", || node.path("run/istio-cni/replaced/10-podnet.conflist").exists());
}
