//! What `doctor` compares a node with.

use super::Config;
use crate::install;
use crate::kube;
use crate::sys::run_dir::RunDir;
use std::path::PathBuf;

/// What the node is compared with.
#[derive(Debug)]
pub struct Options {
    /// What should be installed where.
    pub install: install::Options,
    /// The agent's directory.
    pub run_dir: RunDir,
    /// The API server, if one is configured.
    pub api: Option<kube::config::Options>,
    /// The API server is where pods come from.
    pub cluster: bool,
    /// `--ambient-enabled`.
    pub ambient: bool,
    /// `--ambient-ipv6`.
    pub ipv6: bool,
    /// `--native-nftables`.
    pub native_nftables: bool,
    /// `FORCE_IPTABLES_BINARY`.
    pub force_backend: Option<String>,
    /// `--ztunnel-uds-address`.
    pub ztunnel_socket: PathBuf,
    /// The namespace of the agent's own pod.
    pub own_namespace: String,
    /// Where ztunnel runs.
    pub system_namespace: String,
    /// `ALLOW_SWITCH_TO_HOST_NS`: the agent is not on the host's network.
    pub switch_to_host_ns: bool,
}

impl Config {
    /// What the node is compared with.
    pub fn doctor(&self) -> Options {
        let cluster = self.pod_dir.is_none();
        Options {
            install: self.install(),
            run_dir: self.run_dir.clone(),
            // That none is configured is a finding, not an error.
            api: if cluster { self.kube().ok() } else { None },
            cluster,
            ambient: self.ambient_enabled,
            ipv6: self.ipv6,
            native_nftables: self.native_nftables,
            force_backend: self.force_backend.clone(),
            ztunnel_socket: self.ztunnel_socket.clone(),
            own_namespace: self.own_namespace().to_owned(),
            system_namespace: self.system_namespace.clone(),
            switch_to_host_ns: self.switch_to_host_ns,
        }
    }
}
