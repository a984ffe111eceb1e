//! Our entry in a CNI configuration.

use super::PLUGIN;
use serde_json::{Map, Value};

/// What our plugin is told through the configuration. The keys are those of Istio's plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Level of the plugin's log: `debug`, `info`, `warn`, `error`, `none`.
    pub log_level: String,
    /// The agent's run dir as the plugin sees it on the host.
    pub agent_run_dir: String,
    /// Ambient mode is on.
    pub ambient_enabled: bool,
    /// The enablement selectors, a JSON array of `{podSelector, namespaceSelector}`.
    pub enablement_selectors: Value,
    /// Namespaces that are never touched.
    pub exclude_namespaces: Vec<String>,
    /// Runtime classes whose pods are never touched. Named in the entry only when there are some.
    pub exclude_runtime_classes: Vec<String>,
    /// Namespace the agent runs in.
    pub pod_namespace: String,
    /// The nf_tables backend is used instead of iptables.
    pub native_nftables: bool,
    /// The plugin asks the API server again while nobody can tell whether a pod is in the mesh.
    pub detection_retry: bool,
    /// STATUS fails while the agent or ztunnel is missing. Named in the entry only when on.
    pub status_gate: bool,
}

impl Entry {
    /// The entry as the JSON object it should be, without a `cniVersion` of its own.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut object = Map::new();
        let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
        put("type", PLUGIN.into());
        put("name", PLUGIN.into());
        put("plugin_log_level", self.log_level.as_str().into());
        put("cni_agent_run_dir", self.agent_run_dir.as_str().into());
        put("ambient_enabled", self.ambient_enabled.into());
        put("enablement_selectors", self.enablement_selectors.clone());
        put("exclude_namespaces", self.exclude_namespaces.clone().into());
        put("pod_namespace", self.pod_namespace.as_str().into());
        put("native_nftables", self.native_nftables.into());
        put("enable_ambient_detection_retry", self.detection_retry.into());
        if !self.exclude_runtime_classes.is_empty() {
            put("exclude_runtime_classes", self.exclude_runtime_classes.clone().into());
        }
        if self.status_gate {
            put("status_gate", true.into());
        }
        object
    }
    /// The entry as a configuration of its own, for a meta plugin that calls us by name.
    pub fn to_standalone(&self) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("cniVersion".to_owned(), "0.3.1".into());
        object.extend(self.to_json());
        object
    }
}
