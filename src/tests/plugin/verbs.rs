//! The verbs besides ADD, and what every verb wants of its environment.

use super::{Agent, Call, Node, Play};
use crate::support::eventually;
use serde_json::{Value, json};
use std::time::Duration;

#[test]
fn without_a_command_it_says_what_it_is() {
    let node = Node::new();
    let ended = node.call("ADD", "1.0.0").without("CNI_COMMAND").stdin("").run();
    assert_eq!(ended.ok(), "");
    assert!(ended.stderr.contains("0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"), "{}", ended.stderr);
}

#[test]
fn version_answers_whatever_else_is_passed() {
    let expected =
        r#"{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}"#;
    for stdin in ["", "garbage", r#"{"cniVersion":"9.9.9"}"#, r#"{"cniVersion":"0.1.0"}"#] {
        let call = Call::new("VERSION", stdin);
        assert_eq!(call.run().ok(), expected, "{stdin}");
        let call = call.env("CNI_NETNS", "dummy").env("CNI_IFNAME", "dummy").env("CNI_PATH", "dummy");
        assert_eq!(call.run().ok(), expected, "{stdin}");
    }
}

#[test]
fn an_unknown_command_is_an_error_that_names_it() {
    for command in ["add", "UPDATE", "ADD "] {
        let (code, message) = Call::new(command, "{}").run().error("1.1.0");
        assert!(code == 4 && message.contains(&format!("{command:?}")), "{message}");
    }
}

#[test]
fn missing_variables_are_named() {
    let node = Node::new();
    for command in ["ADD", "CHECK"] {
        for name in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"] {
            for call in [node.call(command, "1.0.0").without(name), node.call(command, "1.0.0").env(name, "")] {
                let (code, message) = call.run().error("1.1.0");
                assert!(code == 4 && message.ends_with(&format!("missing: {name}")), "{message}");
            }
        }
    }
    let (_, message) = Call::new("ADD", "").run().error("1.1.0");
    assert!(message.ends_with("missing: CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME"), "{message}");
}

#[test]
fn verbs_younger_than_the_configuration_are_code_1() {
    let node = Node::new();
    for (command, first) in [("CHECK", 4), ("GC", 6), ("STATUS", 6)] {
        for (number, version) in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"].iter().enumerate() {
            let ended = node.call(command, version).run();
            if number < first {
                assert_eq!(ended.error(version).0, 1, "{command} {version}");
            } else {
                assert_eq!(ended.ok(), "", "{command} {version}");
            }
        }
    }
    for command in ["ADD", "CHECK", "GC", "STATUS"] {
        let ended = node.call(command, "1.2.0").run();
        assert_eq!(ended.error("1.1.0").0, 1, "{command}");
        assert!(ended.stdout.contains("1.2.0"), "{ended:?}");
    }
}

#[test]
fn del_succeeds_whatever_is_missing() {
    let node = Node::new();
    let del = node.call("DEL", "0.4.0");
    let mut calls = vec![del.clone(), del.clone().env("CNI_NETNS", ""), del.clone().conf("prevResult", Value::Null)];
    for name in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH", "CNI_ARGS"] {
        calls.push(del.clone().without(name));
    }
    for stdin in ["", "{", "[]", "\0\0", r#"{"cniVersion":"7.0.0"}"#, r#"{"exclude_namespaces":7}"#] {
        calls.push(del.clone().stdin(stdin));
    }
    calls.push(del.clone().conf("cni_agent_run_dir", "/nonexistent".into()));
    calls.push(del.clone().conf("cni_agent_run_dir", "x".repeat(300).into()));
    calls.push(del.clone().conf("prevResult", json!([1])));
    for call in calls {
        let ended = call.run();
        assert_eq!((ended.exit, ended.stdout.as_str()), (0, ""), "{ended:?}");
        assert!(ended.took < Duration::from_secs(2), "{ended:?}");
    }
}

