//! All options of the agent with their values, and what each room is told of them.

use super::value::HOST_ROOT;
use crate::dataplane::procfs::root::CgroupRoots;
use crate::error::{Context, Error, Kind, Result};
use crate::install;
use crate::kube;
use crate::logging;
use crate::node::{self, NodeSettings, PodSource, Site};
use crate::pod::decision::Policy;
use crate::repair;
use crate::rules;
use crate::sys::file::HostRoot;
use crate::sys::run_dir::RunDir;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// All options with their values.
#[derive(Debug, Clone)]
pub struct Config {
    pub(super) policy: Policy,
    pub(super) settings: NodeSettings,
    pub(super) site: Site,
    pub(super) selectors_json: serde_json::Value,
    pub(super) reconcile_on_startup: bool,
    pub(super) disable_safe_upgrade: bool,
    pub(super) detection_retry: bool,
    pub(super) verify_interval: Duration,
    pub(super) net_dir: PathBuf,
    pub(super) bin_dir: PathBuf,
    pub(super) conf_name: String,
    pub(super) chained: bool,
    pub(super) owned: bool,
    pub(super) owned_filename: String,
    pub(super) ignored_filename: String,
    pub(super) conf_group_read: bool,
    pub(super) status_gate: bool,
    pub(super) kubeconfig_mode: u32,
    pub(super) kube_ca_file: Option<PathBuf>,
    pub(super) skip_tls_verify: bool,
    pub(super) pod_dir: Option<PathBuf>,
    pub(super) node: String,
    pub(super) repair_enabled: bool,
    pub(super) repair: repair::Options,
    pub(super) repair_label_pods: bool,
    pub(super) repair_label: (String, String),
    pub(super) repair_node: String,
    pub(super) health_port: u16,
    pub(super) monitoring_port: u16,
    pub(super) ztunnel_socket: PathBuf,
    pub(super) service_account_dir: PathBuf,
    pub(super) api_host: String,
    pub(super) api_port: String,
    pub(super) api_protocol: String,
    pub(super) kubeconfig: String,
    pub(super) proxies: kube::config::Proxies,
    pub(super) pod_namespace: String,
    pub(super) logging: logging::Options,
}

impl Config {
    /// Before anything is read: only fields whose option has no default keep these values.
    pub(super) fn blank() -> Self {
        let (probe_v4, probe_v6) = (Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED);
        Config {
            policy: Policy::default(),
            settings: NodeSettings { dns_capture: false, ipv6: false, probe_v4, probe_v6 },
            site: Site {
                run_dir: RunDir::default(),
                host_root: HostRoot::new("/"),
                cgroup_roots: CgroupRoots::default(),
                switch_to_host_ns: false,
                ambient: false,
                force_backend: None,
                native_nftables: false,
                host_rules: rules::host::Settings { probe_v4, probe_v6, kubelet: None },
                ipv6: false,
                aws_branch_eni: true,
            },
            selectors_json: serde_json::json!([]),
            reconcile_on_startup: false,
            disable_safe_upgrade: false,
            detection_retry: false,
            verify_interval: Duration::ZERO,
            net_dir: PathBuf::new(),
            bin_dir: PathBuf::new(),
            conf_name: String::new(),
            chained: false,
            owned: false,
            owned_filename: String::new(),
            ignored_filename: String::new(),
            conf_group_read: false,
            status_gate: false,
            kubeconfig_mode: 0,
            kube_ca_file: None,
            skip_tls_verify: false,
            pod_dir: None,
            node: String::new(),
            repair_enabled: false,
            repair: repair::Options::default(),
            repair_label_pods: false,
            repair_label: (String::new(), String::new()),
            repair_node: String::new(),
            health_port: 0,
            monitoring_port: 0,
            ztunnel_socket: PathBuf::new(),
            service_account_dir: PathBuf::new(),
            api_host: String::new(),
            api_port: String::new(),
            api_protocol: String::new(),
            kubeconfig: String::new(),
            proxies: kube::config::Proxies::default(),
            pod_namespace: String::new(),
            logging: logging::Options::default(),
        }
    }

    /// Which pods are in the mesh.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The rules of a pod that asks for nothing else.
    pub fn pod_rules(&self) -> rules::inpod::Settings {
        self.settings.usual()
    }

    /// Whether new rules go into tables of nf_tables of our own.
    pub fn native_nftables(&self) -> bool {
        self.site.native_nftables
    }

    /// The rules of the host.
    pub fn host_rules(&self) -> rules::host::Settings {
        let NodeSettings { probe_v4, probe_v6, .. } = self.settings;
        rules::host::Settings { probe_v4, probe_v6, kubelet: None }
    }

    /// The agent's own directory.
    pub fn run_dir(&self) -> &RunDir {
        &self.site.run_dir
    }

    /// Whether IPv6 is programmed.
    pub fn ipv6(&self) -> bool {
        self.settings.ipv6
    }

    /// The log.
    pub fn logging(&self) -> logging::Options {
        self.logging.clone()
    }

