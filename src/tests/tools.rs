//! The commands for people, on a node with an agent, a ztunnel and a pod: what they say, and with which exit code.

mod doctor;
mod shells;
mod status;

use crate::standalone::{SELECTOR, netns};
use crate::standin::{self, Standin};
use crate::support::netns::PodNetns;
use crate::support::node::{Agent, Node};
use crate::support::program::{Finished, ferrule, finish};
use crate::support::{FERRULE, eventually, http};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The configuration of another network plugin.
const PRIMARY: &str = r#"{
  "cniVersion": "1.0.0",
  "name": "net",
  "plugins": [
    {"type": "bridge", "ipam": {"type": "host-local"}},
    {"type": "portmap"}
  ]
}
"#;

/// A node on which all is well.
struct Scene {
    ztunnel: Option<Standin>,
    _agent: Agent,
    pod: PodNetns,
    /// Last: its directories go with it.
    node: Node,
}

impl Scene {
    fn new() -> Self {
        Self::with_flags(&[])
    }

    fn with_flags(flags: &[&str]) -> Self {
        let mut node = Node::new();
        // What the machine has elsewhere is not this node's.
        let root = node.run().with_file_name("root");
        fs::create_dir(&root).unwrap();
        fs::write(node.net_dir().join("10-net.conflist"), PRIMARY).unwrap();
        for plugin in ["bridge", "portmap"] {
            fs::write(node.bin_dir().join(plugin), "").unwrap();
        }
        let agent = node.start_agent(&[&["--ambient-enablement-selector", SELECTOR, "--ambient-ipv6"], flags].concat());
        let ztunnel = Standin::start(standin::Options { socket: node.ztunnel(), ..Default::default() });
        agent.wait_ready();
        let pod = netns("10.9.0.7");
        let scene = Scene {
            ztunnel: Some(ztunnel),
            _agent: agent,
            pod,
            node: {
                node.host_root = root;
                node
            },
        };
        scene.write_pod("web", "10.9.0.7");
        scene.node.write_pod("batch.json", &json!({"kind": "Pod", "metadata": {"name": "batch"}}).to_string());
        let ips = json!([{"Address": {"IP": "10.9.0.7", "Mask": "////AA=="}}]);
        let add = json!({"Netns": scene.pod.path(), "PodName": "web", "PodNamespace": "default", "IPs": ips});
        eventually("the pod is added", || {
            let answer = http::request(&scene.node.events(), "POST", "/cmdadd", &add.to_string());
            matches!(answer, Ok((200, _)))
        });
        eventually("both pods are known", || scene.run("status", &[]).stdout.contains("2 pods"));
        scene
    }

    /// A pod that should be in the mesh.
    fn write_pod(&self, name: &str, ip: &str) {
        let pod = json!({
            "kind": "Pod",
            "metadata": {"name": name, "uid": name, "labels": {"istio.io/dataplane-mode": "ambient"},
                         "annotations": {"ambient.istio.io/dns-capture": "true"}},
            "status": {"podIP": ip},
        });
        self.node.write_pod(&format!("{name}.json"), &pod.to_string());
    }

    /// A path of the scene.
    fn path(&self, name: &str) -> PathBuf {
        self.node.run().with_file_name(name)
    }

    /// What every command is told, as the agent was.
    fn options(&self, command: &str) -> Vec<String> {
        let flag = |name: &str, value: &Path| [name.to_owned(), value.display().to_string()];
        let mut options = flag("--cni-agent-run-dir", &self.node.run()).to_vec();
        if command != "status" {
            options.extend(["--ambient-enabled", "--ambient-ipv6"].map(str::to_owned));
            options.extend(["--ambient-enablement-selector".to_owned(), SELECTOR.to_owned()]);
            options.extend(["--pod-source".to_owned(), format!("dir:{}", self.node.pods().display())]);
            options.extend(flag("--host-root", &self.node.host_root));
            options.extend(flag("--ztunnel-uds-address", &self.node.ztunnel()));
            options.extend(flag("--mounted-cni-net-dir", &self.node.net_dir()));
            options.extend(flag("--cni-bin-dir", &self.node.bin_dir()));
        }
        options
    }

    fn command(&self, command: &str, more: &[&str]) -> Command {
        let mut run = ferrule(&[command]);
        run.args(self.options(command)).args(more);
        run
    }

    /// The same through another program, which is given the executable and its arguments.
    fn command_through(&self, through: &[&str], command: &str, more: &[&str]) -> Command {
        let mut run = Command::new(through[0]);
        run.args(&through[1..]).arg(FERRULE).arg(command).args(self.options(command)).args(more);
        run
    }

    fn run(&self, command: &str, more: &[&str]) -> Finished {
        self.finish(self.command(command, more))
    }

    /// In the namespace that plays the host's.
    fn finish(&self, mut command: Command) -> Finished {
        self.node.host.enter(|| finish(&mut command, b""))
    }

    /// A text without what differs from run to run: the scene's directory, versions, ages, other large numbers, and how
    /// wide the columns are for them.
    fn settled(&self, text: &str) -> String {
        let dir = self.path("").display().to_string();
        let text = text.replace(dir.trim_end_matches('/'), "DIR");
        let text = text.replace(&self.pod.path().display().to_string(), "NETNS");
        let (mut settled, mut number) = (String::new(), String::new());
        for c in text.chars().chain(['\n']) {
            match c {
                '0'..='9' => number.push(c),
                '.' if !number.is_empty() => number.push(c),
                c => {
                    let plain = number.parse::<u64>().is_ok();
                    settled += match number.as_str() {
                        version if version.matches('.').count() == 2 => "VERSION",
                        _ if plain && c == 's' && settled.ends_with(' ') => "N",
                        large if plain && large.len() > 5 => "NUMBER",
                        other => other,
                    };
                    number.clear();
                    if c != ' ' || !settled.ends_with("  ") {
                        settled.push(c);
                    }
                }
            }
        }
        settled.pop();
        settled
    }
}

/// Compares with a file; `UPDATE_FIXTURES=1` writes it instead, for the difference to be reviewed.
#[track_caller]
fn same_as_fixture(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("test-fixtures/tools").join(name);
    if std::env::var_os("UPDATE_FIXTURES").is_some() {
        fs::write(&path, text).unwrap();
    }
    let wanted = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, wanted, "{name} (UPDATE_FIXTURES=1 rewrites it)");
}

/// The shortest of a few runs: how long it takes when nothing else is in the way.
fn shortest(mut run: impl FnMut()) -> Duration {
    let time = || {
        let begin = Instant::now();
        run();
        begin.elapsed()
    };
    std::iter::repeat_with(time).take(5).min().unwrap()
}
