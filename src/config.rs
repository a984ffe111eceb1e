//! From strings to each module's own options: parse, don't validate.
//!
//! [`table::TABLE`] is the one list of options. [`Config::read`] fills a [`Config`] from flags, variables and defaults,
//! in this order of precedence; a wrong value ends the process before any thread starts, naming the option, the value
//! and what is allowed. The functions that follow it hand each module its part.

pub mod option;
pub mod table;
mod value;

use crate::agent::{self, PodSource};
use crate::error::{Error, Kind, Result};
use crate::install;
use crate::pod::decision::Policy;
use crate::pod::overrides::Overrides;
use crate::pod::selector::EnablementSelectors;
use crate::rules;
use crate::sys::file::HostRoot;
use option::{Flags, Variables};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// All options with their values.
#[derive(Debug, Clone)]
pub struct Config {
    ambient_enabled: bool,
    selectors: EnablementSelectors,
    selectors_json: serde_json::Value,
    exclude_namespaces: Vec<String>,
    dns_capture: bool,
    ipv6: bool,
    reconcile_on_startup: bool,
    disable_safe_upgrade: bool,
    detection_retry: bool,
    native_nftables: bool,
    verify_interval: Duration,
    probe_v4: Ipv4Addr,
    probe_v6: Ipv6Addr,
    force_backend: Option<String>,
    switch_to_host_ns: bool,
    net_dir: PathBuf,
    bin_dir: PathBuf,
    conf_name: String,
    chained: bool,
    owned: bool,
    owned_filename: String,
    conf_group_read: bool,
    status_gate: bool,
    kubeconfig_mode: u32,
    kube_ca_file: Option<PathBuf>,
    skip_tls_verify: bool,
    source: PodSource,
    host_root: PathBuf,
    run_dir: PathBuf,
    ztunnel_socket: PathBuf,
    service_account_dir: PathBuf,
    api_host: String,
    api_port: String,
    api_protocol: String,
    pod_namespace: String,
    system_namespace: String,
    log_levels: String,
    log_as_json: bool,
}

impl Config {
    /// Reads every option: flag before variable before default. What deserves a warning comes along, for when the log
    /// is there.
    pub fn read(flags: &Flags, variables: &Variables) -> Result<(Self, Vec<String>)> {
        let mut config = Config::blank();
        let mut warnings = option::fill(table::TABLE, flags, variables, &mut config)?;
        if config.owned && !(config.chained && config.ambient_enabled) {
            return Err(Error::of(
                Kind::Usage,
                "--istio-owned-cni-config needs --chained-cni-plugin and --ambient-enabled: only an ambient agent \
                 keeps a chain of its own",
            ));
        }
        if config.native_nftables {
            warnings.push("--native-nftables is not supported yet: iptables is used".to_owned());
        }
        Ok((config, warnings))
    }

    /// Before anything is read: only fields whose option has no default keep these values.
    fn blank() -> Self {
        Config {
            ambient_enabled: false,
            selectors: EnablementSelectors::default(),
            selectors_json: serde_json::json!([]),
            exclude_namespaces: Vec::new(),
            dns_capture: false,
            ipv6: false,
            reconcile_on_startup: false,
            disable_safe_upgrade: false,
            detection_retry: false,
            native_nftables: false,
            verify_interval: Duration::ZERO,
            probe_v4: Ipv4Addr::UNSPECIFIED,
            probe_v6: Ipv6Addr::UNSPECIFIED,
            force_backend: None,
            switch_to_host_ns: false,
            net_dir: PathBuf::new(),
            bin_dir: PathBuf::new(),
            conf_name: String::new(),
            chained: false,
            owned: false,
            owned_filename: String::new(),
            conf_group_read: false,
            status_gate: false,
            kubeconfig_mode: 0,
            kube_ca_file: None,
            skip_tls_verify: false,
            source: PodSource::Kubernetes,
            host_root: PathBuf::new(),
            run_dir: PathBuf::new(),
            ztunnel_socket: PathBuf::new(),
            service_account_dir: PathBuf::new(),
            api_host: String::new(),
            api_port: String::new(),
            api_protocol: String::new(),
            pod_namespace: String::new(),
            system_namespace: String::new(),
            log_levels: String::new(),
            log_as_json: false,
        }
    }

    /// Which pods.
    pub fn policy(&self) -> Policy {
        Policy {
            ambient_enabled: self.ambient_enabled,
            selectors: self.selectors.clone(),
            exclude_namespaces: self.exclude_namespaces.clone(),
            system_namespace: self.system_namespace.clone(),
        }
    }

    /// The rules of a pod whose annotations ask for `overrides`.
    pub fn pod_rules(&self, overrides: &Overrides) -> rules::inpod::Settings {
        rules::inpod::Settings {
            dns_capture: overrides.dns_capture.unwrap_or(self.dns_capture),
            ingress_mode: overrides.ingress_mode,
            reroute_interfaces: overrides.reroute_interfaces.clone(),
            ipv6: self.ipv6,
            probe_v4: self.probe_v4,
            probe_v6: self.probe_v6,
        }
    }

    /// The rules of the host.
    pub fn host_rules(&self) -> rules::host::Settings {
        rules::host::Settings { probe_v4: self.probe_v4, probe_v6: self.probe_v6 }
    }

    /// Whether IPv6 is programmed.
    pub fn ipv6(&self) -> bool {
        self.ipv6
    }

    /// The agent.
    pub fn agent(&self) -> agent::Options {
        agent::Options {
            source: self.source.clone(),
            run_dir: self.run_dir.clone(),
            host_root: HostRoot::new(&self.host_root),
            ztunnel_socket: self.ztunnel_socket.clone(),
            policy: self.policy(),
            dns_capture: self.dns_capture,
            ipv6: self.ipv6,
            probe_v4: self.probe_v4,
            probe_v6: self.probe_v6,
            force_backend: self.force_backend.clone(),
            switch_to_host_ns: self.switch_to_host_ns,
            verify_interval: self.verify_interval,
            reconcile_on_startup: self.reconcile_on_startup,
            disable_safe_upgrade: self.disable_safe_upgrade,
        }
    }

    /// The installer.
    pub fn install(&self) -> install::Options {
        let in_cluster = self.source == PodSource::Kubernetes && !self.api_host.is_empty();
        install::Options {
            host_root: HostRoot::new(&self.host_root),
            net_dir: self.below_host_root(&self.net_dir),
            bin_dir: self.below_host_root(&self.bin_dir),
            run_dir: self.run_dir.clone(),
            mode: self.install_mode(),
            conf_name: Some(self.conf_name.clone()).filter(|name| !name.is_empty()),
            conf_group_read: self.conf_group_read,
            entry: install::entry::Entry {
                log_level: "info".to_owned(),
                agent_run_dir: self.run_dir.display().to_string(),
                ambient_enabled: self.ambient_enabled,
                enablement_selectors: self.selectors_json.clone(),
                exclude_namespaces: self.exclude_namespaces.clone(),
                pod_namespace: self.own_namespace().to_owned(),
                native_nftables: self.native_nftables,
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
    fn own_namespace(&self) -> &str {
        if self.pod_namespace.is_empty() { &self.system_namespace } else { &self.pod_namespace }
    }

    /// Puts the value of `--host-root` where a path begins with its name.
    fn below_host_root(&self, path: &Path) -> PathBuf {
        path.strip_prefix(value::HOST_ROOT).map_or_else(|_| path.to_owned(), |rest| self.host_root.join(rest))
    }
}
