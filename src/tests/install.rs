//! The installer on temporary host roots.

mod crash;
mod faults;

use crate::support::program::{ferrule, finish};
use crate::support::{eventually, install_plugins};
use base64::prelude::{BASE64_STANDARD, Engine};
use ferrule::install::conf::Conf;
use ferrule::install::entry::Entry;
use ferrule::install::{Keeper, Mode, Notice, Options, Run, kubeconfig, uninstall};
use ferrule::sys::file::{HostRoot, Lock};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

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
    root: PathBuf,
    /// Removes the root in the end; `None` when it is another process's.
    _guard: Option<tempfile::TempDir>,
}

impl Node {
    fn new() -> Self {
        let guard = tempfile::tempdir().unwrap();
        let node = Node { root: guard.path().to_path_buf(), _guard: Some(guard) };
        for dir in ["etc/cni/net.d", "opt/cni/bin", "var/lib", "run"] {
            fs::create_dir_all(node.path(dir)).unwrap();
        }
        fs::write(node.path("ferrule"), "#!/bin/sh\nexit 0\n").unwrap();
        node
    }

    /// A node that is there already.
    fn at(root: &Path) -> Self {
        Node { root: root.to_path_buf(), _guard: None }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn net(&self, name: &str) -> PathBuf {
        self.path("etc/cni/net.d").join(name)
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.net(name), content).unwrap();
        install_plugins(&self.path("opt/cni/bin"), content);
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
            host_root: HostRoot::new(&self.root),
            net_dir: self.net(""),
            bin_dir: self.path("opt/cni/bin"),
            run_dir: self.path("run/istio-cni"),
            mode: Mode::Chained,
            conf_name: None,
            conf_group_read: false,
            entry: fixture_entry(),
            kubeconfig: None,
            executable: self.path("ferrule"),
            settle: Duration::ZERO,
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

/// Mode, user and group.
fn access(path: &Path) -> (u32, u32, u32) {
    let metadata = fs::metadata(path).unwrap();
    (metadata.mode() & 0o7777, metadata.uid(), metadata.gid())
}

fn identity(path: &Path) -> (u64, i64, i64) {
    let metadata = fs::metadata(path).unwrap();
    (metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
}

/// The entry that the fixtures were made with.
fn fixture_entry() -> Entry {
    Entry {
        log_level: "info".to_owned(),
        agent_run_dir: "/var/run/istio-cni".to_owned(),
        ambient_enabled: true,
        enablement_selectors: serde_json::json!([
            {"podSelector": {"matchLabels": {"istio.io/dataplane-mode": "ambient"}}}
        ]),
        exclude_namespaces: vec!["kube-system".to_owned()],
        exclude_runtime_classes: Vec::new(),
        pod_namespace: "istio-system".to_owned(),
        native_nftables: false,
        detection_retry: false,
        status_gate: false,
    }
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

#[test]
fn every_primary_in_out_again_and_back() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("test-fixtures/install");
    for case in fs::read_dir(fixtures).unwrap() {
        let case = case.unwrap().path();
        let node = Node::new();
        let read = |dir: &Path| {
            let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
            let mut files: Vec<_> = files.map(|file| (file.file_name(), fs::read(file.path()).unwrap())).collect();
            files.sort();
            files
        };
        for (name, content) in read(&case.join("in")) {
            let path = node.net("").join(&name);
            let read = Conf::parse(name.to_str().unwrap(), &content);
            for plugin in read.iter().flat_map(|conf| conf.types()) {
                fs::write(node.path("opt/cni/bin").join(plugin), "").unwrap();
            }
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
            chown(&path, Some(12), Some(34)).unwrap();
        }
        Kept::start(node.options()).ready();
        assert_eq!(read(&node.net("")), read(&case.join("out")), "{}", case.display());
        let state = || -> Vec<_> {
            node.names().iter().map(|name| (name.clone(), identity(&node.net(name)), access(&node.net(name)))).collect()
        };
        let before = state();
        assert!(before.iter().all(|(_, _, access)| *access == (0o640, 12, 34)), "{before:?}");
        Kept::start(node.options()).ready();
        assert_eq!(state(), before, "{}: not even rewritten", case.display());
        let removal = uninstall(&node.options(), Run::Real);
        assert!(removal.failures.is_empty(), "{removal:?}");
        assert_eq!(read(&node.net("")), read(&case.join("in")), "{}", case.display());
        assert!(state().iter().all(|(_, _, access)| *access == (0o640, 12, 34)), "{}", case.display());
    }
}

/// One node's directory through everything that can happen to it while we run.
#[test]
fn the_primary_moves_under_us() {
    let node = Node::new();
    let mut kept = Kept::start(node.options());
    kept.not_ready("waiting for a CNI configuration");
    let single = r#"{"cniVersion":"0.4.0","name":"podnet","type":"ptp","ipam":{"type":"host-local"}}"#;
    // Broken files beside the valid one; no entry for a moment means nothing.
    node.write("00-broken.conflist", "{");
    node.write("20-podnet.conf", single);
    kept.not_ready("00-broken.conflist sorts before 20-podnet.conflist");
    assert_eq!(node.names(), ["00-broken.conflist", "20-podnet.conflist"]);
    // The .conf becomes a .conflist of the primary's own.
    node.write("20-podnet.conflist", BRIDGE);
    eventually("the new list has us", || ours(&node.read("20-podnet.conflist")) == 1);
    assert!(node.read("20-podnet.conflist").contains("\"bridge\""));
    // Another one sorts lower.
    node.write("10-other.conflist", &BRIDGE.replace("podnet", "other"));
    eventually("the first has us, and only the first", || {
        ours(&node.read("10-other.conflist")) == 1 && node.read("20-podnet.conflist") == BRIDGE
    });
    // It goes again.
    fs::remove_file(node.net("10-other.conflist")).unwrap();
    eventually("the next has us", || ours(&node.read("20-podnet.conflist")) == 1);
    assert_eq!(node.read("00-broken.conflist"), "{");
    // One that is completed is the primary.
    node.write("00-broken.conflist", &BRIDGE.replace("podnet", "whole"));
    kept.ready();
    assert_eq!(ours(&node.read("00-broken.conflist")), 1);
    node.write("00-broken.conflist", "{");
    eventually("the next has us again", || ours(&node.read("20-podnet.conflist")) == 1);
    fs::remove_file(node.net("20-podnet.conflist")).unwrap();
    kept.not_ready("waiting for a CNI configuration");
    let removal = uninstall(&node.options(), Run::Real);
    assert!(removal.failures.is_empty());
    assert_eq!(node.names(), ["00-broken.conflist"]);
}

#[test]
fn an_owned_copy_follows_the_primary() {
    let node = Node::new();
    node.write("10-podnet.conflist", BRIDGE);
    let options = || Options { mode: Mode::Owned { file: "02-istio-cni.conflist".to_owned() }, ..node.options() };
    Kept::start(node.options()).ready();
    let mut kept = Kept::start(options());
    kept.ready();
    assert_eq!(node.read("10-podnet.conflist"), BRIDGE, "what an earlier run left in the primary is gone");
    assert_eq!(ours(&node.read("02-istio-cni.conflist")), 1);
    node.write("10-podnet.conflist", &BRIDGE.replace("10.231.0.0", "10.232.0.0"));
    eventually("the copy follows", || node.read("02-istio-cni.conflist").contains("10.232.0.0"));
    drop(kept);
    let removal = uninstall(&options(), Run::Real);
    assert!(removal.failures.is_empty());
    assert_eq!(node.names(), ["10-podnet.conflist"]);
}

/// A service account directory as the kubelet makes it: a link to a directory that is replaced as a whole.
fn rotate(node: &Node, number: usize) -> String {
    let token = format!("token-{number}");
    let dir = node.path("sa");
    let new = dir.join(format!("..{number}"));
    fs::create_dir_all(&new).unwrap();
    fs::write(new.join("token"), &token).unwrap();
    fs::write(new.join("ca.crt"), "PEM").unwrap();
    symlink(format!("..{number}"), dir.join("..data_tmp")).unwrap();
    fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
    for file in ["token", "ca.crt"] {
        if !dir.join(file).exists() {
            symlink(format!("..data/{file}"), dir.join(file)).unwrap();
        }
    }
    token
}

#[test]
fn a_new_token_touches_the_kubeconfig_alone() {
    let node = Node::new();
    node.write("10-podnet.conflist", BRIDGE);
    rotate(&node, 0);
    let kubeconfig = kubeconfig::Options {
        protocol: "https".to_owned(),
        host: "10.96.0.1".to_owned(),
        port: "443".to_owned(),
        service_account_dir: node.path("sa"),
        ca_file: None,
        skip_tls_verify: false,
        mode: 0o600,
    };
    let mut kept = Kept::start(Options { kubeconfig: Some(kubeconfig), ..node.options() });
    kept.ready();
    let path = node.path("run/istio-cni/istio-cni-kubeconfig");
    let others = || [identity(&node.path("opt/cni/bin/istio-cni")), identity(&node.net("10-podnet.conflist"))];
    let before = others();
    for number in 1..20 {
        let token = rotate(&node, number);
        let start = Instant::now();
        eventually("the kubeconfig is current", || {
            assert_eq!(access(&path).0, 0o600);
            fs::read_to_string(&path).unwrap().contains(&format!("\"{token}\""))
        });
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
    assert_eq!(others(), before, "neither executable nor configuration was written");
    kept.problems();
    let readiness = kept.seen.iter().filter(|notice| matches!(notice, Notice::Readiness(_))).count();
    assert_eq!(readiness, 1, "{:?}", kept.seen);
}

#[test]
fn a_sandbox_that_needs_the_plugin_keeps_it() {
    let node = Node::new();
    node.write("10-podnet.conflist", BRIDGE);
    Kept::start(node.options()).ready();
    let cache = node.path("var/lib/cni/results");
    fs::create_dir_all(&cache).unwrap();
    let cached = |chain: &str| format!(r#"{{"kind":"cniCacheV1","config":"{}"}}"#, BASE64_STANDARD.encode(chain));
    let binary = node.path("opt/cni/bin/istio-cni");
    fs::write(cache.join("podnet-abc-eth0"), cached(BRIDGE)).unwrap();
    fs::write(cache.join("podnet-def-eth0"), cached(&node.read("10-podnet.conflist"))).unwrap();

    let dry = uninstall(&node.options(), Run::Dry);
    let real = uninstall(&node.options(), Run::Real);
    assert_eq!((&dry.steps, real.failures.len()), (&real.steps, 0));
    assert_eq!(node.read("10-podnet.conflist"), BRIDGE);
    let kept = real.steps.last().unwrap();
    assert!(kept.starts_with("keep ") && kept.contains("podnet-def-eth0"), "{kept}");
    assert!(std::process::Command::new(&binary).status().unwrap().success(), "DEL can run");

    // A cache that cannot be understood, then none that needs it.
    fs::write(cache.join("podnet-def-eth0"), "{").unwrap();
    assert!(uninstall(&node.options(), Run::Real).steps[0].contains("cannot be told"));
    assert!(binary.exists());
    fs::remove_file(cache.join("podnet-def-eth0")).unwrap();
    let last = uninstall(&node.options(), Run::Real);
    assert_eq!(last.steps, [format!("remove {}", binary.display())]);
    assert!(uninstall(&node.options(), Run::Real).steps.is_empty());
}

/// A runtime is in the middle of an ADD while everything is removed: whatever comes of it, its DEL finds the plugin.
#[test]
fn a_plugin_that_runs_is_waited_for() {
    let node = Node::new();
    node.write("10-podnet.conflist", BRIDGE);
    fs::copy("/bin/sleep", node.path("ferrule")).unwrap();
    symlink("/proc", node.path("proc")).unwrap();
    Kept::start(node.options()).ready();
    let chained = node.read("10-podnet.conflist");
    let binary = node.path("opt/cni/bin/istio-cni");
    let cache = node.path("var/lib/cni/results");
    fs::create_dir_all(&cache).unwrap();
    let mut plugin = std::process::Command::new(&binary).arg("1000").spawn().unwrap();

    let dry = uninstall(&node.options(), Run::Dry);
    assert!(dry.steps.last().unwrap().contains(&format!("process {} runs it", plugin.id())), "{:?}", dry.steps);
    let options = Options { settle: Duration::from_millis(500), ..node.options() };
    let removal = std::thread::spawn({
        let options = options.clone();
        move || uninstall(&options, Run::Real)
    });
    eventually("our entry is gone", || node.read("10-podnet.conflist") == BRIDGE);
    plugin.kill().unwrap();
    plugin.wait().unwrap();
    assert!(binary.exists());
    // The runtime writes down what it ran a moment after that has ended.
    let cached = format!(r#"{{"kind":"cniCacheV1","config":"{}"}}"#, BASE64_STANDARD.encode(chained));
    fs::write(cache.join(".new"), cached).unwrap();
    fs::rename(cache.join(".new"), cache.join("podnet-abc-eth0")).unwrap();
    let removal = removal.join().unwrap();
    assert!(removal.failures.is_empty() && removal.steps.last().unwrap().contains("podnet-abc-eth0"), "{removal:?}");
    assert!(binary.exists());

    fs::remove_file(cache.join("podnet-abc-eth0")).unwrap();
    let last = uninstall(&options, Run::Real);
    assert_eq!(last.steps, [format!("remove {}", binary.display())]);
}

/// Another program takes our entry out as soon as it sees it, a hundred times a second.
#[test]
fn a_fight_is_short_and_explained() {
    let node = Node::new();
    let cilium = BRIDGE.replace("portmap", "cilium-cni");
    node.write("05-cilium.conflist", &cilium);
    let mut kept = Kept::start(node.options());
    kept.ready();
    let (stop, path) = (Arc::new(AtomicBool::new(false)), node.net("05-cilium.conflist"));
    let writer = {
        let (stop, path) = (stop.clone(), path.clone());
        std::thread::spawn(move || {
            let mut reverted = 0;
            while !stop.load(Ordering::Relaxed) {
                if fs::read_to_string(&path).unwrap().contains("istio-cni") {
                    let temp = path.with_extension("cilium");
                    fs::write(&temp, &cilium).unwrap();
                    fs::rename(&temp, &path).unwrap();
                    reverted += 1;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            reverted
        })
    };
    kept.not_ready("05-cilium.conflist keeps being rewritten without our plugin, probably by Cilium");
    assert!(kept.problems().unwrap()[0].contains("cni.exclusive=false"));
    assert!(kept.seen.contains(&Notice::Conflict));
    std::thread::sleep(Duration::from_secs(3));
    kept.not_ready("keeps being rewritten");
    stop.store(true, Ordering::Relaxed);
    let reverted = writer.join().unwrap();
    assert!(reverted <= 11, "{reverted} writes of ours");
    let stopped = Instant::now();
    kept.ready();
    assert!(stopped.elapsed() < Duration::from_secs(5), "{:?}", stopped.elapsed());
    assert_eq!(ours(&node.read("05-cilium.conflist")), 1);
}

#[test]
fn uninstall_from_a_shell() {
    let node = Node::new();
    node.write("10-podnet.conflist", BRIDGE);
    Kept::start(node.options()).ready();
    let installed = node.read("10-podnet.conflist");
    let root = node.path("");
    let run = |more: &[&str]| {
        let run_dir = format!("--cni-agent-run-dir={}", node.path("run/istio-cni").display());
        let host_root = format!("--host-root={}", root.display());
        finish(&mut ferrule(&[&["uninstall", &host_root, &run_dir], more].concat()), b"")
    };
    // With another host root, what is to be removed cannot be seen: nothing is touched.
    let saved = node.path("run/istio-cni/replaced/10-podnet.conflist");
    for (flag, said) in [
        (format!("--host-root={}/nope", root.display()), "/nope is not there: on a host give --host-root /\n"),
        (format!("--mounted-cni-net-dir={}/nope", root.display()), "nope does not exist; name the one that "),
    ] {
        let refused = run(&[&flag, "--dry-run=false"]);
        assert!(refused.code == Some(1) && refused.stdout.is_empty() && refused.stderr.contains(said), "{refused:?}");
        assert!(saved.exists());
    }
    let lock = Lock::try_take(&node.path("run/istio-cni/lock")).unwrap().unwrap();
    let refused = run(&[]);
    assert!(refused.code == Some(1) && refused.stderr.contains("an agent is running"), "{refused:?}");
    drop(lock);
    let dry = run(&["--dry-run"]);
    assert_eq!((dry.code, node.read("10-podnet.conflist")), (Some(0), installed));
    let real = run(&[]);
    assert_eq!((real.code, &real.stdout, real.stderr.as_str()), (Some(0), &dry.stdout, ""));
    assert_eq!(node.read("10-podnet.conflist"), BRIDGE);
    assert!(!node.path("opt/cni/bin/istio-cni").exists());
    let again = run(&[]);
    assert_eq!((again.code, again.stdout.as_str()), (Some(0), "nothing of ours is installed\n"));
    assert_eq!(run(&["now"]).code, Some(2));
    assert!(run(&["--help"]).stdout.contains("--dry-run"));
}

/// What our entry was to be taken out of is not there: whoever brings it back may want the original.
#[test]
fn a_copy_of_what_cannot_be_found_is_kept() {
    let node = Node::new();
    node.write("10-podnet.conflist", BRIDGE);
    Kept::start(node.options()).ready();
    let installed = node.read("10-podnet.conflist");
    let saved = node.path("run/istio-cni/replaced/10-podnet.conflist");
    for broken in [None, Some("{"), Some("")] {
        match broken {
            Some(text) => node.write("10-podnet.conflist", text),
            None => fs::remove_file(node.net("10-podnet.conflist")).unwrap(),
        }
        let removal = uninstall(&node.options(), Run::Real);
        assert!(
            removal.steps.contains(&format!(
                "keep {}: {} has nothing that can be loaded in its place",
                saved.display(),
                node.net("").display()
            )),
            "{removal:?}"
        );
        assert_eq!(fs::read_to_string(&saved).unwrap(), BRIDGE);
        node.write("10-podnet.conflist", &installed);
    }
    uninstall(&node.options(), Run::Real);
    assert!(node.read("10-podnet.conflist") == BRIDGE && !saved.exists());
}

/// In a container only parts of the host are mounted below the host root: what is missing there may exist all the same.
#[test]
fn a_cache_that_cannot_be_seen_keeps_the_plugin() {
    let node = Node::new();
    node.write("10-podnet.conflist", BRIDGE);
    fs::remove_dir(node.path("var/lib")).unwrap();
    let _mounted = faults::Mounted::tmpfs(&node.path("opt/cni/bin"), "size=1m");
    node.write("10-podnet.conflist", BRIDGE);
    Kept::start(node.options()).ready();
    let removal = uninstall(&node.options(), Run::Real);
    assert!(removal.steps.last().unwrap().contains("not visible from here"), "{removal:?}");
    // Through the host's first process it can be seen.
    let cache = node.path("proc/1/root/var/lib/cni/cache/results");
    fs::create_dir_all(&cache).unwrap();
    fs::write(cache.join("podnet-abc-eth0"), "{").unwrap();
    let removal = uninstall(&node.options(), Run::Real);
    assert!(removal.steps.last().unwrap().contains("podnet-abc-eth0"), "{removal:?}");
    fs::remove_file(cache.join("podnet-abc-eth0")).unwrap();
    let removal = uninstall(&node.options(), Run::Real);
    assert!(removal.steps.last().unwrap().starts_with("remove "), "{removal:?}");
}

/// Another version's agent keeps the executable that it brought.
#[test]
fn two_agents_do_not_copy_as_fast_as_they_can() {
    let node = Node::new();
    node.write("10-podnet.conflist", BRIDGE);
    let mut kept = Kept::start(node.options());
    kept.ready();
    let binary = node.path("opt/cni/bin/istio-cni");
    let ours = fs::read(node.path("ferrule")).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let other = {
        let (stop, binary, ours, temp) = (stop.clone(), binary.clone(), ours.clone(), node.path("opt/cni/bin/other"));
        std::thread::spawn(move || {
            let mut replaced = 0;
            while !stop.load(Ordering::Relaxed) {
                if fs::read(&binary).unwrap() == ours {
                    fs::write(&temp, "other").unwrap();
                    fs::rename(&temp, &binary).unwrap();
                    replaced += 1;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            replaced
        })
    };
    kept.not_ready("istio-cni keeps being replaced by another program");
    std::thread::sleep(Duration::from_secs(2));
    stop.store(true, Ordering::Relaxed);
    let replaced = other.join().unwrap();
    assert!(replaced <= 9, "{replaced} copies of ours");
    kept.ready();
    assert_eq!(fs::read(&binary).unwrap(), ours);
}
