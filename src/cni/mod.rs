//! The CNI plugin: what a runtime passes ([`conf`], [`version`]), what we answer ([`result`]), what the agent is asked
//! ([`event`]) and the verbs ([`plugin`]).

/// The DaemonSet of the node agent, whose name its pods' names begin with.
pub(crate) const DAEMON_SET: &str = "istio-cni-node";

/// Whether a pod has the name of one of that DaemonSet's.
pub(crate) fn is_agent_pod(name: &str) -> bool {
    name.strip_prefix(DAEMON_SET).is_some_and(|rest| rest.starts_with('-'))
}

pub mod ask;
pub mod conf;
pub mod event;
mod fallback;
mod log;
pub mod outside;
pub mod plugin;
pub mod result;
pub mod version;
