//! The option table of the agent, which the other commands share.
//!
//! This file is long because it is one table, and each option stands in it once.

use super::agent::Config;
use super::option::{Expected, Name, Row, Section, Spec, Takes};
use super::value::{
    address, boolean, cgroup_roots, duration, enablement_selectors, file_name, host_path, log_levels, mode, namespaces,
    one_of, path, pod_source, port, runtime_classes,
};
use crate::pod::query::{self, FieldSelector};
use crate::sys::file::HostRoot;
use crate::sys::run_dir::RunDir;

type Set = fn(&mut Config, &str) -> Result<(), Expected>;

const fn row(
    name: Name,
    takes: Takes,
    default: &'static str,
    section: Section,
    help: &'static str,
    set: Set,
) -> Row<Config> {
    Row { spec: Spec { name, takes, default, section, help }, set }
}

const fn switch(
    name: &'static str,
    default: &'static str,
    section: Section,
    help: &'static str,
    set: Set,
) -> Row<Config> {
    row(Name::Flag(name), Takes::Switch, default, section, help, set)
}

const fn flag(
    name: &'static str,
    takes: &'static str,
    default: &'static str,
    section: Section,
    help: &'static str,
    set: Set,
) -> Row<Config> {
    row(Name::Flag(name), Takes::Value(takes), default, section, help, set)
}

const fn variable(
    name: &'static str,
    takes: &'static str,
    default: &'static str,
    section: Section,
    help: &'static str,
    set: Set,
) -> Row<Config> {
    row(Name::Variable(name), Takes::Value(takes), default, section, help, set)
}

fn put<T>(field: &mut T, value: Result<T, Expected>) -> Result<(), Expected> {
    *field = value?;
    Ok(())
}

/// Accepted whatever its value.
const fn ignored(name: &'static str, takes: &'static str) -> Row<Config> {
    flag(name, takes, "", Section::Ignored, "", |_, _| Ok(()))
}

const fn repair_switch(name: &'static str, default: &'static str, help: &'static str, set: Set) -> Row<Config> {
    switch(name, default, Section::Repair, help, set)
}

const fn repair(
    name: &'static str,
    takes: &'static str,
    default: &'static str,
    help: &'static str,
    set: Set,
) -> Row<Config> {
    flag(name, takes, default, Section::Repair, help, set)
}

/// Where the agent's sockets are; also for commands that only ask it.
pub const RUN_DIR: Spec = Spec {
    name: Name::Flag("cni-agent-run-dir"),
    takes: Takes::Value("DIR"),
    default: RunDir::DEFAULT,
    section: Section::Environment,
    help: "Our writable directory on the node: sockets, kubeconfig, the plugin's log.",
};

