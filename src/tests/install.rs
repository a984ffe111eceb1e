//! The installer on temporary host roots.

use crate::support::eventually;
use ferrule::install::entry::Entry;
use ferrule::install::{Keeper, Mode, Notice, Options, Run, uninstall};
use ferrule::sys::file::HostRoot;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A primary's list as many write it.
const BRIDGE: &str = r#"{
  "cniVersion": "1.0.0",
  "name": "podnet",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "cni0",
      "ipam": { "type": "host-local", "subnet": "10.231.0.0/24" }
    },
    {
      "type": "portmap",
      "capabilities": { "portMappings": true }
    }
  ]
}
"#;

/// A node: a host root with the directories a kubelet makes, and an executable to install.
struct Node {
    root: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let node = Node { root: tempfile::tempdir().unwrap() };
        for dir in ["etc/cni/net.d", "opt/cni/bin", "var/lib", "run"] {
            fs::create_dir_all(node.path(dir)).unwrap();
        }
        fs::write(node.path("ferrule"), "#!/bin/sh\nexit 0\n").unwrap();
        node
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn net(&self, name: &str) -> PathBuf {
        self.path("etc/cni/net.d").join(name)
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.net(name), content).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.net(name)).unwrap_or_default()
    }

    /// Names in the conf dir.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.net("")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn options(&self) -> Options {
        Options {
            host_root: HostRoot::new(self.root.path()),
            net_dir: self.net(""),
            bin_dir: self.path("opt/cni/bin"),
            run_dir: self.path("run/istio-cni"),
            mode: Mode::Chained,
            conf_name: None,
            conf_group_read: false,
            entry: Entry {
                log_level: "info".to_owned(),
                agent_run_dir: "/var/run/istio-cni".to_owned(),
                ambient_enabled: true,
                enablement_selectors: serde_json::json!([]),
                exclude_namespaces: vec!["kube-system".to_owned()],
                pod_namespace: "istio-system".to_owned(),
                native_nftables: false,
                detection_retry: false,
                status_gate: false,
            },
            kubeconfig: None,
            executable: self.path("ferrule"),
        }
    }
}

/// A keeper with everything it said.
struct Kept {
    _keeper: Keeper,
    notices: Receiver<Notice>,
    problems: Option<Vec<String>>,
    seen: Vec<Notice>,
}

impl Kept {
    fn start(options: Options) -> Self {
        let (sender, notices) = channel();
        let keeper = Keeper::start(options, move |notice| sender.send(notice).unwrap_or(())).unwrap();
        Kept { _keeper: keeper, notices, problems: None, seen: Vec::new() }
    }

    /// What it said last about readiness.
    fn problems(&mut self) -> Option<&Vec<String>> {
        while let Ok(notice) = self.notices.recv_timeout(Duration::from_millis(1)) {
            if let Notice::Readiness(problems) = &notice {
                self.problems = Some(problems.clone());
            }
            self.seen.push(notice);
        }
        self.problems.as_ref()
    }

    #[track_caller]
    fn ready(&mut self) {
        eventually("ready", || self.problems().is_some_and(Vec::is_empty));
    }

    #[track_caller]
    fn not_ready(&mut self, reason: &str) {
        eventually(&format!("not ready: {reason}"), || {
            self.problems().is_some_and(|problems| problems.iter().any(|problem| problem.contains(reason)))
        });
    }
}

fn ours(conflist: &str) -> usize {
    let list: serde_json::Value = serde_json::from_str(conflist).unwrap_or_default();
    let plugins = list["plugins"].as_array().map(Vec::as_slice).unwrap_or_default();
    plugins.iter().filter(|plugin| plugin["type"] == "istio-cni").count()
}

fn identity(path: &Path) -> (u64, i64, i64) {
    let metadata = fs::metadata(path).unwrap();
    (metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
}

#[test]
fn installs_keeps_and_takes_away() {
    let node = Node::new();
    node.write("10-podnet.conflist", BRIDGE);
    fs::set_permissions(node.net("10-podnet.conflist"), PermissionsExt::from_mode(0o644)).unwrap();
    let mut kept = Kept::start(node.options());
    kept.ready();
    let installed = node.read("10-podnet.conflist");
    assert_eq!(ours(&installed), 1);
    assert_eq!(node.names(), ["10-podnet.conflist"]);
    let binary = node.path("opt/cni/bin/istio-cni");
    assert_eq!(fs::read(&binary).unwrap(), fs::read(node.path("ferrule")).unwrap());
    assert_eq!(fs::metadata(&binary).unwrap().mode() & 0o7777, 0o755);

    // Somebody writes the primary anew, and somebody removes the executable.
    node.write("10-podnet.conflist", BRIDGE);
    eventually("the entry comes back", || node.read("10-podnet.conflist") == installed);
    fs::remove_file(&binary).unwrap();
    eventually("the executable comes back", || binary.exists());

    // Started again, nothing is written.
    drop(kept);
    let (conf, before) = (node.net("10-podnet.conflist"), identity(&binary));
    let unchanged = identity(&conf);
    Kept::start(node.options()).ready();
    assert_eq!((identity(&conf), identity(&binary)), (unchanged, before));

    let dry = uninstall(&node.options(), Run::Dry);
    assert_eq!(identity(&conf), unchanged);
    let real = uninstall(&node.options(), Run::Real);
    assert!(real.failures.is_empty(), "{:?}", real.failures);
    assert_eq!(dry.steps, real.steps);
    assert_eq!(node.read("10-podnet.conflist"), BRIDGE);
    assert_eq!(fs::metadata(&conf).unwrap().mode() & 0o7777, 0o644);
    assert!(!binary.exists());
    let again = uninstall(&node.options(), Run::Real);
    assert!(again.steps.is_empty() && again.failures.is_empty(), "{again:?}");
}

#[test]
fn waits_for_a_primary() {
    let node = Node::new();
    fs::remove_dir(node.net("")).unwrap();
    let mut kept = Kept::start(node.options());
    kept.not_ready("waiting for a CNI configuration");
    fs::create_dir(node.net("")).unwrap();
    node.write("10-podnet.conflist", BRIDGE);
    kept.ready();
    assert_eq!(ours(&node.read("10-podnet.conflist")), 1);
}
