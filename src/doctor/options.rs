//! What the node is compared with.

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

/// The options of a node whose agent was given these switches.
#[cfg(test)]
pub(super) fn options(flags: &[&str]) -> Options {
    use crate::sys::file::HostRoot;
    use std::time::Duration;

    let on = |flag: &str| flags.contains(&flag);
    let run_dir = RunDir::new(RunDir::DEFAULT);
    Options {
        install: install::Options {
            host_root: HostRoot::new("/host"),
            net_dir: "/host/etc/cni/net.d".into(),
            bin_dir: "/host/opt/cni/bin".into(),
            run_dir: run_dir.path().into(),
            mode: install::Mode::Chained,
            conf_name: None,
            conf_group_read: false,
            entry: install::entry::Entry {
                log_level: "info".to_owned(),
                agent_run_dir: run_dir.to_string(),
                ambient_enabled: on("--ambient-enabled"),
                enablement_selectors: serde_json::json!([]),
                exclude_namespaces: Vec::new(),
                exclude_runtime_classes: Vec::new(),
                pod_namespace: "istio-system".to_owned(),
                native_nftables: on("--native-nftables"),
                detection_retry: false,
                status_gate: on("--cni-status-gate"),
            },
            kubeconfig: None,
            executable: "/proc/self/exe".into(),
            settle: Duration::ZERO,
        },
        run_dir,
        api: None,
        cluster: true,
        ambient: on("--ambient-enabled"),
        ipv6: on("--ambient-ipv6"),
        native_nftables: on("--native-nftables"),
        force_backend: None,
        ztunnel_socket: "/var/run/ztunnel/ztunnel.sock".into(),
        own_namespace: "istio-system".to_owned(),
        system_namespace: "istio-system".to_owned(),
        switch_to_host_ns: false,
    }
}
