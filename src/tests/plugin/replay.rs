//! Every recorded call of real runtimes (`test-fixtures/cni/recorded-calls.jsonl`), with its own environment and
//! standard input; only the run dir and the namespace are the test's.

use super::{Agent, Call, Node, Play, done};
use crate::support;
use crate::support::netns::PodNetns;
use ferrule::cni::conf::PodArgs;
use ferrule::http::server::Response;
use serde_json::{Value, json};
use std::path::Path;

struct Recorded {
    what: String,
    verb: String,
    pod: PodArgs,
    version: String,
    prev_result: Option<String>,
    call: Call,
}

fn recorded(run_dir: &Path, netns: &str) -> Vec<Recorded> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/test-fixtures/cni/recorded-calls.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let calls: Vec<Recorded> = text
        .lines()
        .enumerate()
        .map(|(number, line)| {
            let recorded: Value = serde_json::from_str(line).unwrap();
            let verb = recorded["verb"].as_str().unwrap().to_owned();
            let mut stdin = recorded["stdin"].clone();
            stdin["cni_agent_run_dir"] = run_dir.to_str().unwrap().into();
            let mut call = Call::new(&verb, &stdin.to_string());
            for (name, value) in recorded["env"].as_object().unwrap() {
                let value = value.as_str().unwrap();
                let a_path = name == "CNI_NETNS" && value.starts_with('/');
                call = call.env(name, if a_path { netns } else { value });
            }
            Recorded {
                what: format!("call {} ({} {} {verb})", number + 1, recorded["runtime"], recorded["scenario"]),
                version: stdin["cniVersion"].as_str().unwrap().to_owned(),
                prev_result: stdin.get("prevResult").map(Value::to_string),
                pod: PodArgs::parse(recorded["env"]["CNI_ARGS"].as_str().unwrap()),
                verb,
                call,
            }
        })
        .collect();
    assert_eq!(calls.len(), 441);
    calls
}

/// Answers every verb but ADD with success.
fn agent(node: &Node, add: impl Fn(usize) -> (u16, String) + Send + Sync + 'static) -> Agent {
    Agent::serve(node, "pluginevent.sock", move |seen, number| {
        let (status, body) = if seen.path == "/cmdadd" { add(number) } else { (200, "{}".to_owned()) };
        Play::Answer(Response::json(status, body))
    })
}

#[test]
fn with_an_agent_every_call_has_its_result() {
    let node = Node::new();
    let agent = agent(&node, |number| (200, done(["ambient", "sidecar", "none"][number % 3])));
    for Recorded { what, verb, prev_result, call, .. } in recorded(node.run_dir(), &node.netns_path()) {
        let before = agent.seen().len();
        let ended = call.run();
        assert_eq!(ended.exit, 0, "{what}: {ended:?}");
        let news = agent.seen().split_off(before);
        let paths: Vec<&str> = news.iter().map(|seen| seen.path.as_str()).collect();
        match verb.as_str() {
            "ADD" => {
                assert_eq!(Some(&ended.stdout), prev_result.as_ref(), "{what}");
                assert_eq!(paths, ["/cmdadd"], "{what}");
                assert_eq!(news[0].netns, [node.netns_id()], "{what}");
                assert!(!news[0].body["IPs"].as_array().unwrap().is_empty(), "{what}: {:?}", news[0]);
                assert_eq!(news[0].body["Decide"], true, "{what}");
            }
            "VERSION" => {
                let answer: Value = serde_json::from_str(&ended.stdout).unwrap();
                assert_eq!(answer["supportedVersions"].as_array().unwrap().len(), 7, "{what}");
            }
            verb => {
                assert_eq!(ended.stdout, "", "{what}");
                let expected: &[&str] = match verb {
                    "DEL" => &["/cmddel"],
                    "CHECK" => &["/cmdcheck"],
                    "GC" => &["/gc"],
                    _ => &[],
                };
                assert_eq!(paths, expected, "{what}");
            }
        }
    }
}

#[test]
fn with_an_agent_that_refuses_only_add_fails() {
    let node = Node::new();
    let _agent = agent(&node, |_| (500, r#"{"code":101,"message":"rules of pod: no iptables","details":"d"}"#.into()));
    for Recorded { what, verb, version, call, .. } in recorded(node.run_dir(), &node.netns_path()) {
        let ended = call.run();
        if verb == "ADD" {
            assert_eq!(ended.error(&version), (101, "rules of pod: no iptables".to_owned()), "{what}");
        } else {
            assert_eq!(ended.exit, 0, "{what}: {ended:?}");
        }
    }
}

#[test]
fn without_an_agent_only_add_fails_and_says_what_to_do() {
    let node = Node::new();
    // Every ADD waits for the agent for a while: all at once.
    std::thread::scope(|scope| {
        for Recorded { what, verb, version, call, .. } in recorded(node.run_dir(), &node.netns_path()) {
            if verb != "ADD" {
                assert_eq!(call.run().exit, 0, "{what}");
                continue;
            }
            let node = &node;
            scope.spawn(move || {
                let (code, message) = call.run().error(&version);
                assert_eq!(code, 11, "{what}");
                let expected = format!("node agent not ready ({}: no such file or directory); is the", node.socket());
                assert!(message.starts_with(&expected), "{what}: {message}");
            });
        }
    });
}

#[test]
fn the_real_agent_lets_pods_outside_the_mesh_pass_and_holds_back_those_it_does_not_know() {
    let node = support::node::Node::new();
    let netns = PodNetns::new();
    let calls = recorded(&node.run(), netns.path().to_str().unwrap());
    let unknown = |pod: &PodArgs| ["f1", "rst"].contains(&pod.name.as_str());
    for Recorded { pod, .. } in calls.iter().filter(|call| !call.pod.name.is_empty() && !unknown(&call.pod)) {
        let namespace = if pod.namespace.is_empty() { "default" } else { &pod.namespace };
        let metadata = json!({"name": pod.name, "namespace": namespace, "uid": pod.uid});
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}, "status": {}});
        node.write_pod(&format!("{namespace}-{}.json", pod.name), &object.to_string());
    }
    let _agent = node.start_agent(&[]);
    for Recorded { what, verb, pod, version, prev_result, call } in calls {
        let ended = call.run();
        if verb == "ADD" && unknown(&pod) {
            assert_eq!(ended.error(&version).0, 11, "{what}");
            continue;
        }
        assert_eq!(ended.exit, 0, "{what}: {ended:?}");
        if verb == "ADD" {
            assert_eq!(Some(ended.stdout), prev_result, "{what}");
        }
    }
}
