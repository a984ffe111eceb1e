//! What concerns a whole process: its user, its descriptors. Each body runs in a process of its own.

use super::*;
use ferrule::sys::fd::count_open;
use std::process::Command;

/// Names the test whose body runs in this process.
const ALONE: &str = "FERRULE_TEST_ALONE";
/// The agent's socket, for a test that is started by another user.
const SOCKET: &str = "FERRULE_TEST_SOCKET";

/// Runs `body` in a process of its own, started through `launcher`: the process is this program with this one test.
#[track_caller]
fn alone(test: &str, launcher: &[&str], socket: Option<&std::path::Path>, body: fn()) {
    if std::env::var_os(ALONE).is_some_and(|name| name == test) {
        return body();
    }
    let exe = std::env::current_exe().unwrap();
    let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let mut command = match launcher {
        [] => Command::new(&exe),
        [program, args @ ..] => {
            let mut command = Command::new(program);
            command.args(args).arg(&exe);
            command
        }
    };
    command.args([&name, "--exact", "--nocapture", "--test-threads=1"]).env(ALONE, test);
    if let Some(socket) = socket {
        command.env(SOCKET, socket);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{test}: {}\n{text}", output.status);
}

#[test]
fn only_root_is_served() {
    // The one that is started has no agent of its own.
    if std::env::var_os(SOCKET).is_some() {
        return hello_as_another_user();
    }
    let agent = Agent::start(LONG);
    let other_user = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--inh-caps=+dac_override",
        "--ambient-caps=+dac_override",
    ];
    alone("only_root_is_served", &other_user, Some(&agent.socket()), hello_as_another_user);
    agent.no_notice();
    let (raw, id) = agent.raw_ready();
    agent.serves(&raw, id);
}

fn hello_as_another_user() {
    assert_eq!(nix::unistd::geteuid().as_raw(), 65534);
    let socket = PathBuf::from(std::env::var_os(SOCKET).unwrap());
    let raw = Raw(Connection::connect(&socket, SocketType::SeqPacket, LONG).unwrap());
    // The peer may be closed before this is sent.
    let _ = send_with_fd(raw.0.as_fd(), HELLO, None);
    raw.is_closed();
}

#[test]
fn no_descriptor_leaks() {
    alone("no_descriptor_leaks", &[], None, descriptors_as_before);
}

fn descriptors_as_before() {
    let before = count_open().unwrap();
    let agent = Agent::start(LONG);
    let serving = count_open().unwrap();
    let netns = pod_netns();
    let with_netns = count_open().unwrap();
    for round in 0..6 {
        let (raw, id) = agent.raw();
        agent.server.snapshot(id, vec![add("a", &netns), add("b", &netns)]);
        drop(raw.request());
        // Ends in the middle, in every way.
        match round % 3 {
            0 => drop(raw),
            1 => raw.send_with(ACK, Some(netns.as_fd())),
            _ => raw.send(b"\xff\xff"),
        }
        agent.disconnected(id);
    }
    eventually("descriptors are as before the connections", || count_open().unwrap() == with_netns);
    drop(netns);
    assert_eq!(count_open().unwrap(), serving, "no request is kept");
    let Agent { server, notices, dir } = agent;
    server.stop();
    drop((notices, dir));
    eventually("descriptors are as before the server", || count_open().unwrap() == before);
}

#[test]
fn recovers_from_a_lack_of_descriptors() {
    let few = ["sh", "-c", "ulimit -n 64; exec \"$@\"", "sh"];
    alone("recovers_from_a_lack_of_descriptors", &few, None, no_descriptor_left);
}

fn no_descriptor_left() {
    let agent = Agent::start(LONG);
    let (good, good_id) = agent.raw_ready();
    let mut fill = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        fill.push(file);
    }
    fill.pop();
    let raw = Raw::connect(&agent);
    raw.send(HELLO);
    agent.no_notice();
    agent.serves(&good, good_id);
    fill.clear();
    agent.connected();
    agent.serves(&good, good_id);
}
