//! Where a pod's sandbox is: enough to find it again without holding it.

use crate::node::records::NodeSettings;
use crate::sys::netns::NetnsIdentity;
use std::net::IpAddr;

/// What is known of a sandbox from the runtime, from a record, or from a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::node) struct Location {
    /// Sandbox id; empty when unknown.
    pub container_id: String,
    /// Path of the namespace on the host; empty when unknown.
    pub path: String,
    /// Which namespace it is, once that was written down.
    pub netns: Option<NetnsIdentity>,
    /// The uid that the runtime uses, where it differs.
    pub alias: Option<String>,
    /// Addresses that were ever said to be the sandbox's, or were found inside.
    pub ips: Vec<IpAddr>,
    /// Addresses that the plugin gave for this very sandbox.
    pub told: Vec<IpAddr>,
    /// The node-wide settings of its rules.
    pub settings: NodeSettings,
}

impl Location {
    /// The sandbox of a pod that was found by its processes: only its settings are known.
    pub fn unknown(settings: NodeSettings) -> Self {
        let (container_id, path) = (String::new(), String::new());
        Location { container_id, path, netns: None, alias: None, ips: Vec::new(), told: Vec::new(), settings }
    }
}
