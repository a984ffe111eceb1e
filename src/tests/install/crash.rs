//! Processes that die, or whose system calls fail, at every point of an installation.
//!
//! The victim is this test program itself, started again under strace with only the test [`victim`], which then
//! installs (or removes) on the node it is given and writes down how that went.

use super::{BRIDGE, Kept, Node, access, ours};
use crate::support::eventually;
use ferrule::install::{Run, uninstall};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// What the victim is told: `install`, `remove` or `poll`, and the node's root.
const ORDER: &str = "FERRULE_VICTIM";

/// Arguments with which this program runs the test [`victim`] alone.
const VICTIM: [&str; 3] = ["--exact", "install::crash::victim", "--test-threads=1"];

const SINGLE: &str = r#"{
  "cniVersion": "0.4.0",
  "name": "podnet",
  "type": "bridge",
  "ipam": { "type": "host-local", "subnet": "10.231.0.0/24" }
}
"#;

/// The system calls with which files are changed.
const CHANGES: [&str; 7] = ["write", "fchmod", "fchown", "fsync", "rename", "unlink", "mkdir"];

/// Installs on a node of its own, or does what [`ORDER`] says.
#[test]
fn victim() {
    let (order, node) = match std::env::var(ORDER) {
        Err(_) => ("install".to_owned(), Node::new()),
        Ok(order) => {
            let (order, root) = order.split_once(' ').unwrap();
            (order.to_owned(), Node::at(Path::new(root)))
        }
    };
    let report = match order.as_str() {
        "install" => {
            if node.names().is_empty() {
                node.write("10-podnet.conf", SINGLE);
            }
            let mut kept = Kept::start(node.options());
            eventually("the first pass", || kept.problems().is_some());
            kept.problems().unwrap().join("\n")
        }
        "poll" => polling(&node),
        "remove" => {
            let failures = uninstall(&node.options(), Run::Real).failures;
            failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        }
        other => panic!("{other}"),
    };
    fs::write(node.path("report"), report).unwrap();
}

/// Installs without inotify, repairs what another program writes, and returns what was logged about it.
fn polling(node: &Node) -> String {
    struct Lines(Mutex<Vec<String>>);
    impl log::Log for Lines {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            self.0.lock().unwrap().push(record.args().to_string());
        }
        fn flush(&self) {}
    }
    let lines: &Lines = Box::leak(Box::new(Lines(Mutex::default())));
    log::set_logger(lines).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    node.write("10-podnet.conflist", BRIDGE);
    let mut kept = Kept::start(node.options());
    kept.ready();
    for _ in 0..2 {
        node.write("10-podnet.conflist", BRIDGE);
        eventually("our entry comes back", || ours(&node.read("10-podnet.conflist")) == 1);
    }
    let lines = lines.0.lock().unwrap();
    lines.iter().filter(|line| line.contains("inotify")).cloned().collect::<Vec<_>>().join("\n")
}

