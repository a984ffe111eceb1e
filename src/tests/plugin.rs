//! The plugin as a container runtime runs it: the real executable, a real network namespace, and an agent played by
//! the test on real sockets.

mod add;
mod garbage;
mod logs;
mod replay;
mod verbs;

use crate::support::netns::PodNetns;
use crate::support::program::ferrule_as;
use ferrule::http::server::{Request, Response, read_request, write_response};
use ferrule::sys::exchange::Exchange;
use ferrule::sys::netns::{Netns, NetnsId};
use ferrule::sys::unix::{Listener, SocketType};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A run dir and a pod's namespace.
struct Node {
    run: tempfile::TempDir,
    netns: PodNetns,
}

impl Node {
    fn new() -> Self {
        Node { run: tempfile::tempdir().unwrap(), netns: PodNetns::new() }
    }

    fn netns_path(&self) -> String {
        self.netns.path().to_str().unwrap().to_owned()
    }

    fn netns_id(&self) -> NetnsId {
        self.netns.netns().id()
    }

    fn run_dir(&self) -> &Path {
        self.run.path()
    }

    fn socket(&self) -> String {
        self.run.path().join("pluginevent.sock").display().to_string()
    }

    /// Our entry of the chain, with prevResult as a runtime fills it in.
    fn conf(&self, version: &str) -> Value {
        json!({
            "cniVersion": version,
            "name": "net",
            "type": "istio-cni",
            "cni_agent_run_dir": self.run_dir(),
            "exclude_namespaces": ["kube-system"],
            "pod_namespace": "istio-system",
            "prevResult": {"cniVersion": version, "ips": [{"address": "10.0.0.2/24"}], "own": 1.5},
        })
    }

    /// A call for pod `ns/web`.
    fn call(&self, command: &str, version: &str) -> Call {
        Call::new(command, &self.conf(version).to_string())
            .env("CNI_CONTAINERID", "c1")
            .env("CNI_NETNS", &self.netns_path())
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", "/opt/cni/bin")
            .env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;K8S_POD_UID=u1")
    }
}

/// One call of the plugin.
#[derive(Clone)]
struct Call {
    variables: Vec<(String, String)>,
    stdin: Vec<u8>,
}

/// How it ended.
#[derive(Debug)]
struct Ended {
    stdout: String,
    stderr: String,
    exit: i32,
    took: Duration,
}

impl Call {
    fn new(command: &str, stdin: &str) -> Self {
        Call { variables: vec![], stdin: stdin.into() }.env("CNI_COMMAND", command)
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.variables.retain(|(n, _)| n != name);
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.variables.retain(|(n, _)| n != name);
        self
    }

    fn stdin(mut self, stdin: impl Into<Vec<u8>>) -> Self {
        self.stdin = stdin.into();
        self
    }

    /// Changes one key of the configuration.
    fn conf(mut self, key: &str, value: Value) -> Self {
        let mut conf: Value = serde_json::from_slice(&self.stdin).unwrap();
        conf[key] = value;
        self.stdin = conf.to_string().into();
        self
    }

    fn run(&self) -> Ended {
        let start = Instant::now();
        let mut child = ferrule_as("/opt/cni/bin/istio-cni", &[])
            .envs(self.variables.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A plugin that does not read its input (VERSION) is fine.
        let _ = child.stdin.take().unwrap().write_all(&self.stdin);
        let output = child.wait_with_output().unwrap();
        Ended {
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
            exit: output.status.code().expect("ended by itself"),
            took: start.elapsed(),
        }
    }
}

impl Ended {
    /// The result of a call that succeeded.
    #[track_caller]
    fn ok(&self) -> &str {
        assert_eq!(self.exit, 0, "{self:?}");
        &self.stdout
    }

    /// Code and message of a call that failed as the CNI specification wants it.
    #[track_caller]
    fn error(&self, version: &str) -> (u64, String) {
        assert_eq!(self.exit, 1, "{self:?}");
        let error: Value = serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"));
        assert_eq!(error["cniVersion"], version, "{self:?}");
        assert!(error["details"].is_string(), "{self:?}");
        (error["code"].as_u64().unwrap(), error["msg"].as_str().unwrap().to_owned())
    }
}

/// What the agent saw of one request.
#[derive(Debug, Clone)]
struct Seen {
    path: String,
    body: Value,
    /// The namespaces that came along.
    netns: Vec<NetnsId>,
}

/// What the agent does with a request.
enum Play {
    Answer(Response),
    /// Raw bytes, then the end.
    Bytes(Vec<u8>),
    /// Nothing, until the plugin gives up or the agent ends.
    Silence,
}

/// An agent played by the test on one of the run dir's sockets.
struct Agent {
    seen: Arc<Mutex<Vec<Seen>>>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    /// `play` is handed the request and its number, from 0.
    fn serve(node: &Node, socket: &str, play: impl Fn(&Seen, usize) -> Play + Send + Sync + 'static) -> Self {
        let listener = Listener::bind(&node.run_dir().join(socket), SocketType::Stream).unwrap();
        let (seen, end) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (seen_there, end_there, play) = (Arc::clone(&seen), Arc::clone(&end), Arc::new(play));
        let thread = std::thread::spawn(move || {
            let mut threads = Vec::new();
            while !end_there.load(Ordering::Relaxed) {
                let Some(connection) = listener.accept(Duration::from_millis(20)).unwrap() else { continue };
                let (seen, end, play) = (Arc::clone(&seen_there), Arc::clone(&end_there), Arc::clone(&play));
                threads.push(std::thread::spawn(move || {
                    let mut stream = Exchange::new(&connection, Instant::now() + Duration::from_secs(60));
                    let Ok(Request { path, body, .. }) = read_request(&mut stream) else { return };
                    let netns = stream
                        .take_descriptors()
                        .unwrap()
                        .into_iter()
                        .map(|fd| Netns::from_fd(fd).unwrap().id())
                        .collect();
                    let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
                    let request = Seen { path, body, netns };
                    let number = {
                        let mut seen = seen.lock().unwrap();
                        seen.push(request.clone());
                        seen.len() - 1
                    };
                    // A plugin that gave up does not hear the answer.
                    match play(&request, number) {
                        Play::Answer(response) => drop(write_response(&mut stream, &response)),
                        Play::Bytes(bytes) => drop(stream.write_all(&bytes)),
                        Play::Silence => {
                            while !connection.peer_gone() && !end.load(Ordering::Relaxed) {
                                std::thread::sleep(Duration::from_millis(5));
                            }
                        }
                    }
                }));
            }
            for thread in threads {
                thread.join().unwrap();
            }
        });
        Agent { seen, end, thread: Some(thread) }
    }

    /// An agent that answers every request the same.
    fn answering(node: &Node, status: u16, body: &str) -> Self {
        let body = body.to_owned();
        Agent::serve(node, "pluginevent.sock", move |_, _| Play::Answer(Response::json(status, body.clone())))
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        let joined = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            joined.unwrap();
        }
    }
}

/// The answer of our agent to an ADD.
fn done(action: &str) -> String {
    json!({"action": action, "reason": "the test says so"}).to_string()
}
