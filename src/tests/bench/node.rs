//! A node to measure on: an agent of the executable in namespaces and directories of its own, pods, and programs that
//! are run and timed.

use super::ztunnel::Ztunnel;
use crate::standin::{self, Standin};
use ferrule::dataplane::backend::Backend;
use ferrule::dataplane::xtables::variant::Variant;
use ferrule::http::client::{Response, encode_request, exchange, read_response};
use ferrule::rules::family::Family;
use ferrule::rules::inpod::{Settings, rules};
use ferrule::rules::render::restore;
use ferrule::sys::exchange::Exchange;
use ferrule::sys::exec::find_program;
use ferrule::sys::netlink::{add_address, set_link_up};
use ferrule::sys::netns::Netns;
use ferrule::sys::unix::{Connection, SocketType};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Far more than anything takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A directory in memory.
pub const MEMORY: &str = "/dev/shm";

/// A pod's network namespace.
pub struct Sandbox(Netns);

impl Sandbox {
    pub fn new() -> Self {
        let netns = Netns::scratch().unwrap();
        netns.enter(|| set_link_up("lo").unwrap()).unwrap();
        Sandbox(netns)
    }

    /// With an address, as the agent expects it of a pod that runs.
    pub fn with_address(address: Ipv4Addr) -> Self {
        let sandbox = Sandbox::new();
        sandbox.0.enter(|| add_address("lo", address.into(), 32).unwrap()).unwrap();
        sandbox
    }

    /// A path by which other processes reach it.
    pub fn path(&self) -> String {
        netns_path(&self.0)
    }

    /// What iptables says of it.
    pub fn saved(&self) -> String {
        let save = |program: &str| Command::new(find_program(program).unwrap()).env_clear().output().unwrap().stdout;
        let both = self.0.enter(|| [save("iptables-nft-save"), save("ip6tables-nft-save")].concat()).unwrap();
        String::from_utf8(both).unwrap()
    }

    /// The yardstick: the rules of a pod loaded by iptables-restore, both families side by side.
    pub fn restores(&self, variant: Variant) -> Duration {
        let settings = Settings {
            dns_capture: true,
            ingress_mode: false,
            reroute_interfaces: vec![],
            ipv6: true,
            probe_v4: Ipv4Addr::new(169, 254, 7, 127),
            probe_v6: Ipv6Addr::new(0xfd16, 0x9254, 0x7127, 0x1337, 0xffff, 0xffff, 0xffff, 0xffff),
        };
        // Neither waits for the other, nor for anybody else on this machine.
        let locks = tempfile::tempdir_in(MEMORY).unwrap();
        let inputs = [(Family::V4, "iptables"), (Family::V6, "ip6tables")].map(|(family, name)| {
            let program = find_program(&format!("{name}-{variant}-restore")).unwrap();
            (restore(&rules(&settings, family)), program, locks.path().join(name))
        });
        let run = || {
            let start = Instant::now();
            let children = inputs.map(|(input, program, lock)| {
                let mut command = Command::new(program);
                command.arg("--noflush").env_clear().env("XTABLES_LOCKFILE", lock).stdin(Stdio::piped());
                let mut child = command.spawn().unwrap();
                child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
                child
            });
            for mut child in children {
                assert!(child.wait().unwrap().success());
            }
            start.elapsed()
        };
        self.0.enter(run).unwrap()
    }
}

/// An agent, running or about to, and where it is.
pub struct Node {
    agent: Option<Child>,
    ferrule: PathBuf,
    dir: TempDir,
    host: Netns,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Node {
    /// Starts an agent that knows `pods` pods in the mesh, `pod-0` and so on, and waits until it serves.
    pub fn start(ferrule: &Path, pods: usize, backend: Backend) -> Self {
        let mut node = Node::new(ferrule);
        let source = node.path("pods");
        fs::create_dir(&source).unwrap();
        for n in 0..pods {
            fs::write(source.join(format!("{n}.json")), pod(n).to_string()).unwrap();
        }
        node.launch(|command| {
            command.args(["--host-root=/", "--ambient-enablement-selector=[{}]"]);
            command.arg(format!("--pod-source=dir:{}", source.display()));
            match backend {
                Backend::Iptables(variant) => command.env("FORCE_IPTABLES_BINARY", variant.to_string()),
                Backend::Nftables => command.arg("--native-nftables"),
            };
        });
        node.wait_until("the agent serves", || node.is_served());
        node
    }

    /// Directories and a host's namespace; no agent yet.
    pub fn new(ferrule: &Path) -> Self {
        // In memory, as the run directory of a node is.
        let dir = tempfile::tempdir_in(MEMORY).unwrap();
        for name in ["net.d", "bin"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let host = Netns::scratch().unwrap();
        host.enter(|| set_link_up("lo").unwrap()).unwrap();
        Node { agent: None, ferrule: ferrule.to_owned(), dir, host }
    }

    /// Starts an agent that is told this besides.
    pub fn launch(&mut self, tell: impl FnOnce(&mut Command)) {
        let mut command = Command::new(&self.ferrule);
        command.args(["agent", "--ambient-enabled", "--ambient-dns-capture", "--ambient-ipv6"]);
        command.args(["--health-port=0", "--monitoring-port=0"]);
        for (flag, name) in [
            ("cni-agent-run-dir", "run"),
            ("ztunnel-uds-address", "ztunnel.sock"),
            ("mounted-cni-net-dir", "net.d"),
            ("cni-bin-dir", "bin"),
        ] {
            command.arg(format!("--{flag}={}", self.path(name).display()));
        }
        command.env_clear();
        tell(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(self.path("log")).unwrap());
        self.agent = Some(self.host.enter(|| command.spawn().unwrap()).unwrap());
    }

    /// Kills the agent.
    pub fn stop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }

    /// Runs `f` in the host's namespace.
    pub fn on_host<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        self.host.enter(f).unwrap()
    }