#[test]
fn without_inotify_it_polls_and_says_so_once() {
    let node = Node::new();
    let status = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c"])
        .args(["echo 0 > /proc/sys/user/max_inotify_instances && exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(VICTIM)
        .env(ORDER, format!("poll {}", node.path("").display()))
        .stdout(Stdio::null())
        .status()
        .expect("unshare is installed");
    assert!(status.success());
    let logged = fs::read_to_string(node.path("report")).unwrap();
    assert_eq!(logged.lines().count(), 1, "{logged}");
    assert!(logged.contains("polling"), "{logged}");
}

/// Runs the victim under strace; returns its report, if it lived to write one, and strace's own output.
fn strace(order: &str, node: &Node, arguments: &[&str]) -> (Option<String>, String) {
    let _ = fs::remove_file(node.path("report"));
    let output = node.path("strace");
    let status = Command::new("strace")
        .args(["-f", "-qq", "-o"])
        .arg(&output)
        .args(arguments)
        .arg(std::env::current_exe().unwrap())
        .args(VICTIM)
        .env(ORDER, format!("{order} {}", node.path("").display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("strace is installed");
    let report = fs::read_to_string(node.path("report")).ok();
    assert!(report.is_some() || !status.success());
    (report, fs::read_to_string(&output).unwrap_or_default())
}

/// How often each thread makes each call at most.
fn counts(trace: &str) -> BTreeMap<&'static str, usize> {
    let mut by_thread = BTreeMap::<(&str, &'static str), usize>::new();
    for line in trace.lines() {
        let Some((thread, call)) = line.split_once(char::is_whitespace) else { continue };
        let name = call.trim_start().split('(').next().unwrap_or_default();
        if let Some(name) = CHANGES.into_iter().find(|change| *change == name) {
            *by_thread.entry((thread, name)).or_default() += 1;
        }
    }
    let mut most = BTreeMap::new();
    for ((_, name), count) in by_thread {
        let entry = most.entry(name).or_insert(0);
        *entry = count.max(*entry);
    }
    most
}

/// A runtime that looks at any moment finds a whole configuration of the old or of the new kind.
fn whole(node: &Node, old: &str, new: &str) {
    let (conf, list) = (node.read("10-podnet.conf"), node.read("10-podnet.conflist"));
    assert!(conf.is_empty() || conf == old, "{conf}");
    assert!(list.is_empty() || list == new, "{list}");
    assert!(!conf.is_empty() || !list.is_empty());
    let binary = fs::read(node.path("opt/cni/bin/istio-cni"));
    assert!(binary.as_ref().is_ok_and(|binary| *binary == fs::read(node.path("ferrule")).unwrap()) || list.is_empty());
    assert!(binary.map_or(true, |binary| !binary.is_empty()));
}

#[test]
fn killed_between_any_two_system_calls() {
    let node = Node::new();
    node.write("10-podnet.conf", SINGLE);
    let trace = format!("trace={}", CHANGES.join(","));
    let (report, calls) = strace("install", &node, &["-e", &trace]);
    assert_eq!(report.as_deref(), Some(""));
    let installing = counts(&calls);
    let new = node.read("10-podnet.conflist");
    assert_eq!(ours(&new), 1);
    let (report, calls) = strace("remove", &node, &["-e", &trace]);
    assert_eq!(report.as_deref(), Some(""));
    let removing = counts(&calls);
    assert_eq!(node.read("10-podnet.conf"), SINGLE);

    let mut killed = 0;
    for (order, counts) in [("install", installing), ("remove", removing)] {
        assert!(counts["fsync"] >= 4 && counts["unlink"] >= 1, "{counts:?}");
        for (call, count) in counts {
            for when in 1..=count {
                let node = Node::new();
                node.write("10-podnet.conf", SINGLE);
                if order == "remove" {
                    Kept::start(node.options()).ready();
                }
                let inject = format!("inject={call}:signal=KILL:when={when}");
                let (report, _) = strace(order, &node, &["-e", &format!("trace={call}"), "-e", &inject]);
                killed += usize::from(report.is_none());
                whole(&node, SINGLE, &new);
                // The next run ends as if nothing had happened, and leaves nothing behind.
                Kept::start(node.options()).ready();
                assert_eq!(
                    (node.names(), node.read("10-podnet.conflist")),
                    (vec!["10-podnet.conflist".into()], new.clone())
                );
                let temporary = |name: &str| name.starts_with("istio-cni.");
                let names = fs::read_dir(node.path("opt/cni/bin")).unwrap().map(|entry| entry.unwrap().file_name());
                assert!(!names.into_iter().any(|name| temporary(name.to_str().unwrap())));
                let removal = uninstall(&node.options(), Run::Real);
                assert!(removal.failures.is_empty(), "{removal:?}");
                assert_eq!(
                    (node.names(), node.read("10-podnet.conf")),
                    (vec!["10-podnet.conf".into()], SINGLE.to_owned())
                );
            }
        }
    }
    assert!(killed > 20, "{killed}");
}

/// Errors that a root process can only be given by injection.
#[test]
fn failing_system_calls_are_named() {
    let check = |inject: &str, expected: Option<&str>| {
        let node = Node::new();
        node.write("10-podnet.conflist", BRIDGE);
        let call = inject.split(':').next().unwrap();
        let arguments = ["-e", &format!("trace={call}"), "-e", &format!("inject={inject}")];
        let (report, _) = strace("install", &node, &arguments);
        let report = report.unwrap();
        match expected {
            Some(expected) => {
                assert!(report.contains(expected), "{inject}: {report}");
                assert_eq!(node.read("10-podnet.conflist"), BRIDGE);
            }
            None => assert_eq!((report.as_str(), ours(&node.read("10-podnet.conflist"))), ("", 1)),
        }
        assert!(node.names().iter().all(|name| !name.contains(".tmp.")), "{:?}", node.names());
    };
    // The executable, our copy of the primary, the primary: each is synced, renamed, and its directory synced.
    check("fsync:error=EIO:when=1", Some("opt/cni/bin/istio-cni.tmp."));
    check("fsync:error=EIO:when=3", Some("Input/output error"));
    check("fsync:error=EIO:when=5", Some("10-podnet.conflist.tmp."));
    check("rename:error=EACCES:when=1", Some("Permission denied"));
    check("rename:error=EACCES:when=3", Some("rename "));
    check("fchmod:error=EPERM:when=1", Some("opt/cni/bin"));
    // Without the right to give files away they are simply ours.
    check("fchown:error=EPERM", None);
}

#[test]
fn the_owner_is_kept_where_that_is_allowed() {
    let node = Node::new();
    node.write("10-podnet.conflist", BRIDGE);
    let path = node.net("10-podnet.conflist");
    std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
    strace("install", &node, &["-e", "trace=fchown", "-e", "inject=fchown:error=EPERM"]);
    assert_eq!((access(&path).1, access(&path).2), (0, 0));
    assert_eq!(ours(&node.read("10-podnet.conflist")), 1);
}
