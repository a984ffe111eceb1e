//! Pods and namespaces, reduced to what we need. Memory per pod is bounded by what is kept here.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Labels or annotations.
pub type StringMap = BTreeMap<String, String>;

/// `namespace/name`, as people write it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl std::fmt::Display for PodName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// `status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Pending, Running or Unknown.
    #[default]
    Active,
    /// Succeeded or Failed: its containers will never run again.
    Finished,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// `metadata.uid`.
    pub uid: String,
    /// Namespace and name.
    pub name: PodName,
    /// `spec.serviceAccountName`; `default` when unset.
    pub service_account: String,
    /// `metadata.labels`.
    pub labels: StringMap,
    /// `metadata.annotations`, only those with a meaning here are kept.
    pub annotations: StringMap,
    /// `status.podIPs`, else `status.podIP`; IPv4-mapped IPv6 unmapped.
    pub ips: Vec<IpAddr>,
    /// `status.phase`.
    pub phase: Phase,
    /// `spec.hostNetwork`.
    pub host_network: bool,
    /// `metadata.deletionTimestamp` is set.
    pub being_deleted: bool,
}

impl Pod {
    /// The uid under which the runtime and the cgroup know a static pod: annotation `kubernetes.io/config.hash`.
    pub fn runtime_uid(&self) -> &str {
        self.annotations.get("kubernetes.io/config.hash").map_or(&self.uid, |hash| hash)
    }
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.labels`.
    pub labels: StringMap,
}
