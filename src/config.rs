//! From strings to each module's own options: parse, don't validate.
//!
//! [`table::TABLE`] is the one list of options. [`Config::read`] fills a [`Config`] from flags, variables and defaults,
//! in this order of precedence; a wrong value ends the process before any thread starts, naming the option, the value
//! and what is allowed. The functions of [`Config`] hand each room its part.

mod agent;
pub mod certificates;
pub mod doctor;
pub mod iptables;
pub mod option;
pub mod table;
pub mod value;

use crate::error::{Error, Kind, Result};
use crate::install;
use option::{Flags, Remark, Variables};

pub use agent::Config;

impl Config {
    /// Reads every option: flag before variable before default.
    pub fn read(flags: &Flags, variables: &Variables) -> Result<(Self, Vec<Remark>)> {
        let mut config = Config::blank();
        let mut remarks = option::fill(table::TABLE, flags, variables, &mut config)?;
        if config.owned && !(config.chained && config.policy.ambient_enabled) {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube;
    use crate::logging;
    use crate::node::PodSource;
    use crate::pod::decision::Policy;
    use crate::pod::query::{self, FieldSelector};
    use crate::repair;
    use crate::repair::detect::Filter;
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::time::Duration;

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
        assert_eq!(agent.site.run_dir.path(), Path::new("/var/run/istio-cni"));
        assert_eq!(agent.site.host_root.path(), Path::new("/host"));
        assert_eq!(agent.ztunnel_socket, Path::new("/var/run/ztunnel/ztunnel.sock"));
        assert_eq!(agent.policy, Policy { system_namespace: "istio-system".to_owned(), ..Policy::default() });
        assert!(
            !agent.settings.dns_capture
                && !agent.settings.ipv6
                && !agent.reconcile_on_startup
                && !agent.disable_safe_upgrade
        );
        assert!(!agent.site.switch_to_host_ns);
        assert_eq!(agent.settings.probe_v4.to_string(), "169.254.7.127");
        assert_eq!(agent.settings.probe_v6.to_string(), "fd16:9254:7127:1337:ffff:ffff:ffff:ffff");
        assert_eq!((agent.health_port, agent.monitoring_port), (8000, 15014));
        assert_eq!(agent.own_namespace, "istio-system");
        assert_eq!((agent.site.force_backend, agent.verify_interval), (None, Duration::from_secs(30)));
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
        assert!(
            agent.settings.dns_capture
                && agent.settings.ipv6
                && agent.reconcile_on_startup
                && agent.disable_safe_upgrade
        );
        assert!(agent.site.switch_to_host_ns);
        assert_eq!(agent.site.force_backend.as_deref(), Some("legacy"));
        assert_eq!((agent.verify_interval, agent.site.run_dir.path().to_str()), (Duration::ZERO, Some("/run/x")));
        assert_eq!(agent.ztunnel_socket, Path::new("/run/z.sock"));
        assert_eq!(
            (agent.settings.probe_v4.to_string(), agent.settings.probe_v6.to_string()),
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
