//! The plugin's log: standard error, the rolling file, the agent's `log.sock`.

use super::{Agent, Node, Play, done};
use crate::support::eventually;
use ferrule::http::server::Response;
use ferrule::sys::file::Mode;
use ferrule::sys::logfile;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line:?}"))).collect()
}

#[test]
fn a_decision_is_one_line_in_three_places() {
    let node = Node::new();
    let _agent = Agent::answering(&node, 200, &done("ambient"));
    let sink = Agent::serve(&node, "log.sock", |_, _| Play::Answer(Response::text(200, "")));
    let ended = node.call("ADD", "1.0.0").run();
    ended.ok();
    let in_file = lines(&node.run_dir().join("istio-cni.log"));
    assert_eq!(in_file.len(), 1, "{in_file:?}");
    let line = &in_file[0];
    assert_eq!(
        (&line["level"], &line["scope"], &line["pod"]),
        (&"info".into(), &"cni-plugin".into(), &"ns/web".into())
    );
    assert!(line["msg"].is_string() && line["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
    assert_eq!(&serde_json::from_str::<Value>(&ended.stderr).unwrap(), line);
    eventually("the agent has the line", || !sink.seen().is_empty());
    let seen = sink.seen();
    assert_eq!(seen[0].path, "/log");
    assert_eq!(seen[0].body, Value::from(vec![line.to_string()]));
}

#[test]
fn only_lines_of_the_level_are_written() {
    let node = Node::new();
    let _agent = Agent::answering(&node, 200, &done("ambient"));
    for level in ["warn", "none", "error"] {
        let ended = node.call("ADD", "1.0.0").conf("plugin_log_level", level.into()).run();
        ended.ok();
        assert_eq!(ended.stderr, "", "{level}");
    }
    assert!(!node.run_dir().join("istio-cni.log").exists());
    let other = node.call("DEL", "1.0.0").conf("plugin_log_level", "debug".into());
    assert!(other.run().stderr.contains("debug"));
}

#[test]
fn a_failure_is_an_error_line_even_without_a_run_dir() {
    let node = Node::new();
    let ended = node.call("ADD", "1.0.0").stdin("{").run();
    assert_eq!(ended.error("1.1.0").0, 6);
    assert_eq!(serde_json::from_str::<Value>(&ended.stderr).unwrap()["level"], "error");
}

#[test]
fn a_log_that_cannot_be_written_delays_nothing() {
    let node = Node::new();
    let _agent = Agent::answering(&node, 200, &done("ambient"));
    // A log file that is a directory, and a log socket whose server never reads.
    std::fs::create_dir(node.run_dir().join("istio-cni.log")).unwrap();
    let _deaf = std::os::unix::net::UnixListener::bind(node.run_dir().join("log.sock")).unwrap();
    let ended = node.call("ADD", "1.0.0").run();
    ended.ok();
    assert!(ended.took < Duration::from_secs(2), "{ended:?}");
}

#[test]
fn plugins_at_once_lose_no_line_while_the_file_rolls_over() {
    let node = Node::new();
    let _agent = Agent::answering(&node, 200, &done("none"));
    let (log, old) = (node.run_dir().join("istio-cni.log"), node.run_dir().join("istio-cni.log.1"));
    // Just below its limit.
    let filler = format!("{{\"filler\":\"{}\"}}\n", "x".repeat(1000 - 14));
    std::fs::write(&log, filler.repeat((10 << 20) / 1000 - 1)).unwrap();
    std::thread::scope(|scope| {
        for worker in 0..16 {
            let node = &node;
            scope.spawn(move || {
                for n in 0..4 {
                    let args = format!("K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p{worker}x{n}");
                    node.call("ADD", "1.0.0").env("CNI_ARGS", &args).run().ok();
                }
            });
        }
    });
    let mut pods: Vec<String> =
        [&log, &old].iter().flat_map(|path| lines(path)).filter_map(|l| Some(l["pod"].as_str()?.to_owned())).collect();
    pods.sort();
    let mut expected: Vec<String> = (0..16).flat_map(|w| (0..4).map(move |n| format!("ns/p{w}x{n}"))).collect();
    expected.sort();
    assert_eq!(pods, expected);
    assert!(std::fs::metadata(&log).unwrap().len() < 100_000 && std::fs::metadata(&old).unwrap().len() > 10_000_000);
}

#[test]
fn writers_at_once_keep_their_lines_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.log");
    let line = |worker: usize, n: usize| format!("{worker} {n} {}\n", "y".repeat(worker * 37 + n % 91));
    let total: usize = (0..8).map(|w| (0..500).map(|n| line(w, n).len()).sum::<usize>()).sum();
    // It rolls over exactly once.
    let limit = total as u64 * 2 / 3;
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let path = &path;
            scope.spawn(move || {
                for n in 0..500 {
                    logfile::append(path, line(worker, n).as_bytes(), limit, Mode(0o600)).unwrap();
                }
            });
        }
    });
    let mut counts: HashMap<String, usize> = HashMap::new();
    for name in ["x.log", "x.log.1"] {
        for line in std::fs::read_to_string(dir.path().join(name)).unwrap().lines() {
            *counts.entry(format!("{line}\n")).or_default() += 1;
        }
    }
    for (worker, n) in (0..8).flat_map(|w| (0..500).map(move |n| (w, n))) {
        assert_eq!(counts.remove(&line(worker, n)), Some(1), "line {n} of {worker}");
    }
    assert!(counts.is_empty(), "{counts:?}");
}

#[test]
fn writers_that_find_the_file_full_at_once_move_it_only_once() {
    for round in 0..100 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        // One more line is too much for this file, and just fits eight times into the next.
        let full = "f".repeat(8 * 5 - 2);
        std::fs::write(&path, format!("{full}\n")).unwrap();
        let start = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    logfile::append(&path, b"line\n", 8 * 5, Mode(0o600)).unwrap();
                });
            }
        });
        let all = [&path, &dir.path().join("x.log.1")].map(|path| std::fs::read_to_string(path).unwrap_or_default());
        let mut all: Vec<&str> = all.iter().flat_map(|text| text.lines()).collect();
        all.sort_unstable();
        assert_eq!(all, [&[full.as_str()][..], &["line"; 8]].concat(), "round {round}");
    }
}
