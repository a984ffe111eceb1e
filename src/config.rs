//! From strings to each module's own options: parse, don't validate.
//!
//! [`table::TABLE`] is the one list of options. [`Config::read`] fills a [`Config`] from flags, variables and defaults,
//! in this order of precedence; a wrong value ends the process before any thread starts, naming the option, the value
//! and what is allowed. The functions that follow it hand each module its part.

pub mod certificates;
pub mod doctor;
pub mod iptables;
pub mod option;
pub mod table;
pub mod value;

use crate::dataplane::procfs::root::CgroupRoots;
use crate::error::{Context, Error, Kind, Result};
use crate::install;
use crate::kube;
use crate::logging;
use crate::node::{self, PodSource};
use crate::pod::decision::Policy;
use crate::pod::selector::EnablementSelectors;
use crate::repair;
use crate::rules;
use crate::sys::file::HostRoot;
use crate::sys::run_dir::RunDir;
use option::{Flags, Remark, Variables};
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
    aws_branch_eni: bool,
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
    ignored_filename: String,
    conf_group_read: bool,
    status_gate: bool,
    kubeconfig_mode: u32,
    kube_ca_file: Option<PathBuf>,
    skip_tls_verify: bool,
    pod_dir: Option<PathBuf>,
    node: String,
    repair_enabled: bool,
    repair: repair::Options,
    repair_label_pods: bool,
    repair_label: (String, String),
    repair_node: String,
    health_port: u16,
    monitoring_port: u16,
    host_root: PathBuf,
    cgroup_roots: CgroupRoots,
    run_dir: RunDir,
    ztunnel_socket: PathBuf,
    service_account_dir: PathBuf,
    api_host: String,
    api_port: String,
    api_protocol: String,
    kubeconfig: String,
    proxies: kube::config::Proxies,
    pod_namespace: String,
    system_namespace: String,
    logging: logging::Options,
}

