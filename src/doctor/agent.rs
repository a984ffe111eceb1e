//! The agent that runs here: its directory, its sockets, and what it says of itself, of ztunnel and of the pods.

use super::finding::Finding;
use super::options::Options;
use crate::node::client;
use crate::node::view::{PodState, PodStatus, Status};
use crate::sys::unix::{Connection, SocketType};
use nix::unistd::{AccessFlags, access};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

/// For a socket to take a connection.
const CONNECT: Duration = Duration::from_secs(1);
/// Pods that are named; of more, only the number.
const NAMED: usize = 3;

#[derive(Debug)]
pub(super) struct Facts {
    /// Owner and mode of the run dir, and whether we may write there.
    run_dir: Option<(u32, u32, bool)>,
    plugin_events: Socket,
    logs: Socket,
    ztunnel: Socket,
    status: Result<Status, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Socket {
    Missing,
    Other,
    There {
        uid: u32,
        mode: u32,
        /// Why nobody takes a connection, if nobody does.
        refuses: Option<String>,
    },
}

impl Socket {
    fn look(path: &Path, connect: bool) -> Self {
        let Ok(found) = std::fs::symlink_metadata(path) else { return Socket::Missing };
        if !found.file_type().is_socket() {
            return Socket::Other;
        }
        let refuses = connect.then(|| Connection::connect(path, SocketType::Stream, CONNECT).err()).flatten();
        Socket::There { uid: found.uid(), mode: found.mode() & 0o7777, refuses: refuses.map(|e| e.to_string()) }
    }

    /// `maker` is who makes it.
    fn judge(&self, path: &Path, maker: &str) -> Finding {
        const CHECK: &str = "socket";
        let path = path.display();
        match self {
            Socket::Missing => Finding::fail(
                CHECK,
                &format_args!("{path} is missing"),
                &format_args!("{maker} makes it: is it running?"),
            ),
            Socket::Other => Finding::fail(
                CHECK,
                &format_args!("{path} is no socket"),
                &format_args!("remove it and restart {maker}"),
            ),
            Socket::There { refuses: Some(why), .. } => {
                Finding::fail(CHECK, &why, &format_args!("nobody serves {path}: is {maker} running?"))
            }
            Socket::There { uid: 0, mode, .. } if mode & 0o077 == 0 => {
                Finding::ok(CHECK, &format_args!("{path}, root's, mode {mode:04o}"))
            }
            Socket::There { uid, mode, .. } => Finding::fail(
                CHECK,
                &format_args!("{path} belongs to uid {uid} with mode {mode:04o}, not to root alone"),
                &format_args!("another program made or changed it: find out which, and restart {maker}"),
            ),
        }
    }
}

impl Facts {
    pub(super) fn gather(options: &Options) -> Self {
        let run_dir = &options.run_dir;
        let found = std::fs::metadata(run_dir.path()).ok().filter(std::fs::Metadata::is_dir);
        let status = client::get(run_dir, "/status").and_then(|body| client::decode(run_dir, &body));
        Facts {
            run_dir: found
                .map(|found| (found.uid(), found.mode() & 0o7777, access(run_dir.path(), AccessFlags::W_OK).is_ok())),
            plugin_events: Socket::look(&run_dir.plugin_events(), true),
            logs: Socket::look(&run_dir.plugin_logs(), true),
            // Whoever connects there is taken for a ztunnel.
            ztunnel: Socket::look(&options.ztunnel_socket, false),
            status: status.map_err(|e| e.to_string()),
        }
    }

    /// What the agent says.
    pub(super) fn status(&self) -> Option<&Status> {
        self.status.as_ref().ok()
    }

    pub(super) fn judge(&self, options: &Options) -> Vec<Finding> {
        let run_dir = &options.run_dir;
        let mut findings = vec![self.run_dir(run_dir.path())];
        findings.push(self.plugin_events.judge(&run_dir.plugin_events(), "the agent"));
        findings.push(self.logs.judge(&run_dir.plugin_logs(), "the agent"));
        let ambient = self.status().map_or(options.ambient, |status| status.ambient);
        if ambient {
            findings.push(self.ztunnel.judge(&options.ztunnel_socket, "the agent"));
        }
        match &self.status {
            Ok(status) => findings.extend(said(status, options)),
            Err(e) => findings.push(Finding::fail("agent", &e, &"until one does, pods of the mesh do not start")),
        }
        findings
    }

