//! The installer on directories of its own: what it puts there, how it reads them, and what it takes away.
#![expect(clippy::disallowed_methods, reason = "the tests play the other programs that write these directories")]

use super::directory::{self, Applied};
use super::entry::Entry;
use super::plan::{self, Change, Place, Step};
use super::{Mode, Options, Run, binary, kubeconfig, uninstall};
use crate::sys::clock;
use crate::sys::file::HostRoot;
use std::fs::{File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) const BRIDGE: &str = r#"{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"bridge"}]}"#;

/// A node's directories below a temporary one.
pub(super) struct Node {
    dir: tempfile::TempDir,
}

impl Node {
    pub(super) fn new() -> Self {
        let node = Node { dir: tempfile::tempdir().unwrap() };
        for dir in ["net", "bin", "run", "account", "var/lib", "proc"] {
            std::fs::create_dir_all(node.path(dir)).unwrap();
        }
        node.write("ferrule", "our executable", 0o755);
        node.write("bin/bridge", "a plugin", 0o755);
        node
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file that was written a minute ago.
    pub(super) fn write(&self, name: &str, content: &str, mode: u32) {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(clock::wall() - Duration::from_secs(60)).unwrap();
    }

    pub(super) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    pub(super) fn mode(&self, name: &str) -> u32 {
        std::fs::metadata(self.path(name)).unwrap().permissions().mode() & 0o7777
    }

    pub(super) fn names(&self, dir: &str) -> Vec<String> {
        let mut names = directory::names(&self.path(dir)).unwrap();
        names.sort();
        names
    }

    pub(super) fn options(&self) -> Options {
        Options {
            host_root: HostRoot::new(self.dir.path()),
            net_dir: self.path("net"),
            bin_dir: self.path("bin"),
            run_dir: self.path("run"),
            mode: Mode::Chained,
            conf_name: None,
            conf_group_read: false,
            entry: entry(),
            kubeconfig: None,
            executable: self.path("ferrule"),
            settle: Duration::ZERO,
        }
    }

    pub(super) fn kubeconfig(&self) -> kubeconfig::Options {
        self.write("account/token", "token\n", 0o600);
        self.write("account/ca.crt", "PEM", 0o600);
        kubeconfig::Options {
            protocol: "https".to_owned(),
            host: "10.96.0.1".to_owned(),
            port: "443".to_owned(),
            service_account_dir: self.path("account"),
            ca_file: None,
            skip_tls_verify: false,
            mode: 0o600,
        }
    }
}

/// What our plugin is told, with nothing switched on but ambient mode.
pub(super) fn entry() -> Entry {
    Entry {
        log_level: "info".to_owned(),
        agent_run_dir: "/var/run/istio-cni".to_owned(),
        ambient_enabled: true,
        enablement_selectors: serde_json::json!([]),
        exclude_namespaces: Vec::new(),
        exclude_runtime_classes: Vec::new(),
        pod_namespace: "istio-system".to_owned(),
        native_nftables: false,
        detection_retry: false,
        status_gate: false,
    }
}

#[test]
fn the_executable_is_current_when_it_has_our_content_and_can_run() {
    let node = Node::new();
    let options = node.options();
    let mut installed = binary::Binary::default();
    assert!(!installed.is_current(&options).unwrap(), "it is not there");
    node.write("bin/istio-cni", "another executable", 0o755);
    assert!(!installed.is_current(&options).unwrap(), "it is another's");
    node.write("bin/istio-cni.tmp.4711", "half", 0o600);
    installed.install(&options).unwrap();
    assert_eq!(node.names("bin"), ["bridge", "istio-cni"]);
    assert_eq!((node.read("bin/istio-cni").as_str(), node.mode("bin/istio-cni")), ("our executable", 0o755));
    assert!(installed.is_current(&options).unwrap());
    assert!(installed.is_current(&options).unwrap(), "it has not been touched since");
    node.write("bin/istio-cni", "our executable", 0o644);
    assert!(installed.is_current(&options).unwrap());
    assert_eq!(node.mode("bin/istio-cni"), 0o755, "a mode that is wrong is put right");
    std::fs::remove_file(node.path("bin/istio-cni")).unwrap();
    nix::unistd::mkfifo(&node.path("bin/istio-cni"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(!installed.is_current(&options).unwrap(), "nobody can run a FIFO, nor waits for it");
    installed.install(&options).unwrap();
    assert_eq!(node.read("bin/istio-cni"), "our executable");
    node.write("bin/istio-cni", "our executablf", 0o755);
    assert!(!installed.is_current(&options).unwrap(), "one byte is another's");
}

#[test]
fn a_listing_has_every_candidate_with_its_content_mode_and_age() {
    let node = Node::new();
    node.write("net/10-a.conflist", BRIDGE, 0o640);
    node.write("net/README", "no candidate", 0o644);
    std::fs::create_dir(node.path("net/20-dir.conf")).unwrap();
    symlink(node.path("net/nowhere"), node.path("net/30-dangling.conf")).unwrap();
    symlink(node.path("net/20-dir.conf"), node.path("net/40-link.conf")).unwrap();
    let listing = directory::read(&node.options()).unwrap();
    let names: Vec<&str> = listing.net.keys().map(String::as_str).collect();
    assert_eq!(names, ["10-a.conflist", "30-dangling.conf", "40-link.conf"]);
    let found = &listing.net["10-a.conflist"];
    assert_eq!(found.content.as_deref(), Ok(BRIDGE.as_bytes()));
    assert_eq!(found.access.mode, 0o640);
    assert!(found.age >= Duration::from_secs(60) && found.age < Duration::from_secs(600));
    assert!(listing.net["40-link.conf"].content.as_ref().is_err_and(|reason| reason == "a link to a directory"));
    assert!(listing.plugins.unwrap().contains("bridge"));
    assert!(listing.saved.is_empty());
}

#[test]
fn a_directory_that_is_not_there_is_named_with_its_remedy() {
    let node = Node::new();
    let options = node.options();
    let check = |dir: &Path, options: &Options, expected: Option<[&str; 2]>| {
        let found = directory::missing(dir, options);
        let fits = match (&found, expected) {
            (Some((finding, remedy)), Some([gone, option])) => finding.contains(gone) && remedy.contains(option),
            (found, expected) => found.is_none() && expected.is_none(),
        };
        assert!(fits, "{found:?}");
    };
    check(&options.net_dir, &options, None);
    let elsewhere = Options { net_dir: node.path("no-net"), bin_dir: node.path("no-bin"), ..options.clone() };
    check(&elsewhere.bin_dir, &elsewhere, Some(["no-bin does not exist", "--cni-bin-dir"]));
    check(&elsewhere.net_dir, &elsewhere, Some(["no-net does not exist", "--mounted-cni-net-dir"]));
    let host_root = HostRoot::new(node.path("host"));
    let elsewhere = Options { host_root, net_dir: node.path("host/net"), ..options };
    check(&elsewhere.net_dir, &elsewhere, Some(["host/net does not exist", "--host-root"]));
    assert!(directory::expect(&elsewhere).is_err());
}

#[test]
fn steps_change_nothing_that_changed_since_it_was_read() {
    let node = Node::new();
    let options = node.options();
    node.write("net/10-a.conflist", BRIDGE, 0o640);
    let listing = directory::read(&options).unwrap();
    let steps = plan::install(&listing, &options).steps;
    node.write("net/10-a.conflist", "{}", 0o640);
    assert_eq!(directory::apply(&steps, &listing, &options).unwrap(), Applied::Changed);
    assert_eq!(node.read("net/10-a.conflist"), "{}");
    node.write("net/10-a.conflist", BRIDGE, 0o640);
    assert_eq!(directory::apply(&steps, &listing, &options).unwrap(), Applied::Done);
    assert!(node.read("net/10-a.conflist").contains("istio-cni"));
    assert_eq!(node.mode("net/10-a.conflist"), 0o640);
}

#[test]
fn only_what_was_being_written_is_swept() {
    let node = Node::new();
    let options = node.options();
    kubeconfig::ensure(&node.kubeconfig(), &options.run_dir).unwrap();
    node.write("net/10-a.conflist", BRIDGE, 0o640);
    let temp_of = |file: &str| format!(".{file}.tmp.4711.0");
    for (dir, file) in [("net", "10-a.conflist"), ("net", "notes"), ("run", kubeconfig::FILE), ("run", "state.json")] {
        node.write(&format!("{dir}/{}", temp_of(file)), "half", 0o600);
    }
    directory::sweep(&options).unwrap();
    kubeconfig::sweep(&options.run_dir).unwrap();
    assert_eq!(node.names("net"), [temp_of("notes"), "10-a.conflist".to_owned()]);
    assert_eq!(node.names("run"), [temp_of("state.json"), kubeconfig::FILE.to_owned()]);
}

#[test]
fn copies_that_a_removal_leaves_are_told() {
    let node = Node::new();
    let options = node.options();
    std::fs::create_dir(node.path("run/replaced")).unwrap();
    node.write("run/replaced/10-a.conf", BRIDGE, 0o600);
    node.write("run/replaced/20-b.conf", BRIDGE, 0o600);
    let listing = directory::read(&options).unwrap();
    let step = |place, name: &str| Step { place, name: name.to_owned(), change: Change::Remove, why: "test".into() };
    let kept = directory::kept(&[step(Place::Net, "10-a.conf"), step(Place::Saved, "20-b.conf")], &listing, &options);
    let [kept] = &kept[..] else { panic!("{kept:?}") };
    assert!(kept.starts_with(&format!("keep {}", node.path("run/replaced/10-a.conf").display())), "{kept}");
}

#[test]
fn a_removal_takes_all_and_tells_the_same_when_it_only_tells() {
    let node = Node::new();
    let options = Options { kubeconfig: Some(node.kubeconfig()), ..node.options() };
    node.write("net/10-a.conflist", BRIDGE, 0o640);
    let listing = directory::read(&options).unwrap();
    directory::apply(&plan::install(&listing, &options).steps, &listing, &options).unwrap();
    binary::Binary::default().install(&options).unwrap();
    kubeconfig::ensure(&node.kubeconfig(), &options.run_dir).unwrap();
    let told = uninstall(&options, Run::Dry);
    assert!(told.failures.is_empty(), "{told:?}");
    assert_eq!(node.names("bin"), ["bridge", "istio-cni"]);
    assert!(node.names("run").contains(&kubeconfig::FILE.to_owned()));
    let done = uninstall(&options, Run::Real);
    assert!(done.failures.is_empty(), "{done:?}");
    assert_eq!(done.steps, told.steps);
    assert_eq!(node.names("bin"), ["bridge"]);
    assert!(!node.names("run").contains(&kubeconfig::FILE.to_owned()));
    assert_eq!(node.read("net/10-a.conflist"), BRIDGE);
    assert!(uninstall(&options, Run::Real).steps.is_empty(), "a second removal has nothing to do");
}

#[test]
fn the_executable_stays_while_a_sandbox_needs_it_or_a_configuration_is_not_understood() {
    let node = Node::new();
    let options = node.options();
    binary::Binary::default().install(&options).unwrap();
    let kept = |reason: &str| {
        let done = uninstall(&options, Run::Real);
        let kept = done.steps.iter().any(|step| step.starts_with("keep ") && step.contains(reason));
        assert!(kept && node.path("bin/istio-cni").exists(), "{done:?}");
    };
    node.write("net/05-x.conflist", r#"{"plugins":[{"type":"istio-cni""#, 0o600);
    kept("the removal was not complete");
    std::fs::remove_file(node.path("net/05-x.conflist")).unwrap();
    std::fs::create_dir_all(node.path("var/lib/cni/results")).unwrap();
    // {"plugins":[{"type":"istio-cni"}]}
    node.write("var/lib/cni/results/a", r#"{"config":"eyJwbHVnaW5zIjpbeyJ0eXBlIjoiaXN0aW8tY25pIn1dfQ=="}"#, 0o600);
    kept("/var/lib/cni/results/a names it");
    node.write("var/lib/cni/results/a", "no JSON", 0o600);
    kept("cannot be told");
    node.write("var/lib/cni/results/a", "{}", 0o600);
    let done = uninstall(&options, Run::Real);
    assert!(done.failures.is_empty() && !node.path("bin/istio-cni").exists(), "{done:?}");
}
