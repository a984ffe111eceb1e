//! A node of a test's own: directories, a network namespace that plays the host's, and an agent.

use super::netns::PodNetns;
use super::program::ferrule;
use super::{DEADLINE, FERRULE, eventually, http};
use ferrule::node::view::Status;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Directories and a host namespace. Everything goes with the value.
pub struct Node {
    dir: TempDir,
    /// The namespace that the agent runs in: the host's rules go there.
    pub host: PodNetns,
    /// `--host-root`; the real `/` unless a test says otherwise.
    pub host_root: PathBuf,
    /// A program and arguments that start the agent, which they are given with its own arguments.
    pub wrapper: Vec<String>,
}

impl Node {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let node = Node { dir, host: PodNetns::new(), host_root: "/".into(), wrapper: Vec::new() };
        for dir in [node.pods(), node.run(), node.net_dir(), node.bin_dir()] {
            fs::create_dir(dir).unwrap();
        }
        super::install_plugins(&node.bin_dir(), r#"{"type":"bridge"},{"type":"portmap"}"#);
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The directory of pod files (`--pod-source dir:…`).
    pub fn pods(&self) -> PathBuf {
        self.path("pods")
    }

    /// `--cni-agent-run-dir`.
    pub fn run(&self) -> PathBuf {
        self.path("run")
    }

    /// `--mounted-cni-net-dir`.
    pub fn net_dir(&self) -> PathBuf {
        self.path("net.d")
    }

    /// `--cni-bin-dir`.
    pub fn bin_dir(&self) -> PathBuf {
        self.path("bin")
    }

    /// `--ztunnel-uds-address`.
    pub fn ztunnel(&self) -> PathBuf {
        self.path("ztunnel.sock")
    }

    /// The agent's socket.
    pub fn events(&self) -> PathBuf {
        self.run().join("pluginevent.sock")
    }

    /// What the agent says of itself, if there is one.
    pub fn status(&self) -> Option<Status> {
        let (_, body) = http::request(&self.events(), "GET", "/status", "").ok()?;
        serde_json::from_str(&body).ok()
    }

    /// Waits until the agent's stores are filled. Where nothing can be installed it never calls itself ready.
    #[track_caller]
    pub fn wait_for_agent(&self) {
        let starting = |status: Status| status.reasons.iter().any(|reason| reason.contains("starting"));
        eventually("the agent starts", || self.status().is_some_and(|status| !starting(status)));
    }

    /// Puts a file into the pod directory, whole.
    pub fn write_pod(&self, file: &str, text: &str) {
        let temp = self.path(&format!("{file}.tmp"));
        fs::write(&temp, text).unwrap();
        fs::rename(temp, self.pods().join(file)).unwrap();
    }

    /// Starts an agent with ambient on and without ports, and these flags besides. It is not ready yet.
    pub fn start_agent(&self, flags: &[&str]) -> Agent {
        let source = format!("dir:{}", self.pods().display());
        self.start_agent_in(&[], &[&["--pod-source", &source], flags].concat())
    }

    /// Starts an agent with these variables in its environment, and a source among the flags.
    pub fn start_agent_in(&self, environment: &[(&str, &str)], flags: &[&str]) -> Agent {
        let number = (1..).find(|n| !self.path(&format!("agent-{n}.log")).exists()).unwrap_or_default();
        let log = self.path(&format!("agent-{number}.log"));
        let mut command = match self.wrapper.as_slice() {
            [] => ferrule(&[]),
            [program, args @ ..] => {
                let mut command = Command::new(program);
                command.args(args).arg(FERRULE).env_clear();
                command
            }
        };
        command.args(["agent", "--ambient-enabled", "--health-port", "0", "--monitoring-port", "0"]);
        command.envs(environment.iter().copied());
        for (flag, value) in [
            ("--host-root", &self.host_root),
            ("--cni-agent-run-dir", &self.run()),
            ("--ztunnel-uds-address", &self.ztunnel()),
            ("--mounted-cni-net-dir", &self.net_dir()),
            ("--cni-bin-dir", &self.bin_dir()),
        ] {
            command.arg(flag).arg(value);
        }
        command.args(flags).stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log).unwrap());
        let child = self.host.enter(|| command.spawn().unwrap());
        Agent { child, log, events: self.events() }
    }
}

/// A running agent; killed when dropped, its log shown when the test fails.
pub struct Agent {
    child: Child,
    log: PathBuf,
    events: PathBuf,
}

impl Agent {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Network namespaces that it has open, by inode.
    pub fn namespaces(&self) -> BTreeSet<u64> {
        let files = fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap();
        let open = files.filter_map(|file| fs::metadata(file.ok()?.path()).ok());
        let nsfs = fs::metadata("/proc/self/ns/net").unwrap().dev();
        open.filter(|file| file.dev() == nsfs).map(|file| file.ino()).collect()
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Its log file.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Sends one request to its socket.
    pub fn request(&self, method: &str, target: &str, body: &str) -> std::io::Result<(u16, String)> {
        http::request(&self.events, method, target, body)
    }

    /// Waits until `/readyz` says 200.
    #[track_caller]
    pub fn wait_ready(&self) {
        eventually("the agent is ready", || matches!(self.request("GET", "/readyz", ""), Ok((200, _))));
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Waits for its end and returns the exit code (`None`: a signal).
    #[track_caller]
    pub fn wait(&mut self) -> Option<i32> {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < end, "the agent does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// SIGTERM, and waits for the end.
    #[track_caller]
    pub fn terminate(mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        self.wait()
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Agent {
    #[expect(clippy::print_stderr, reason = "the failing test's own words")]
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- agent {}\n{}---", self.child.id(), fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}