impl Config {
    /// Reads every option: flag before variable before default.
    pub fn read(flags: &Flags, variables: &Variables) -> Result<(Self, Vec<Remark>)> {
        let mut config = Config::blank();
        let mut remarks = option::fill(table::TABLE, flags, variables, &mut config)?;
        if config.owned && !(config.chained && config.ambient_enabled) {
            return Err(Error::of(
                Kind::Usage,
                "--istio-owned-cni-config needs --chained-cni-plugin and --ambient-enabled: only an ambient agent \
                 keeps a chain of its own",
            ));
        }
        let other_file = !matches!(config.ignored_filename.as_str(), "" | install::OWNED_FILE);
        if config.owned && other_file && config.ignored_filename != config.owned_filename {
            let text = format!(
                "ISTIO_OWNED_CNI_CONF_FILENAME={} is not used, as by Istio's agent: ISTIO_OWNED_CNI_CONFIG_FILENAME names \
                 the file",
                config.ignored_filename
            );
            remarks.push((log::Level::Warn, text));
        }
        if !config.repair_node.is_empty() && !config.node.is_empty() && config.repair_node != config.node {
            let text = format!("--repair-node-name={} is ignored: this is {}", config.repair_node, config.node);
            remarks.push((log::Level::Warn, text));
        }
        Ok((config, remarks))
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
            aws_branch_eni: true,
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
            host_root: PathBuf::new(),
            cgroup_roots: CgroupRoots::default(),
            run_dir: RunDir::default(),
            ztunnel_socket: PathBuf::new(),
            service_account_dir: PathBuf::new(),
            api_host: String::new(),
            api_port: String::new(),
            api_protocol: String::new(),
            kubeconfig: String::new(),
            proxies: kube::config::Proxies::default(),
            pod_namespace: String::new(),
            system_namespace: String::new(),
            logging: logging::Options::default(),
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

    /// The rules of a pod that asks for nothing else.
    pub fn pod_rules(&self) -> rules::inpod::Settings {
        rules::inpod::Settings {
            dns_capture: self.dns_capture,
            ingress_mode: false,
            reroute_interfaces: Vec::new(),
            ipv6: self.ipv6,
            probe_v4: self.probe_v4,
            probe_v6: self.probe_v6,
        }
    }

    /// The rules of the host.
    pub fn host_rules(&self) -> rules::host::Settings {
        rules::host::Settings { probe_v4: self.probe_v4, probe_v6: self.probe_v6 }
    }

    /// The agent's own directory.
    pub fn run_dir(&self) -> &RunDir {
        &self.run_dir
    }

    /// Whether IPv6 is programmed.
    pub fn ipv6(&self) -> bool {
        self.ipv6
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
            run_dir: self.run_dir.clone(),
            host_root: HostRoot::new(&self.host_root),
            cgroup_roots: self.cgroup_roots.clone(),
            ztunnel_socket: self.ztunnel_socket.clone(),
            policy: self.policy(),
            dns_capture: self.dns_capture,
            ipv6: self.ipv6,
            probe_v4: self.probe_v4,
            probe_v6: self.probe_v6,
            force_backend: self.force_backend.clone(),
            native_nftables: self.native_nftables,
            switch_to_host_ns: self.switch_to_host_ns,
            verify_interval: self.verify_interval,
            reconcile_on_startup: self.reconcile_on_startup,
            health_port: self.health_port,
            monitoring_port: self.monitoring_port,
            own_namespace: self.own_namespace().to_owned(),
            disable_safe_upgrade: self.disable_safe_upgrade,
            aws_branch_eni: self.aws_branch_eni,
            repair: self.repair(),
            install: self.install(),
        })
    }

    /// The node, for taking everything off it: whatever the agent was told, it may have left something.
    pub fn site(&self) -> node::Site {
        node::Site {
            run_dir: self.run_dir.clone(),
            host_root: HostRoot::new(&self.host_root),
            cgroup_roots: self.cgroup_roots.clone(),
            switch_to_host_ns: self.switch_to_host_ns,
            ambient: true,
            force_backend: self.force_backend.clone(),
            native_nftables: self.native_nftables,
            host_rules: self.host_rules(),
            ipv6: self.ipv6,
            aws_branch_eni: true,
        }
    }

    /// Race repair.
    fn repair(&self) -> Option<repair::Options> {
        let label = self.repair_label_pods.then(|| self.repair_label.clone());
        self.repair_enabled.then(|| repair::Options { label, ..self.repair.clone() })
    }

    /// This node's name: as told, else the host's.
    fn node_name(&self) -> Result<String> {
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
            host_root: HostRoot::new(&self.host_root),
            net_dir: self.below_host_root(&self.net_dir),
            bin_dir: self.below_host_root(&self.bin_dir),
            run_dir: self.run_dir.path().to_owned(),
            mode: self.install_mode(),
            conf_name: Some(self.conf_name.clone()).filter(|name| !name.is_empty()),
            conf_group_read: self.conf_group_read,
            entry: install::entry::Entry {
                log_level: plugin_log_level(self.logging.levels.plugin).to_owned(),
                agent_run_dir: self.run_dir.to_string(),
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
    fn own_namespace(&self) -> &str {
        if self.pod_namespace.is_empty() { &self.system_namespace } else { &self.pod_namespace }
    }

    /// Puts the value of `--host-root` where a path begins with its name.
    fn below_host_root(&self, path: &Path) -> PathBuf {
        path.strip_prefix(value::HOST_ROOT).map_or_else(|_| path.to_owned(), |rest| self.host_root.join(rest))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::query::{self, FieldSelector};
    use crate::repair::detect::Filter;
    use std::collections::BTreeSet;

    fn read(flags: &[(&'static str, &str)], variables: &[(&str, &str)]) -> Result<(Config, Vec<Remark>)> {
        let flags = flags.iter().map(|(k, v)| (*k, (*v).to_owned())).collect();
        let variables = variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Config::read(&flags, &variables)
    }

    #[test]
    fn names_are_unique() {
        let (mut flags, mut variables) = (BTreeSet::new(), BTreeSet::new());
        for row in table::TABLE {
            assert!(row.spec.name.flag().is_none_or(|flag| flags.insert(flag)), "{:?}", row.spec.name);
            assert!(row.spec.name.variable().is_none_or(|name| variables.insert(name)), "{:?}", row.spec.name);
        }
    }

    #[test]
    fn defaults() {
        let (config, remarks) = read(&[], &[]).unwrap();
        assert_eq!(remarks, []);
        assert_eq!(config.agent().unwrap_err().kind(), Kind::Usage, "no API server is known");
        let (config, _) = read(&[("pod-source", "dir:/pods")], &[]).unwrap();
        let agent = config.agent().unwrap();
        assert_eq!(agent.source, PodSource::Directory("/pods".into()));
        assert_eq!(agent.run_dir.path(), Path::new("/var/run/istio-cni"));
        assert_eq!(agent.host_root.path(), Path::new("/host"));
        assert_eq!(agent.ztunnel_socket, Path::new("/var/run/ztunnel/ztunnel.sock"));
        assert_eq!(agent.policy, Policy { system_namespace: "istio-system".to_owned(), ..Policy::default() });
        assert!(!agent.dns_capture && !agent.ipv6 && !agent.reconcile_on_startup && !agent.disable_safe_upgrade);
        assert!(!agent.switch_to_host_ns);
        assert_eq!(agent.probe_v4.to_string(), "169.254.7.127");
        assert_eq!(agent.probe_v6.to_string(), "fd16:9254:7127:1337:ffff:ffff:ffff:ffff");
        assert_eq!((agent.health_port, agent.monitoring_port), (8000, 15014));
        assert_eq!(agent.own_namespace, "istio-system");
        assert_eq!((agent.force_backend, agent.verify_interval), (None, Duration::from_secs(30)));
        let usual = Filter {
            annotation: "sidecar.istio.io/status".to_owned(),
            container: "istio-validation".to_owned(),
            exit_code: 126,
            ..Filter::default()
        };
        assert_eq!(agent.repair, Some(repair::Options { filter: usual, ..repair::Options::default() }));
        let install = config.install();
        assert_eq!(install.net_dir, Path::new("/host/etc/cni/net.d"));
        assert_eq!(install.bin_dir, Path::new("/host/opt/cni/bin"));
        assert_eq!((install.mode, install.conf_name), (install::Mode::Chained, None));
        assert!(!install.conf_group_read && install.kubeconfig.is_none());
        assert_eq!(install.entry.log_level, "info");
        assert_eq!(install.entry.pod_namespace, "istio-system");
        assert_eq!(install.entry.enablement_selectors, serde_json::json!([]));
        assert_eq!(config.logging(), logging::Options::default());
    }

    #[test]
    fn everything_arrives_where_it_belongs() {
        let flags = [
            ("ambient-enabled", "true"),
            ("ambient-enablement-selector", "- podSelector: {matchLabels: {a: b}}"),
            ("exclude-namespaces", "kube-system, other"),
            ("ambient-dns-capture", "1"),
            ("ambient-ipv6", "t"),
            ("ambient-reconcile-pod-rules-on-startup", "True"),
            ("ambient-disable-safe-upgrade", "TRUE"),
            ("enable-ambient-detection-retry", "T"),
            ("verify-interval", "0"),
            ("host-root", "/"),
            ("cni-bin-dir", "/opt/bin"),
            ("cni-conf-name", "10-x.conflist"),
            ("istio-owned-cni-config", "true"),
            ("cni-conf-group-read", "true"),
            ("cni-status-gate", "true"),
            ("kubeconfig-mode", "0o640"),
            ("kube-ca-file", "/ca"),
            ("skip-tls-verify", "true"),
            ("cni-agent-run-dir", "/run/x"),
            ("ztunnel-uds-address", "/run/z.sock"),
            ("service-account-dir", "/sa"),
            ("log_output_level", "cni-plugin:none,warn"),
            ("log_as_json", "true"),
            ("repair-repair-pods", "true"),
            ("repair-delete-pods", "true"),
            ("repair-label-pods", "true"),
            ("repair-broken-pod-label-key", "k"),
            ("repair-broken-pod-label-value", "v"),
            ("repair-sidecar-annotation", ""),
            ("repair-init-container-name", "init"),
            ("repair-init-container-termination-message", "text"),
            ("repair-init-container-exit-code", "7"),
            ("repair-label-selectors", "a in (b),!c"),
            ("repair-field-selectors", "metadata.namespace!=a"),
        ];
        let variables = [
            ("FORCE_IPTABLES_BINARY", "legacy"),
            ("ALLOW_SWITCH_TO_HOST_NS", "true"),
            ("HOST_PROBE_SNAT_IP", "192.0.2.1"),
            ("HOST_PROBE_SNAT_IPV6", "2001:db8::1"),
            ("POD_NAMESPACE", "mesh"),
            ("SYSTEM_NAMESPACE", "control"),
            ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
            ("KUBERNETES_SERVICE_PORT", "443"),
            ("KUBECONFIG", "/a:/b"),
            ("KUBERNETES_NODE_NAME", "wrong"),
            ("NODE_NAME", "node-7"),
            ("HTTPS_PROXY", "proxy:1"),
            ("https_proxy", "proxy:2"),
            ("no_proxy", "10.0.0.0/8"),
        ];
        let (config, remarks) = read(&flags, &variables).unwrap();
        assert_eq!(remarks, []);
        let agent = config.agent().unwrap();
        assert!(matches!(&agent.source, PodSource::Kubernetes { node, .. } if node == "node-7"));
        assert!(agent.policy.ambient_enabled && !agent.policy.selectors.is_empty());
        assert_eq!(agent.policy.exclude_namespaces, ["kube-system", "other"]);
        assert_eq!(agent.policy.system_namespace, "control");
        assert!(agent.dns_capture && agent.ipv6 && agent.reconcile_on_startup && agent.disable_safe_upgrade);
        assert!(agent.switch_to_host_ns);
        assert_eq!(agent.force_backend.as_deref(), Some("legacy"));
        assert_eq!((agent.verify_interval, agent.run_dir.path().to_str()), (Duration::ZERO, Some("/run/x")));
        assert_eq!(agent.ztunnel_socket, Path::new("/run/z.sock"));
        assert_eq!(
            (agent.probe_v4.to_string(), agent.probe_v6.to_string()),
            ("192.0.2.1".into(), "2001:db8::1".into())
        );
        let repair = repair::Options {
            filter: Filter {
                annotation: String::new(),
                container: "init".to_owned(),
                exit_code: 7,
                message: "text".to_owned(),
                labels: query::labels("a in (b),!c").unwrap(),
                fields: FieldSelector::parse("metadata.namespace!=a").unwrap(),
            },
            repair: true,
            delete: true,
            label: Some(("k".to_owned(), "v".to_owned())),
        };
        assert_eq!(agent.repair, Some(repair));
        let install = config.install();
        assert_eq!(install.net_dir, Path::new("/etc/cni/net.d"));
        assert_eq!(install.bin_dir, Path::new("/opt/bin"));
        assert_eq!(install.mode, install::Mode::Owned { file: "02-istio-cni.conflist".to_owned() });
        assert_eq!(install.conf_name.as_deref(), Some("10-x.conflist"));
        assert!(install.conf_group_read && install.entry.status_gate && install.entry.detection_retry);
        assert_eq!(install.entry.log_level, "none");
        assert_eq!(install.entry.agent_run_dir, "/run/x");
        assert_eq!(install.entry.pod_namespace, "mesh");
        assert_eq!(
            install.entry.enablement_selectors,
            serde_json::json!([{"podSelector": {"matchLabels": {"a": "b"}}}])
        );
        let kubeconfig = install.kubeconfig.unwrap();
        assert_eq!((kubeconfig.protocol.as_str(), kubeconfig.host.as_str()), ("https", "10.0.0.1"));
        assert_eq!((kubeconfig.port.as_str(), kubeconfig.mode), ("443", 0o640));
        assert_eq!(kubeconfig.ca_file.as_deref(), Some(Path::new("/ca")));
        assert!(kubeconfig.skip_tls_verify && kubeconfig.service_account_dir == Path::new("/sa"));
        let kube = config.kube().unwrap();
        assert!(matches!(kube.source, kube::config::Source::InCluster { host, .. } if host == "10.0.0.1"));
        assert_eq!((kube.proxies.https.as_str(), kube.proxies.none.as_str()), ("proxy:1", "10.0.0.0/8"));
        let logging = config.logging();
        assert!(logging.json && logging.levels.default == log::LevelFilter::Warn);
        let rules = config.pod_rules();
        assert!(rules.dns_capture && !rules.ingress_mode && rules.ipv6);
    }

    #[test]
    fn an_api_server_is_needed_or_a_kubeconfig() {
        let kube = |variables: &[(&str, &str)]| read(&[], variables).unwrap().0.kube();
        assert_eq!(kube(&[]).unwrap_err().kind(), Kind::Usage);
        let outside = kube(&[("KUBECONFIG", "/a:/b")]).unwrap().source;
        assert_eq!(outside, kube::config::Source::Kubeconfig("/a:/b".to_owned()));
    }

    #[test]
    fn precedence() {
        let interval = |flags: &[(&'static str, &str)], variables: &[(&str, &str)]| {
            let flags = [&[("pod-source", "dir:/pods")], flags].concat();
            read(&flags, variables)
                .map(|(config, remarks)| (config.agent().unwrap().verify_interval.as_secs(), remarks.len()))
        };
        let (flag, variable) = (("verify-interval", "1s"), ("VERIFY_INTERVAL", "2s"));
        assert_eq!(interval(&[flag], &[variable]).unwrap(), (1, 0));
        assert_eq!(interval(&[], &[variable]).unwrap(), (2, 0));
        assert_eq!(interval(&[], &[("VERIFY_INTERVAL", "")]).unwrap(), (30, 0));
        assert_eq!(interval(&[], &[("VERIFY_INTERVAL", "tcp://10.0.0.1:80")]).unwrap(), (30, 1));
        assert_eq!(interval(&[flag], &[("VERIFY_INTERVAL", "nonsense")]).unwrap(), (1, 0));
        assert!(interval(&[("verify-interval", "tcp://10.0.0.1:80")], &[]).is_err());
        assert!(interval(&[("verify-interval", "")], &[]).is_err());
    }

    #[test]
    fn the_nodes_name() {
        let node = |variables: &[(&str, &str)]| {
            let (config, remarks) = read(&[], variables).unwrap();
            (config.node_name().unwrap(), remarks.len())
        };
        assert_eq!(node(&[("NODE_NAME", "a"), ("REPAIR_NODE_NAME", "a")]), ("a".to_owned(), 0));
        assert_eq!(node(&[("REPAIR_NODE_NAME", "b")]), ("b".to_owned(), 0));
        assert_eq!(node(&[("NODE_NAME", "a"), ("REPAIR_NODE_NAME", "b")]), ("a".to_owned(), 1));
        assert_eq!(read(&[("repair-enabled", "false"), ("pod-source", "dir:/x")], &[]).unwrap().0.repair(), None);
        for (flag, value, said) in [
            ("repair-label-selectors", "a=(", "a label selector ("),
            ("repair-field-selectors", "spec.x=1", "the fields are metadata.name"),
            ("repair-init-container-exit-code", "256", "0 to 255"),
        ] {
            let text = read(&[(flag, value)], &[]).unwrap_err().to_string();
            assert!(text.contains(flag) && text.contains(said), "{text}");
        }
    }

    #[test]
    fn what_has_no_effect_is_remarked() {
        let text = "option --vklog is accepted for compatibility and has no effect".to_owned();
        assert_eq!(read(&[("vklog", "9")], &[]).unwrap().1, [(log::Level::Debug, text)]);
    }

    #[test]
    fn the_name_of_the_owned_file() {
        let mode = |flags: &[(&'static str, &str)], variables: &[(&str, &str)]| {
            let on = [("ambient-enabled", "true"), ("istio-owned-cni-config", "true")];
            read(&[&on, flags].concat(), variables).unwrap().0.install().mode
        };
        let owned = |file: &str| install::Mode::Owned { file: file.to_owned() };
        let (flag, long, short) = (
            ("istio-owned-cni-config-filename", "01-a.conflist"),
            ("ISTIO_OWNED_CNI_CONFIG_FILENAME", "01-b.conflist"),
            ("ISTIO_OWNED_CNI_CONF_FILENAME", "01-c.conflist"),
        );
        assert_eq!(mode(&[flag], &[long, short]), owned("01-a.conflist"));
        assert_eq!(mode(&[], &[long, short]), owned("01-b.conflist"));
        // The chart sets it, and Istio's agent does not know it.
        assert_eq!(mode(&[], &[short]), owned("02-istio-cni.conflist"));
        assert_eq!(mode(&[], &[("ISTIO_OWNED_CNI_CONF_FILENAME", "")]), owned("02-istio-cni.conflist"));
        assert_eq!(read(&[("chained-cni-plugin", "false")], &[]).unwrap().0.install().mode, install::Mode::Standalone);
        for missing in ["ambient-enabled", "chained-cni-plugin"] {
            let flags = [("istio-owned-cni-config", "true"), ("ambient-enabled", "true"), (missing, "false")];
            assert_eq!(read(&flags, &[]).unwrap_err().kind(), Kind::Usage, "{missing}");
        }
    }
}