    fn run_dir(&self, path: &Path) -> Finding {
        const CHECK: &str = "run dir";
        let path = path.display();
        match self.run_dir {
            None => {
                let remedy = "start the agent, or name its directory with --cni-agent-run-dir";
                Finding::fail(CHECK, &format_args!("{path} is missing"), &remedy)
            }
            Some((_, _, false)) => {
                Finding::fail(CHECK, &format_args!("{path} cannot be written"), &"is it read-only, or are we not root?")
            }
            Some((uid, mode, true)) if uid != 0 || mode & 0o022 != 0 => {
                let finding = format!("{path} belongs to uid {uid} with mode {mode:04o}: others may put sockets there");
                Finding::warn(CHECK, &finding, &"chown root and chmod 0755 it")
            }
            Some(_) => Finding::ok(CHECK, &path),
        }
    }
}

/// What the agent's own words mean.
fn said(status: &Status, options: &Options) -> Vec<Finding> {
    let mut findings = Vec::new();
    let ours = env!("CARGO_PKG_VERSION");
    if status.version == ours {
        findings.push(Finding::ok("version", &format_args!("agent and this executable are {ours}")));
    } else {
        let finding = format!("the agent is {}, this executable is {ours}", status.version);
        findings.push(Finding::warn("version", &finding, &"examine the node with the agent's own executable"));
    }
    if status.ready {
        findings.push(Finding::ok("agent", &"ready"));
    }
    for reason in &status.reasons {
        findings.push(Finding::fail("agent", &format_args!("not ready: {reason}"), &"its log says more"));
    }
    for file in &status.unread {
        findings.push(Finding::warn("pods", file, &"mend the file, or take it away"));
    }
    findings.push(match (status.ambient, status.ztunnels.len()) {
        (false, _) => Finding::ok("ztunnel", &"not needed: ambient mode is off"),
        (true, 0) => {
            let remedy = if options.cluster {
                "is the ztunnel pod running on this node, and does it have the same directory mounted?"
            } else {
                "is ztunnel running, with this socket?"
            };
            let socket = options.ztunnel_socket.display();
            Finding::fail("ztunnel", &format_args!("none is connected on {socket}"), &remedy)
        }
        (true, n) => Finding::ok("ztunnel", &format_args!("{n} connected")),
    });
    let remedy = "ferrule explain NAMESPACE/NAME says where it stands";
    let (lost, rest): (Vec<_>, Vec<_>) = status.pods.iter().partition(|pod| pod.state == PodState::Lost);
    let (settled, moving): (Vec<_>, Vec<_>) =
        rest.into_iter().partition(|pod| matches!(pod.state, PodState::None | PodState::Enrolled));
    if !lost.is_empty() {
        findings.push(Finding::fail(
            "pods",
            &format_args!("should be in the mesh and are not: {}", named(&lost)),
            &remedy,
        ));
    }
    if !moving.is_empty() {
        findings.push(Finding::warn("pods", &format_args!("on their way: {}", named(&moving)), &remedy));
    }
    let preceded: Vec<&PodStatus> = settled.iter().filter(|pod| pod.preceded).copied().collect();
    if !preceded.is_empty() {
        let remedy = "find out who put the rule there; it may lead traffic past the mesh";
        let finding = format!("rules of others come before ours: {}", named(&preceded));
        findings.push(Finding::warn("pods", &finding, &remedy));
    }
    let unheard: Vec<&PodStatus> = settled.iter().filter(|pod| pod.unheard).copied().collect();
    if !unheard.is_empty() {
        let remedy = "see the log of ztunnel for these pods; restart it if that does not help";
        let finding = format!("ztunnel does not listen in pods that it has: {}", named(&unheard));
        findings.push(Finding::warn("pods", &finding, &remedy));
    }
    let enrolled = settled.iter().filter(|pod| pod.state == PodState::Enrolled).count();
    if lost.is_empty() && moving.is_empty() && preceded.is_empty() && unheard.is_empty() {
        findings.push(Finding::ok("pods", &format_args!("{enrolled} of {} are in the mesh", status.pods.len())));
    }
    findings
}

fn named(pods: &[&PodStatus]) -> String {
    let named = pods.iter().take(NAMED).map(|pod| format!("{}/{} ({})", pod.namespace, pod.name, pod.reason));
    let named = named.collect::<Vec<_>>().join(", ");
    match pods.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named}, and {more} more"),
    }
}
