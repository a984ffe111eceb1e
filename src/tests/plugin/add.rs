//! ADD: whom it asks, what it takes for an answer, and how long it waits.

use super::{Agent, Node, Play, done};
use crate::support::FERRULE;
use crate::support::program::finish;
use ferrule::http::server::Response;
use serde_json::{Value, json};
use std::time::Duration;

#[test]
fn the_question_carries_everything_and_the_namespace() {
    let node = Node::new();
    let agent = Agent::answering(&node, 200, &done("ambient"));
    let ended = node.call("ADD", "1.0.0").run();
    assert_eq!(ended.ok(), r#"{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}],"own":1.5}"#);
    let seen = agent.seen();
    assert_eq!((seen.len(), &seen[0].netns), (1, &vec![node.netns_id()]));
    let expected = json!({
        "Netns": node.netns_path(), "PodName": "web", "PodNamespace": "ns",
        "IPs": [{"Interface": null, "Address": {"IP": "10.0.0.2", "Mask": "////AA=="}, "Gateway": ""}],
        "PodUID": "u1", "ContainerID": "c1", "IfName": "eth0", "Decide": true,
    });
    assert_eq!(seen[0].body, expected);
}

#[test]
fn pods_that_are_none_of_ours_pass_without_a_question() {
    let node = Node::new();
    let agent = Agent::answering(&node, 500, "{}");
    let check = |args: &str| {
        // No namespace either: it is not opened.
        let ended = node.call("ADD", "0.4.0").env("CNI_ARGS", args).env("CNI_NETNS", "/nonexistent").run();
        assert_eq!(ended.ok(), node.conf("0.4.0")["prevResult"].to_string(), "{args}");
        assert_eq!(ended.stderr, "", "{args}");
    };
    check("");
    check("IgnoreUnknown=1");
    check("K8S_POD_NAMESPACE=ns;K8S_POD_NAME=");
    check("K8S_POD_NAME=web;K8S_POD_NAMESPACE=kube-system");
    check("K8S_POD_NAME=istio-cni-node-x7k2p;K8S_POD_NAMESPACE=istio-system");
    assert!(agent.seen().is_empty());
    let names: Vec<_> = std::fs::read_dir(node.run_dir()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["pluginevent.sock"], "no log file for nothing");
}

#[test]
fn the_agents_own_pod_needs_neither_run_dir_nor_log() {
    let node = Node::new();
    let own = "K8S_POD_NAME=istio-cni-node-x7k2p;K8S_POD_NAMESPACE=istio-system";
    let call = node.call("ADD", "0.4.0").env("CNI_ARGS", own).conf("cni_agent_run_dir", "/nonexistent/dir".into());
    assert!(call.run().took < Duration::from_secs(2));
    call.run().ok();
    // Even at the chattiest level nothing of the run dir is touched.
    node.call("ADD", "0.4.0").env("CNI_ARGS", own).conf("plugin_log_level", "debug".into()).run().ok();
    assert_eq!(std::fs::read_dir(node.run_dir()).unwrap().count(), 0);
    // The name alone is not enough.
    let agent = Agent::answering(&node, 500, r#"{"code":100,"message":"asked"}"#);
    for args in ["K8S_POD_NAME=istio-cni-node-x;K8S_POD_NAMESPACE=other", "K8S_POD_NAME=istio-cni-node-x"] {
        assert_eq!(node.call("ADD", "0.4.0").env("CNI_ARGS", args).run().error("0.4.0"), (100, "asked".into()));
    }
    let nameless = node.call("ADD", "0.4.0").env("CNI_ARGS", "K8S_POD_NAME=istio-cni-node-x");
    nameless.conf("pod_namespace", Value::Null).run().error("0.4.0");
    assert_eq!(agent.seen().len(), 3);
}

#[test]
fn without_prev_result_there_is_an_empty_result_and_the_pod_is_asked_about() {
    let node = Node::new();
    let agent = Agent::answering(&node, 200, &done("ambient"));
    let ended = node.call("ADD", "1.1.0").conf("prevResult", Value::Null).run();
    assert_eq!(ended.ok(), r#"{"cniVersion":"1.1.0","dns":{}}"#);
    assert_eq!(agent.seen()[0].body["IPs"], Value::Null);
}

#[test]
fn answers_of_another_make_are_never_taken_for_a_pass() {
    for (status, body, part) in [
        (200, "", "answered 200"),
        (500, "failed to add pod\nmore", "answered 500 \"failed to add pod\""),
        (404, "404 page not found\n", "answered 404"),
        (200, r#"{"action":"maybe","reason":""}"#, "answered 200"),
        (400, "\u{1b}[31m", "answered 400"),
    ] {
        let node = Node::new();
        let agent = Agent::answering(&node, status, body);
        let ended = node.call("ADD", "0.3.1").run();
        let (code, message) = ended.error("0.3.1");
        assert_eq!((code, agent.seen().len()), (11, 1), "{status} {body:?}");
        assert!(message.starts_with("node agent not ready (") && message.contains(part), "{message}");
        assert!(!message.contains('\n'), "{message}");
        assert!(ended.took < Duration::from_secs(5), "{ended:?}");
    }
}

#[test]
fn an_agent_that_starts_meanwhile_is_waited_for() {
    let node = Node::new();
    let call = node.call("ADD", "1.0.0");
    std::thread::scope(|scope| {
        let adding = scope.spawn(move || call.run());
        std::thread::sleep(Duration::from_millis(300));
        let agent = Agent::serve(&node, "pluginevent.sock", |_, number| match number {
            0 => Play::Answer(Response::text(503, "starting\n")),
            // Killed in the middle.
            1 => Play::Bytes(vec![]),
            2 => Play::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{\"action\":\"none\"".to_vec()),
            _ => Play::Answer(Response::json(200, done("none"))),
        });
        adding.join().unwrap().ok();
        let seen = agent.seen();
        assert_eq!(seen.len(), 4);
        assert!(seen.iter().all(|seen| seen.netns == [node.netns_id()]), "every question carries the namespace");
    });
}

#[test]
fn a_silent_agent_and_one_that_never_starts_end_within_30_s() {
    let (silent, starting) = (Node::new(), Node::new());
    let _agents = [
        Agent::serve(&silent, "pluginevent.sock", |_, _| Play::Silence),
        Agent::answering(&starting, 503, "starting: waiting for the list of pods\n"),
    ];
    std::thread::scope(|scope| {
        for (node, part) in [(&silent, "no answer in time"), (&starting, "waiting for the list of pods")] {
            scope.spawn(move || {
                let ended = node.call("ADD", "0.4.0").run();
                let (code, message) = ended.error("0.4.0");
                assert!(code == 11 && message.contains(part), "{message}");
                assert!(ended.took < Duration::from_secs(30), "{ended:?}");
            });
        }
    });
}

#[test]
fn a_namespace_that_cannot_be_had_is_named() {
    let node = Node::new();
    let agent = Agent::answering(&node, 200, &done("ambient"));
    let file = node.run_dir().join("file");
    std::fs::write(&file, b"").unwrap();
    for path in ["/nonexistent/netns", file.to_str().unwrap(), "/proc/self/ns/mnt", "\n\u{7f}"] {
        let (code, message) = node.call("ADD", "0.4.0").env("CNI_NETNS", path).run().error("0.4.0");
        assert_eq!(code, 4, "{message}");
        let shown = path.replace('\n', "\\n").replace('\u{7f}', "\\u{7f}");
        assert!(message.contains("CNI_NETNS") && message.contains(&shown), "{message}");
    }
    assert!(agent.seen().is_empty());
}

#[test]
fn a_run_with_nothing_to_do_touches_nothing() {
    let node = Node::new();
    let trace = node.run_dir().join("trace");
    let call = node.call("ADD", "1.0.0").env("CNI_ARGS", "K8S_POD_NAME=web;K8S_POD_NAMESPACE=kube-system");
    let mut command = std::process::Command::new("strace");
    command.args(["-f", "-o", trace.to_str().unwrap(), FERRULE]).env_clear().envs(call.variables);
    finish(&mut command, &call.stdin);
    let trace = std::fs::read_to_string(&trace).unwrap();
    // From its own input on: what comes before is the loader and Rust's own start.
    let (_, ours) = trace.split_once(" read(0, ").expect("it reads its standard input");
    // A line is `PID  call(…`, the number padded.
    let call_of = |line: &'_ str| Some(line.split_once(' ')?.1.split_once('(')?.0.trim().to_owned());
    let calls: Vec<String> = ours.lines().skip(1).filter_map(call_of).collect();
    assert!(calls.iter().any(|call| call == "write"), "{trace}");
    for call in calls {
        let known = ["read", "write", "brk", "mmap", "munmap", "mremap", "sigaltstack", "exit_group"];
        assert!(known.contains(&call.as_str()), "{call}: {ours}");
    }
}