#[test]
fn del_tells_the_agent_and_does_not_wait_for_it() {
    let node = Node::new();
    {
        let agent = Agent::answering(&node, 200, "{}");
        node.call("DEL", "0.4.0").env("CNI_NETNS", "").run().ok();
        let seen = agent.seen();
        let expected = json!({"PodName": "web", "PodNamespace": "ns", "PodUID": "u1", "ContainerID": "c1", "IfName": "eth0", "Netns": ""});
        assert_eq!((seen[0].path.as_str(), &seen[0].body), ("/cmddel", &expected));
    }
    {
        let _agent = Agent::answering(&node, 500, r#"{"code":100,"message":"no"}"#);
        assert_eq!(node.call("DEL", "0.4.0").run().ok(), "");
    }
    let _agent = Agent::serve(&node, "pluginevent.sock", |_, _| Play::Silence);
    let ended = node.call("DEL", "0.4.0").run();
    assert_eq!(ended.ok(), "");
    assert!(ended.took < Duration::from_secs(3), "{ended:?}");
}

#[test]
fn check_fails_only_on_the_agents_word() {
    let node = Node::new();
    let check = |status: u16, body: &str| {
        let agent = Agent::answering(&node, status, body);
        let ended = node.call("CHECK", "1.0.0").run();
        assert_eq!(agent.seen()[0].path, "/cmdcheck");
        ended
    };
    assert_eq!(check(200, "{}").ok(), "");
    let failed = check(500, r#"{"code":100,"message":"the pod's rules are not as they should be","details":"chain"}"#);
    assert_eq!(failed.error("1.0.0"), (100, "the pod's rules are not as they should be".into()));
    for (status, body) in [(503, r#"{"code":11,"message":"starting"}"#), (404, "404 page not found"), (500, "text")] {
        assert_eq!(check(status, body).ok(), "", "{status}");
    }
    assert_eq!(node.call("CHECK", "1.0.0").run().ok(), "", "no agent");
    let agent = Agent::answering(&node, 500, r#"{"code":100,"message":"asked"}"#);
    for args in ["", "K8S_POD_NAME=a;K8S_POD_NAMESPACE=kube-system"] {
        node.call("CHECK", "1.0.0").env("CNI_ARGS", args).run().ok();
    }
    assert!(agent.seen().is_empty());
}

#[test]
fn gc_passes_the_list_or_refuses_it() {
    let node = Node::new();
    let agent = Agent::answering(&node, 200, "{}");
    let gc = Call::new("GC", &node.conf("1.1.0").to_string()).env("CNI_PATH", "/opt/cni/bin");
    let key = "cni.dev/valid-attachments";
    let list = json!([{"containerID": "b", "ifname": "eth0"}, {"containerID": "a", "ifname": "eth0"}]);
    assert_eq!(gc.clone().conf(key, list.clone()).conf("cni.dev/attachments", list).run().ok(), "");
    gc.clone().conf(key, Value::Null).run().ok();
    gc.clone().run().ok();
    let lists: Vec<Value> = agent.seen().iter().map(|seen| seen.body["ContainerIDs"].clone()).collect();
    assert_eq!(lists, [json!(["a", "b"]), json!([]), json!([])]);
    // A list that cannot be read is not an empty one.
    for bad in [json!(7), json!([{}]), json!([null]), json!({"containerID": "a"})] {
        assert_eq!(gc.clone().conf(key, bad.clone()).run().error("1.1.0").0, 7, "{bad}");
    }
    assert_eq!(agent.seen().len(), 3);
    drop(agent);
    assert_eq!(gc.run().ok(), "", "no agent");
}

#[test]
fn status_fails_only_where_the_gate_is_on() {
    let node = Node::new();
    let status = Call::new("STATUS", &node.conf("1.1.0").to_string());
    let gated = status.clone().conf("status_gate", true.into());
    assert_eq!(status.run().ok(), "");
    // As after a reboot, before anything of ours has run.
    assert_eq!(status.clone().conf("cni_agent_run_dir", "/nowhere".into()).run().ok(), "");
    let (code, message) = gated.run().error("1.1.0");
    assert!(code == 50 && message.contains(&node.socket()), "{message}");
    let ambient = gated.clone().conf("ambient_enabled", true.into());
    let check = |call: &Call, health: &str, expected: Option<&str>| {
        let agent = Agent::answering(&node, 200, health);
        let ended = call.run();
        assert_eq!(agent.seen()[0].path, "/status");
        match expected {
            None => assert_eq!(ended.ok(), "", "{health}"),
            Some(part) => {
                let (code, message) = ended.error("1.1.0");
                assert!(code == 50 && message.contains(part), "{health}: {message}");
            }
        }
    };
    let ready = r#"{"ready":true,"reasons":[],"ztunnels":[{"connection":1}],"pods":[]}"#;
    let alone = r#"{"ready":true,"reasons":[],"ztunnels":[]}"#;
    check(&gated, ready, None);
    check(&ambient, ready, None);
    check(&gated, alone, None);
    check(&ambient, alone, Some("no ztunnel is connected"));
    let starting = r#"{"ready":false,"reasons":["starting: pods have not been read yet","two"],"ztunnels":[]}"#;
    check(&gated, starting, Some("pods have not been read yet"));
    check(&gated, "404 page not found", Some("404 page not found"));
    {
        let _agent = Agent::serve(&node, "pluginevent.sock", |_, _| Play::Silence);
        let ended = gated.run();
        assert_eq!(ended.error("1.1.0").0, 50);
        assert!(ended.took < Duration::from_secs(4), "{ended:?}");
    }
    assert_eq!(status.run().ok(), "");
}

#[test]
fn the_gate_asks_the_real_agent() {
    let node = crate::support::node::Node::new();
    let conf = json!({"cniVersion": "1.1.0", "name": "n", "type": "istio-cni", "cni_agent_run_dir": node.run(), "status_gate": true, "ambient_enabled": true});
    let status = Call::new("STATUS", &conf.to_string());
    assert_eq!(status.run().error("1.1.0").0, 50, "no agent");
    let chain = r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"}]}"#;
    std::fs::write(node.net_dir().join("10-net.conflist"), chain).unwrap();
    let primary = r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge"}]}"#;
    std::fs::write(node.net_dir().join("10-n.conflist"), primary).unwrap();
    let agent = node.start_agent(&[]);
    eventually("the agent answers", || agent.request("GET", "/readyz", "").is_ok());
    eventually("only ztunnel is missing", || {
        let (code, message) = status.run().error("1.1.0");
        code == 50 && message.contains("no ztunnel is connected")
    });
    status.clone().conf("ambient_enabled", false.into()).run().ok();
}
