//! Running the executable under test to its end.

use super::{DEADLINE, FERRULE};
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How a run ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// The plugin succeeded.
    #[track_caller]
    pub fn succeeded(&self) {
        assert_eq!(self.code, Some(0), "{self:?}");
    }

    /// The plugin failed: the CNI error's code and message.
    #[track_caller]
    pub fn cni_error(&self) -> (u64, String) {
        assert_eq!(self.code, Some(1), "{self:?}");
        let error: Value = serde_json::from_str(&self.stdout).unwrap();
        (error["code"].as_u64().unwrap(), error["msg"].as_str().unwrap().to_owned())
    }
}

/// What a container runtime tells a plugin besides its configuration.
pub fn tell_plugin(run: &mut Command, command: &str, container: &str, args: &str, netns: &Path) {
    let told = [("CNI_COMMAND", command), ("CNI_CONTAINERID", container), ("CNI_ARGS", args)];
    run.envs(told).envs([("CNI_IFNAME", "eth0"), ("CNI_PATH", "/opt/cni/bin")]).env("CNI_NETNS", netns);
}

/// A command that runs the executable with an empty environment. Files hold its outputs, so it can write at will.
pub fn ferrule(args: &[&str]) -> Command {
    let mut command = Command::new(FERRULE);
    command.args(args).env_clear();
    command
}

/// Runs the program under another name (`istio-cni`, `install-cni`).
pub fn ferrule_as(name: &str, args: &[&str]) -> Command {
    let mut command = ferrule(args);
    command.arg0(name);
    command
}

/// The container istio-validation as it runs: by the proxy's user, who may do nothing; it tries for 1.5 s.
pub fn istio_validation(args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=1337", "--regid=1337", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--"]);
    command.args([FERRULE, "iptables", "--skip-rule-apply", "--run-validation", "--probe-timeout=1500ms"]).args(args);
    command.env_clear().env("PATH", "/usr/bin:/usr/sbin");
    command
}

/// Runs to the end with this standard input; a program that does not end in time is killed, and the test fails.
#[track_caller]
pub fn finish(command: &mut Command, stdin: &[u8]) -> Finished {
    let (mut input, mut out, mut err) = (temp(), temp(), temp());
    input.write_all(stdin).unwrap();
    input.rewind().unwrap();
    let handle = |file: &File| Stdio::from(file.try_clone().unwrap());
    command.stdin(handle(&input)).stdout(handle(&out)).stderr(handle(&err));
    let mut child = command.spawn().unwrap();
    let end = Instant::now() + 2 * DEADLINE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > end {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{command:?} does not end: {}", content(&mut err));
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    Finished { code: status.code(), stdout: content(&mut out), stderr: content(&mut err) }
}

fn temp() -> File {
    tempfile::tempfile().unwrap()
}

fn content(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}
