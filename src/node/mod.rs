//! The agent: decides which pods of this node are in the mesh, and owns all mutable state.
//!
//! Everything that happens arrives as one closed [`event::Event`] in one inbox. [`state::State::step`] is pure: it
//! takes an event and the time and returns the [`event::Action`]s to carry out; named workers ([`execute`]) carry them
//! out and send what came of it back as events. So no two places decide, nothing here waits for I/O, and every
//! behaviour can be tested as a script of events.

pub mod client;
mod endpoints;
mod event;
mod execute;
mod host_side;
mod pod;
mod pods;
mod publish;
pub mod records;
mod redirection;
pub mod removal;
mod run;
mod source;
mod state;
mod tasks;
mod upgrade_check;
mod walk;
mod watchdog;
mod ztunnels;

pub use records::NodeSettings;
pub use redirection::Redirection;
pub use run::run;
pub use state::view;

use crate::dataplane::procfs::root::CgroupRoots;
use crate::install;
use crate::kube;
use crate::pod::decision::Policy;
use crate::repair;
use crate::rules;
use crate::sys::file::HostRoot;
use crate::sys::run_dir::RunDir;
use std::path::PathBuf;
use std::time::Duration;

/// What the agent is told once.
#[derive(Debug, Clone)]
pub struct Options {
    /// `--pod-source`.
    pub source: PodSource,
    /// Where it works.
    pub site: Site,
    /// `--ztunnel-uds-address`.
    pub ztunnel_socket: PathBuf,
    /// Which pods are in the mesh.
    pub policy: Policy,
    /// What is the same for the rules of all pods.
    pub settings: NodeSettings,
    /// `--verify-interval`; zero turns verification off.
    pub verify_interval: Duration,
    /// `--ambient-reconcile-pod-rules-on-startup`: bring pods enrolled by an earlier run to today's settings.
    pub reconcile_on_startup: bool,
    /// `--health-port`; 0 is off.
    pub health_port: u16,
    /// `--monitoring-port`; 0 is off.
    pub monitoring_port: u16,
    /// The namespace of our own pod, where our DaemonSet is.
    pub own_namespace: String,
    /// `--ambient-disable-safe-upgrade`: a stop always removes what was installed.
    pub disable_safe_upgrade: bool,
    /// What is done about pods that started before the plugin was there; `None`: nothing.
    pub repair: Option<repair::Options>,
    /// What is put on the node and kept there.
    pub install: install::Options,
}

/// A node: where the agent's files are on it, and how its packet filter is programmed.
#[derive(Debug, Clone)]
pub struct Site {
    /// `--cni-agent-run-dir`: sockets, lock, and what is remembered across restarts.
    pub run_dir: RunDir,
    /// `--host-root`.
    pub host_root: HostRoot,
    /// `--kubelet-cgroup-root`.
    pub cgroup_roots: CgroupRoots,
    /// `ALLOW_SWITCH_TO_HOST_NS`: this process is not in the host's network namespace; that one is
    /// `<host-root>/proc/1/ns/net`.
    pub switch_to_host_ns: bool,
    /// `--ambient-enabled`: the host has rules of ours.
    pub ambient: bool,
    /// `FORCE_IPTABLES_BINARY`: `legacy` or `nft`.
    pub force_backend: Option<String>,
    /// `--native-nftables`.
    pub native_nftables: bool,
    /// `HOST_PROBE_SNAT_IP` and `HOST_PROBE_SNAT_IPV6`.
    pub host_rules: rules::host::Settings,
    /// `--ambient-ipv6`.
    pub ipv6: bool,
    /// `AMBIENT_ENABLE_AWS_BRANCH_ENI_PROBE`: the probes of branch-ENI pods are led to their interfaces.
    pub aws_branch_eni: bool,
}

/// Where pods and namespaces come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodSource {
    /// The API server.
    Kubernetes {
        /// How it is reached.
        api: kube::config::Options,
        /// Our node's name.
        node: String,
    },
    /// Files in a directory (`dir:PATH`).
    Directory(PathBuf),
}