    /// The agent.
    pub fn agent(&self) -> Result<node::Options> {
        let source = match &self.pod_dir {
            Some(directory) => PodSource::Directory(directory.clone()),
            None => PodSource::Kubernetes { api: self.kube()?, node: self.node_name()? },
        };
        Ok(node::Options {
            source,
            site: self.site(),
            ztunnel_socket: self.ztunnel_socket.clone(),
            policy: self.policy.clone(),
            settings: self.settings,
            verify_interval: self.verify_interval,
            reconcile_on_startup: self.reconcile_on_startup,
            health_port: self.health_port,
            monitoring_port: self.monitoring_port,
            own_namespace: self.own_namespace().to_owned(),
            disable_safe_upgrade: self.disable_safe_upgrade,
            repair: self.repair(),
            install: self.install(),
        })
    }

    /// The node.
    fn site(&self) -> Site {
        let (ambient, ipv6) = (self.policy.ambient_enabled, self.settings.ipv6);
        Site { ambient, ipv6, host_rules: self.host_rules(), ..self.site.clone() }
    }

    /// The node, for taking everything off it: whatever the agent was told, it may have left something.
    pub fn site_to_clear(&self) -> Site {
        Site { ambient: true, aws_branch_eni: true, ..self.site() }
    }

    /// Race repair.
    pub(super) fn repair(&self) -> Option<repair::Options> {
        let label = self.repair_label_pods.then(|| self.repair_label.clone());
        self.repair_enabled.then(|| repair::Options { label, ..self.repair.clone() })
    }

    /// This node's name: as told, else the host's.
    pub(super) fn node_name(&self) -> Result<String> {
        if let Some(told) = [&self.node, &self.repair_node].into_iter().find(|name| !name.is_empty()) {
            return Ok(told.clone());
        }
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
        let name = name.context("NODE_NAME is not set, and the host's name cannot be read")?;
        Ok(name.trim().to_ascii_lowercase())
    }

    /// The API server's client: in a pod of the cluster, else by a kubeconfig.
    pub fn kube(&self) -> Result<kube::config::Options> {
        let source = if !self.api_host.is_empty() {
            kube::config::Source::InCluster {
                host: self.api_host.clone(),
                port: self.api_port.clone(),
                protocol: self.api_protocol.clone(),
                service_account_dir: self.service_account_dir.clone(),
            }
        } else if !self.kubeconfig.is_empty() {
            kube::config::Source::Kubeconfig(self.kubeconfig.clone())
        } else {
            return Err(Error::of(
                Kind::Usage,
                "--pod-source=kubernetes needs an API server: KUBERNETES_SERVICE_HOST (set in a pod) or KUBECONFIG",
            ));
        };
        Ok(kube::config::Options { source, proxies: self.proxies.clone() })
    }

    /// The installer.
    pub fn install(&self) -> install::Options {
        let in_cluster = self.pod_dir.is_none() && !self.api_host.is_empty();
        install::Options {
            host_root: self.site.host_root.clone(),
            net_dir: self.below_host_root(&self.net_dir),
            bin_dir: self.below_host_root(&self.bin_dir),
            run_dir: self.site.run_dir.path().to_owned(),
            mode: self.install_mode(),
            conf_name: Some(self.conf_name.clone()).filter(|name| !name.is_empty()),
            conf_group_read: self.conf_group_read,
            entry: install::entry::Entry {
                log_level: plugin_log_level(self.logging.levels.plugin).to_owned(),
                agent_run_dir: self.site.run_dir.to_string(),
                ambient_enabled: self.policy.ambient_enabled,
                enablement_selectors: self.selectors_json.clone(),
                exclude_runtime_classes: self.policy.exclude_runtime_classes.clone(),
                exclude_namespaces: self.policy.exclude_namespaces.clone(),
                pod_namespace: self.own_namespace().to_owned(),
                native_nftables: self.site.native_nftables,
                detection_retry: self.detection_retry,
                status_gate: self.status_gate,
            },
            kubeconfig: in_cluster.then(|| install::kubeconfig::Options {
                protocol: self.api_protocol.clone(),
                host: self.api_host.clone(),
                port: self.api_port.clone(),
                service_account_dir: self.service_account_dir.clone(),
                ca_file: self.kube_ca_file.clone(),
                skip_tls_verify: self.skip_tls_verify,
                mode: self.kubeconfig_mode,
            }),
            executable: PathBuf::from("/proc/self/exe"),
            settle: Duration::from_secs(2),
        }
    }

    fn install_mode(&self) -> install::Mode {
        match (self.chained, self.owned, self.owned_filename.as_str()) {
            (false, ..) => install::Mode::Standalone,
            (true, false, _) => install::Mode::Chained,
            (true, true, "") => install::Mode::Owned { file: install::OWNED_FILE.to_owned() },
            (true, true, file) => install::Mode::Owned { file: file.to_owned() },
        }
    }

    /// The namespace the agent's own pod is in.
    pub(super) fn own_namespace(&self) -> &str {
        if self.pod_namespace.is_empty() { &self.policy.system_namespace } else { &self.pod_namespace }
    }

    /// Puts the value of `--host-root` where a path begins with its name.
    fn below_host_root(&self, path: &Path) -> PathBuf {
        path.strip_prefix(HOST_ROOT).map_or_else(|_| path.to_owned(), |rest| self.site.host_root.path().join(rest))
    }
}

/// A level as the plugin's configuration names it.
fn plugin_log_level(level: log::LevelFilter) -> &'static str {
    match level {
        log::LevelFilter::Off => "none",
        log::LevelFilter::Error => "error",
        log::LevelFilter::Warn => "warn",
        log::LevelFilter::Info => "info",
        log::LevelFilter::Debug | log::LevelFilter::Trace => "debug",
    }
}
