//! Pods and namespaces, reduced to what we need. Memory per pod is bounded by what is kept here.

use super::failed_init::FailedInit;
pub use super::strings::StringMap;
use std::net::IpAddr;

/// `namespace/name`, as people write it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    /// `metadata.annotations`, only those with a meaning here are kept: Istio's and [`CONFIG_HASH`].
    pub annotations: StringMap,
    /// `status.podIPs`, else `status.podIP`; IPv4-mapped IPv6 unmapped.
    pub ips: Vec<IpAddr>,
    /// `status.phase`.
    pub phase: Phase,
    /// `spec.hostNetwork`.
    pub host_network: bool,
    /// `spec.hostUsers`: false for a pod with a user namespace of its own.
    pub host_users: bool,
    /// `spec.runtimeClassName`; empty when unset.
    pub runtime_class: String,
    /// `metadata.deletionTimestamp` is set.
    pub being_deleted: bool,
    /// The container `istio-proxy`, init or not, if there is one.
    pub proxy: Option<Box<Proxy>>,
    /// A container, init or not, is named `istio-init`: it programs the pod's redirection itself.
    pub has_istio_init: bool,
    /// Set where an init container has failed.
    pub failed_init: Option<Box<FailedInit>>,
}

/// What sidecar redirection depends on in the container `istio-proxy`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Proxy {
    /// `securityContext.runAsUser`.
    pub run_as_user: Option<u32>,
    /// `securityContext.runAsGroup`.
    pub run_as_group: Option<u32>,
    /// The first two of `args`: `proxy sidecar` for a sidecar.
    pub args: Vec<String>,
    /// Those of `env` with a meaning here ([`Proxy::ENV`]) and a literal value; the last of one name counts.
    pub env: StringMap,
}

impl Proxy {
    /// The variables that are kept.
    pub const ENV: [&str; 4] = ["DISABLE_ENVOY", "ISTIO_META_DNS_CAPTURE", "ISTIO_DUAL_STACK", "INVALID_DROP"];
}

/// Annotation of a static pod's mirror: the uid under which the runtime and the cgroup know the pod (32 hex digits).
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";

impl Pod {
    /// The uid under which the runtime and the cgroup know the pod; differs from `uid` for static pods
    /// ([`CONFIG_HASH`]).
    pub fn runtime_uid(&self) -> &str {
        self.annotations.get(CONFIG_HASH).filter(|hash| !hash.is_empty()).unwrap_or(&self.uid)
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