    /// A path by which other processes reach the host's namespace.
    pub fn host_path(&self) -> String {
        netns_path(&self.host)
    }

    pub fn ztunnel_socket(&self) -> PathBuf {
        self.path("ztunnel.sock")
    }

    /// Whether the agent knows a pod of this name.
    pub fn knows(&self, name: &str) -> bool {
        self.ask("GET", "/status", &Value::Null)
            .is_ok_and(|answer| String::from_utf8_lossy(&answer.body).contains(&format!("\"name\":\"{name}\"")))
    }

    /// How many pods have their rules being taken out.
    pub fn removing(&self) -> usize {
        let answer = self.ask("GET", "/status", &Value::Null);
        answer.map_or(usize::MAX, |answer| {
            String::from_utf8_lossy(&answer.body).matches("\"state\":\"removing\"").count()
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn wait_until(&self, what: &str, done: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done() {
            let log = || fs::read_to_string(self.path("log")).unwrap_or_default();
            assert!(Instant::now() < end, "{what} not within {PATIENCE:?}:\n{}", log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Nothing is installed on this node, so its agent is never ready; but it serves.
    pub fn is_served(&self) -> bool {
        let status = self.ask("GET", "/status", &Value::Null).map(|response| response.body).unwrap_or_default();
        let status: Value = serde_json::from_slice(&status).unwrap_or_default();
        let starting = |reason: &Value| reason.as_str().is_some_and(|reason| reason.contains("starting"));
        let served = status["reasons"].as_array().is_some_and(|reasons| !reasons.iter().any(starting));
        served && self.path("ztunnel.sock").exists()
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> ferrule::error::Result<Response> {
        let connection = Connection::connect(&self.path("run/pluginevent.sock"), SocketType::Stream, PATIENCE)?;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = encode_request(method, path, "localhost", body.as_bytes());
        exchange(&mut Exchange::new(&connection, Instant::now() + PATIENCE), &request, 16 << 20)
    }

    /// Connects a ztunnel that only acknowledges.
    pub fn ztunnel(&self) -> Ztunnel {
        Ztunnel::connect(&self.path("ztunnel.sock"))
    }

    /// Connects the tests' stand-in for ztunnel.
    pub fn standin(&self) -> Standin {
        let options = standin::Options { socket: self.path("ztunnel.sock"), ..Default::default() };
        let standin = Standin::start(options);
        self.wait_until("ztunnel has its snapshot", || standin.stats().ready);
        standin
    }

    /// Asks the agent to enrol pod `n`, as the plugin does. Returns when the request was sent, once it is done.
    pub fn request(&self, n: usize, sandbox: &Sandbox) -> Instant {
        let connection = Connection::connect(&self.path("run/pluginevent.sock"), SocketType::Stream, PATIENCE).unwrap();
        let name = format!("pod-{n}");
        let body = json!({
            "Netns": sandbox.path(), "PodName": name, "PodNamespace": "default", "PodUID": name, "ContainerID": name,
            "IPs": [{"Interface": null, "Address": {"IP": address(n), "Mask": "////AA=="}, "Gateway": ""}],
            "Decide": true,
        });
        let request = encode_request("POST", "/cmdadd", "localhost", body.to_string().as_bytes());
        let mut stream = Exchange::new(&connection, Instant::now() + PATIENCE);
        let sent = Instant::now();
        stream.write_all_with_fd(&request, sandbox.0.as_fd()).unwrap();
        let response = read_response(&mut stream, 1 << 20).unwrap();
        assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
        sent
    }

    /// Runs the plugin as a container runtime does for pod `n`, and returns how long it took.
    pub fn plugin(&self, verb: &str, n: usize, sandbox: &Sandbox) -> Duration {
        let conf = json!({
            "cniVersion": "1.0.0", "name": "net", "type": "istio-cni", "cni_agent_run_dir": self.path("run"),
            "exclude_namespaces": ["kube-system"],
            "prevResult": {"cniVersion": "1.0.0", "ips": [{"address": format!("{}/24", address(n))}]},
        });
        plugin(&self.ferrule, verb, &format!("pod-{n}"), "default", &sandbox.path(), &conf)
    }

    /// Resident memory of the agent, bytes.
    pub fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.agent.as_ref().unwrap().id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }
}

fn netns_path(netns: &Netns) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), netns.as_fd().as_raw_fd())
}

fn address(n: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0002 + u32::try_from(n).unwrap())
}

fn pod(n: usize) -> Value {
    let name = format!("pod-{n}");
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "uid": name, "namespace": "default", "labels": {"app": "web"}},
        "spec": {"serviceAccountName": "web"},
    })
}

/// One run of the plugin.
pub fn plugin(ferrule: &Path, verb: &str, pod: &str, namespace: &str, netns: &str, conf: &Value) -> Duration {
    let mut command = Command::new(ferrule);
    command.arg0("istio-cni").env_clear();
    for (name, value) in [
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", pod),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
        ("CNI_NETNS", netns),
        ("CNI_ARGS", &format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={pod};K8S_POD_UID={pod}")),
    ] {
        command.env(name, value);
    }
    timed(command, conf.to_string().as_bytes())
}

/// Runs a program with this standard input and returns the time from its start to its end.
pub fn timed(mut command: Command, stdin: &[u8]) -> Duration {
    let start = Instant::now();
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // Not every program reads it.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    let status = child.wait().unwrap();
    let took = start.elapsed();
    assert!(status.success(), "{command:?}: {status}: {output}");
    took
}