/// Every option of the agent.
pub const TABLE: &[Row<Config>] = &[
    // Which pods, and how.
    switch("ambient-enabled", "false", Section::Ambient, "Run the node agent of the ambient mesh.", |c, v| {
        put(&mut c.policy.ambient_enabled, boolean(v))
    }),
    flag(
        "ambient-enablement-selector",
        "YAML",
        "",
        Section::Ambient,
        "Which pods are in the mesh: a YAML list of {podSelector, namespaceSelector}; any pair that matches counts.",
        |c, v| {
            let (selectors, json) = enablement_selectors(v)?;
            (c.policy.selectors, c.selectors_json) = (selectors, json);
            Ok(())
        },
    ),
    flag(
        "exclude-namespaces",
        "LIST",
        "",
        Section::Ambient,
        "Namespaces that are never touched, separated by commas.",
        |c, v| put(&mut c.policy.exclude_namespaces, namespaces(v)),
    ),
    flag(
        "exclude-runtime-classes",
        "LIST",
        "",
        Section::Ambient,
        "Runtime classes (spec.runtimeClassName) whose pods are never touched, separated by commas: sandboxed runtimes.",
        |c, v| put(&mut c.policy.exclude_runtime_classes, runtime_classes(v)),
    ),
    switch(
        "ambient-dns-capture",
        "false",
        Section::Ambient,
        "Redirect the DNS of pods in the mesh to ztunnel.",
        |c, v| put(&mut c.settings.dns_capture, boolean(v)),
    ),
    switch("ambient-ipv6", "false", Section::Ambient, "Program IPv6 too.", |c, v| {
        put(&mut c.settings.ipv6, boolean(v))
    }),
    switch(
        "ambient-reconcile-pod-rules-on-startup",
        "false",
        Section::Ambient,
        "At start, bring the rules of pods that are already in the mesh to today's settings.",
        |c, v| put(&mut c.reconcile_on_startup, boolean(v)),
    ),
    switch(
        "ambient-disable-safe-upgrade",
        "false",
        Section::Ambient,
        "When stopped, always remove what was installed instead of judging whether a successor follows.",
        |c, v| put(&mut c.disable_safe_upgrade, boolean(v)),
    ),
    switch(
        "enable-ambient-detection-retry",
        "false",
        Section::Ambient,
        "While nobody can tell whether a pod is in the mesh, the plugin asks the API server again, for up to 20 s of one \
         ADD.",
        |c, v| put(&mut c.detection_retry, boolean(v)),
    ),
    switch("native-nftables", "false", Section::Ambient, "Use nf_tables instead of iptables.", |c, v| {
        put(&mut c.site.native_nftables, boolean(v))
    }),
    flag(
        "verify-interval",
        "DURATION",
        "30s",
        Section::Ambient,
        "How often every pod in the mesh is compared with what it should be, and repaired; 0 turns it off.",
        |c, v| put(&mut c.verify_interval, duration(v)),
    ),
    variable(
        "HOST_PROBE_SNAT_IP",
        "ADDRESS",
        "169.254.7.127",
        Section::Ambient,
        "Source address of the kubelet's probes as pods in the mesh see them.",
        |c, v| put(&mut c.settings.probe_v4, address(v, "IPv4")),
    ),
    variable(
        "HOST_PROBE_SNAT_IPV6",
        "ADDRESS",
        "fd16:9254:7127:1337:ffff:ffff:ffff:ffff",
        Section::Ambient,
        "Source address of those probes over IPv6.",
        |c, v| put(&mut c.settings.probe_v6, address(v, "IPv6")),
    ),
    row(
        Name::Variable("FORCE_IPTABLES_BINARY"),
        Takes::OneOf(&["legacy", "nft"]),
        "",
        Section::Ambient,
        "Backend of iptables to use instead of the one found by testing.",
        |c, v| put(&mut c.site.force_backend, one_of(v, &["legacy", "nft"]).map(Some)),
    ),
    row(
        Name::Variable("ALLOW_SWITCH_TO_HOST_NS"),
        Takes::Switch,
        "false",
        Section::Ambient,
        "This process is not on the host's network: that one is entered through /proc/1 below the host root.",
        |c, v| put(&mut c.site.switch_to_host_ns, boolean(v)),
    ),
    row(
        Name::Variable("AMBIENT_USE_SCOPED_XTABLES_LOCKING"),
        Takes::Switch,
        "true",
        Section::Ignored,
        "The lock of iptables is always one per network namespace.",
        |_, v| boolean(v).map(drop),
    ),
    row(
        Name::Variable("AMBIENT_ENABLE_AWS_BRANCH_ENI_PROBE"),
        Takes::Switch,
        "true",
        Section::Ambient,
        "Lead the probes of branch-ENI pods on AWS to their interfaces, where net.ipv4.tcp_early_demux is 0.",
        |c, v| put(&mut c.site.aws_branch_eni, boolean(v)),
    ),
    // The plugin and its configuration.
    flag(
        "mounted-cni-net-dir",
        "DIR",
        "{host-root}/etc/cni/net.d",
        Section::Installation,
        "The node's CNI configuration directory, as mounted here.",
        |c, v| put(&mut c.net_dir, host_path(v)),
    ),
    flag(
        "cni-bin-dir",
        "DIR",
        "{host-root}/opt/cni/bin",
        Section::Installation,
        "The node's directory of CNI plugins, as mounted here.",
        |c, v| put(&mut c.bin_dir, host_path(v)),
    ),
    flag(
        "cni-conf-name",
        "FILE",
        "",
        Section::Installation,
        "The CNI configuration to use; without it, the first valid one by name.",
        |c, v| put(&mut c.conf_name, file_name(v)),
    ),
    switch(
        "chained-cni-plugin",
        "true",
        Section::Installation,
        "Add the plugin to the chain of the node's configuration, or else write a configuration of its own.",
        |c, v| put(&mut c.chained, boolean(v)),
    ),
    switch(
        "istio-owned-cni-config",
        "false",
        Section::Installation,
        "Keep a full copy of the chain, with the plugin added, instead of editing the node's file.",
        |c, v| put(&mut c.owned, boolean(v)),
    ),
    variable(
        "ISTIO_OWNED_CNI_CONF_FILENAME",
        "FILE",
        "",
        Section::Installation,
        "Set by the istio-cni chart and, as by Istio's agent, not used: the next option names the file.",
        |c, v| put(&mut c.ignored_filename, file_name(v)),
    ),
    flag(
        "istio-owned-cni-config-filename",
        "FILE",
        "",
        Section::Installation,
        "File name of that copy; without it, 02-istio-cni.conflist. It must sort before the node's own.",
        |c, v| put(&mut c.owned_filename, file_name(v)),
    ),
    switch(
        "cni-conf-group-read",
        "false",
        Section::Installation,
        "New CNI configurations are readable by their group (mode 0640 instead of 0600).",
        |c, v| put(&mut c.conf_group_read, boolean(v)),
    ),
    switch(
        "cni-status-gate",
        "false",
        Section::Installation,
        "Let CNI STATUS fail while the agent or ztunnel is missing. Only for nodes where both are on the host's network.",
        |c, v| put(&mut c.status_gate, boolean(v)),
    ),
    flag("kubeconfig-mode", "MODE", "0600", Section::Installation, "Mode of the plugin's kubeconfig.", |c, v| {
        put(&mut c.kubeconfig_mode, mode(v))
    }),
    flag(
        "kube-ca-file",
        "FILE",
        "",
        Section::Installation,
        "CA certificates for the plugin's kubeconfig; without it, ca.crt of the service account.",
        |c, v| put(&mut c.kube_ca_file, path(v).map(Some)),
    ),
    switch(
        "skip-tls-verify",
        "false",
        Section::Installation,
        "The plugin's kubeconfig does not check the API server's certificate.",
        |c, v| put(&mut c.skip_tls_verify, boolean(v)),
    ),
    // Where things are.
    flag(
        "pod-source",
        "SOURCE",
        "kubernetes",
        Section::Environment,
        "Where pods and namespaces come from: the API server, or dir:PATH, a directory of JSON and YAML files.",
        |c, v| put(&mut c.pod_dir, pod_source(v)),
    ),
    flag(
        "host-root",
        "DIR",
        "/host",
        Section::Environment,
        "Where the host's files are; / when run straight on a host.",
        |c, v| put(&mut c.site.host_root, path(v).map(HostRoot::new)),
    ),
    flag(
        "kubelet-cgroup-root",
        "PATHS",
        "/,/kubelet",
        Section::Environment,
        "The kubelet's --cgroup-root, or several that it may have: a running pod is known by its cgroup below.",
        |c, v| put(&mut c.site.cgroup_roots, cgroup_roots(v)),
    ),
    Row { spec: RUN_DIR, set: |c, v| put(&mut c.site.run_dir, path(v).map(RunDir::new)) },
    flag(
        "ztunnel-uds-address",
        "SOCKET",
        "/var/run/ztunnel/ztunnel.sock",
        Section::Environment,
        "The socket on which ztunnels are served.",
        |c, v| put(&mut c.ztunnel_socket, path(v)),
    ),
    flag(
        "service-account-dir",
        "DIR",
        "/var/run/secrets/kubernetes.io/serviceaccount",
        Section::Environment,
        "Directory of the service account's token and CA certificates.",
        |c, v| put(&mut c.service_account_dir, path(v)),
    ),
    variable("KUBERNETES_SERVICE_HOST", "HOST", "", Section::Environment, "Host of the API server.", |c, v| {
        put(&mut c.api_host, Ok(v.to_owned()))
    }),
    variable("KUBERNETES_SERVICE_PORT", "PORT", "", Section::Environment, "Port of the API server.", |c, v| {
        put(&mut c.api_port, Ok(v.to_owned()))
    }),
    variable(
        "KUBERNETES_SERVICE_PROTOCOL",
        "SCHEME",
        "https",
        Section::Environment,
        "Scheme of the API server.",
        |c, v| put(&mut c.api_protocol, Ok(v.to_owned())),
    ),
    variable(
        "KUBECONFIG",
        "FILE",
        "",
        Section::Environment,
        "How to reach the API server from outside the cluster.",
        |c, v| put(&mut c.kubeconfig, Ok(v.to_owned())),
    ),
    variable("https_proxy", "URL", "", Section::Environment, "Proxy to an https API server.", |c, v| {
        put(&mut c.proxies.https, Ok(v.to_owned()))
    }),
    variable("HTTPS_PROXY", "URL", "", Section::Environment, "Wins over https_proxy.", |c, v| {
        put(&mut c.proxies.https, Ok(v.to_owned()))
    }),
    variable("http_proxy", "URL", "", Section::Environment, "Proxy to an http API server.", |c, v| {
        put(&mut c.proxies.http, Ok(v.to_owned()))
    }),
    variable("HTTP_PROXY", "URL", "", Section::Environment, "Wins over http_proxy.", |c, v| {
        put(&mut c.proxies.http, Ok(v.to_owned()))
    }),
    variable(
        "no_proxy",
        "LIST",
        "",
        Section::Environment,
        "Hosts, domains and networks reached without proxy, separated by commas.",
        |c, v| put(&mut c.proxies.none, Ok(v.to_owned())),
    ),
    variable("NO_PROXY", "LIST", "", Section::Environment, "Wins over no_proxy.", |c, v| {
        put(&mut c.proxies.none, Ok(v.to_owned()))
    }),
    variable(
        "KUBERNETES_NODE_NAME",
        "NAME",
        "",
        Section::Environment,
        "Name of this node; without it, the host's name.",
        |c, v| put(&mut c.node, Ok(v.to_owned())),
    ),
    variable(
        "NODE_NAME",
        "NAME",
        "",
        Section::Environment,
        "Name of this node; wins over the other variable.",
        |c, v| put(&mut c.node, Ok(v.to_owned())),
    ),
    variable("POD_NAME", "NAME", "", Section::Environment, "Name of the agent's own pod.", |_, _| Ok(())),
    variable("POD_NAMESPACE", "NAME", "", Section::Environment, "Namespace of the agent's own pod.", |c, v| {
        put(&mut c.pod_namespace, Ok(v.to_owned()))
    }),
    variable(
        "SYSTEM_NAMESPACE",
        "NAME",
        "istio-system",
        Section::Environment,
        "Namespace of the control plane and ztunnel.",
        |c, v| put(&mut c.policy.system_namespace, Ok(v.to_owned())),
    ),
    variable("REVISION", "NAME", "", Section::Environment, "Revision of the control plane.", |_, _| Ok(())),
    // Seeing.
    flag(
        "log_output_level",
        "LEVELS",
        "default:info",
        Section::Observability,
        "Levels by scope, as default:info,cni-agent:debug (scopes cni-agent, cni-plugin, default, all; levels debug, \
         info, warn, error, fatal, none); a bare level is for scope default.",
        |c, v| put(&mut c.logging.levels, log_levels(v)),
    ),
    switch("log_as_json", "false", Section::Observability, "Write log lines as JSON.", |c, v| {
        put(&mut c.logging.json, boolean(v))
    }),
    flag("monitoring-port", "PORT", "15014", Section::Observability, "Port of /metrics; 0 is off.", |c, v| {
        put(&mut c.monitoring_port, port(v))
    }),
    flag("health-port", "PORT", "8000", Section::Observability, "Port of /healthz and /readyz; 0 is off.", |c, v| {
        put(&mut c.health_port, port(v))
    }),
    // Race repair.
    repair_switch(
        "repair-enabled",
        "true",
        "Look for sidecar pods that started before the plugin was there.",
        |c, v| put(&mut c.repair_enabled, boolean(v)),
    ),
    repair_switch(
        "repair-repair-pods",
        "false",
        "Redirect them while they run; where that does not help they are deleted, if that is on too.",
        |c, v| put(&mut c.repair.repair, boolean(v)),
    ),
    repair_switch(
        "repair-delete-pods",
        "false",
        "Delete them, if they are not to be repaired; a few a minute.",
        |c, v| put(&mut c.repair.delete, boolean(v)),
    ),
    repair_switch("repair-label-pods", "false", "Label them, if they are neither repaired nor deleted.", |c, v| {
        put(&mut c.repair_label_pods, boolean(v))
    }),
    repair("repair-broken-pod-label-key", "KEY", "cni.istio.io/uninitialized", "The label's key.", |c, v| {
        put(&mut c.repair_label.0, Ok(v.to_owned()))
    }),
    repair("repair-broken-pod-label-value", "VALUE", "true", "The label's value.", |c, v| {
        put(&mut c.repair_label.1, Ok(v.to_owned()))
    }),
    repair("repair-node-name", "NAME", "", "Name of this node, where the variables do not tell.", |c, v| {
        put(&mut c.repair_node, Ok(v.to_owned()))
    }),
    repair(
        "repair-sidecar-annotation",
        "KEY",
        "sidecar.istio.io/status",
        "Only pods with this annotation; empty is any.",
        |c, v| put(&mut c.repair.filter.annotation, Ok(v.to_owned())),
    ),
    repair(
        "repair-init-container-name",
        "NAME",
        "istio-validation",
        "Init container whose failure marks the race; empty is any.",
        |c, v| put(&mut c.repair.filter.container, Ok(v.to_owned())),
    ),
    repair(
        "repair-init-container-termination-message",
        "TEXT",
        "",
        "Only failures with this message; empty is any.",
        |c, v| put(&mut c.repair.filter.message, Ok(v.to_owned())),
    ),
    repair("repair-init-container-exit-code", "CODE", "126", "Only failures with this exit code; 0 is any.", |c, v| {
        let code = v.parse::<u8>().map(i32::from).map_err(|_| "an exit code from 0 to 255".to_owned());
        put(&mut c.repair.filter.exit_code, code)
    }),
    repair(
        "repair-label-selectors",
        "SELECTOR",
        "",
        "Only pods whose labels match, as app=web,tier in (a,b),!canary.",
        |c, v| put(&mut c.repair.filter.labels, query::labels(v).map_err(|e| format!("a label selector ({e})"))),
    ),
    repair(
        "repair-field-selectors",
        "SELECTOR",
        "",
        "Only pods whose fields match, as metadata.namespace!=a,spec.restartPolicy=Never.",
        |c, v| put(&mut c.repair.filter.fields, FieldSelector::parse(v).map_err(|e| format!("a field selector ({e})"))),
    ),
    // Without effect.
    ignored("cni-network-config", "JSON"),
    ignored("cni-network-config-file", "FILE"),
    ignored("log-level", "LEVEL"),
    ignored("log_target", "LIST"),
    ignored("log_caller", "SCOPES"),
    ignored("log_stacktrace_level", "LEVELS"),
    ignored("log_rotate", "FILE"),
    ignored("log_rotate_max_age", "DAYS"),
    ignored("log_rotate_max_backups", "COUNT"),
    ignored("log_rotate_max_size", "MEGABYTES"),
    ignored("vklog", "LEVEL"),
    ignored("ctrlz_address", "ADDRESS"),
    ignored("ctrlz_port", "PORT"),
];
