//! Bad input from either side: the runtime's, cut and scrambled, and the agent's.

use super::{Agent, Node, Play, done};
use ferrule::cni::plugin::{Environment, run};
use serde_json::{Value, json};

/// The plugin inside this process: for thousands of inputs.
fn in_process(node: &Node, command: &str, stdin: &[u8]) -> (u8, String) {
    let environment = Environment {
        command: Some(command.to_owned()),
        container_id: "c1".into(),
        netns: node.netns_path(),
        interface: "eth0".into(),
        args: "K8S_POD_NAME=web;K8S_POD_NAMESPACE=ns".into(),
    };
    let mut stdout = Vec::new();
    let exit = run(&environment, ferrule::cli::plugin::DOORS, &mut &*stdin, &mut stdout);
    (exit, String::from_utf8(stdout).unwrap())
}

#[test]
fn input_cut_at_any_byte_is_code_6() {
    let node = Node::new();
    let agent = Agent::answering(&node, 200, &done("none"));
    let stdin = node.conf("1.1.0").to_string();
    for end in 0..stdin.len() {
        let cut = &stdin.as_bytes()[..end];
        for command in ["ADD", "CHECK", "GC", "STATUS"] {
            let (exit, stdout) = in_process(&node, command, cut);
            let error: Value = serde_json::from_str(&stdout).unwrap();
            assert_eq!((exit, &error["code"]), (1, &json!(6)), "{command} cut at {end}");
        }
        assert_eq!(in_process(&node, "DEL", cut), (0, String::new()), "cut at {end}");
    }
    assert!(agent.seen().is_empty());
    // The executable does the same.
    for end in (0..stdin.len()).step_by(41) {
        assert_eq!(node.call("ADD", "1.1.0").stdin(&stdin[..end]).run().error("1.1.0").0, 6);
        assert_eq!(node.call("DEL", "1.1.0").stdin(&stdin[..end]).run().ok(), "");
    }
}

#[test]
fn garbage_in_any_field_is_an_answer() {
    let node = Node::new();
    let _agent = Agent::answering(&node, 200, &done("none"));
    let conf = node.conf("1.0.0");
    let keys = conf.as_object().unwrap().keys().cloned().chain(["status_gate".into(), "kubernetes".into()]);
    for key in keys {
        for garbage in
            [json!(null), json!(-1), json!(1e300), json!("\u{0}\u{ffff}"), json!([[]]), json!({"": {}}), json!(true)]
        {
            let mut conf = conf.clone();
            conf[&key] = garbage.clone();
            // Elsewhere than at the run dir there is no agent, which ADD would wait for.
            let commands: &[&str] = if key == "cni_agent_run_dir" { &["DEL"] } else { &["ADD", "DEL", "CHECK"] };
            for command in commands {
                let (exit, stdout) = in_process(&node, command, conf.to_string().as_bytes());
                match (*command, exit) {
                    ("DEL", _) => assert_eq!((exit, stdout.as_str()), (0, ""), "{key} {garbage}"),
                    ("CHECK", 0) => assert_eq!(stdout, "", "{key} {garbage}"),
                    (_, 0) => assert!(serde_json::from_str::<Value>(&stdout).unwrap().is_object(), "{key} {garbage}"),
                    _ => {
                        let error: Value = serde_json::from_str(&stdout).unwrap();
                        assert!(matches!(error["code"].as_u64(), Some(1 | 7)), "{key} {garbage}: {stdout}");
                    }
                }
            }
        }
    }
}

#[test]
fn input_too_long_or_too_deep_is_refused() {
    let node = Node::new();
    let long = format!(r#"{{"x":"{}"}}"#, "a".repeat(17 << 20));
    let (exit, stdout) = in_process(&node, "ADD", long.as_bytes());
    assert!(exit == 1 && stdout.contains("longer than"), "{stdout}");
    for deep in ["[".repeat(1 << 20), format!(r#"{{"prevResult":{}"#, r#"{"a":"#.repeat(1 << 20))] {
        let (exit, _) = in_process(&node, "ADD", deep.as_bytes());
        assert_eq!(exit, 1);
    }
}

#[test]
fn an_answer_cut_at_any_byte_is_asked_for_again() {
    let answer = done("ambient");
    let whole = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{answer}", answer.len());
    let chunked =
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{answer}\r\n0\r\n\r\n", answer.len());
    std::thread::scope(|scope| {
        for whole in [whole, chunked] {
            for first in 0..8 {
                let whole = whole.clone().into_bytes();
                scope.spawn(move || {
                    for end in (first..whole.len()).step_by(8) {
                        let node = Node::new();
                        let (cut, rest) = (whole[..end].to_vec(), whole.clone());
                        let agent = Agent::serve(&node, "pluginevent.sock", move |_, number| {
                            Play::Bytes(if number == 0 { cut.clone() } else { rest.clone() })
                        });
                        let (exit, _) = in_process(&node, "ADD", node.conf("1.0.0").to_string().as_bytes());
                        assert_eq!((exit, agent.seen().len()), (0, 2), "cut at {end}");
                    }
                });
            }
        }
    });
}

#[test]
fn an_agent_that_talks_nonsense_is_never_believed() {
    let big = format!("HTTP/1.1 200 OK\r\n\r\n{}", "a".repeat(2 << 20));
    let nonsense: [&[u8]; 8] = [
        b"",
        b"\0\0\0\0",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n",
        big.as_bytes(),
    ];
    std::thread::scope(|scope| {
        for bytes in nonsense {
            scope.spawn(move || {
                let node = Node::new();
                let owned = bytes.to_vec();
                let _agent = Agent::serve(&node, "pluginevent.sock", move |_, _| Play::Bytes(owned.clone()));
                let ended = node.call("ADD", "0.4.0").run();
                assert_eq!(ended.error("0.4.0").0, 11, "{ended:?}");
                assert_eq!(node.call("DEL", "0.4.0").run().ok(), "");
                assert_eq!(node.call("CHECK", "0.4.0").run().ok(), "");
            });
        }
    });
}
