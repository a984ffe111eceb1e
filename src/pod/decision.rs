//! The one decision: is this pod in the mesh, and how. Serves the plugin, the agent, repair and `explain`.

use super::selector::EnablementSelectors;
use super::types::{Pod, StringMap};

/// What is done with a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Enrol it in the ambient mesh.
    Ambient,
    /// Redirect it to its sidecar.
    Sidecar,
    /// Leave it alone.
    None,
}

/// A decision and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What is done.
    pub action: Action,
    /// Why, as one clause for logs, answers and `explain`.
    pub reason: String,
}

/// What the decision depends on besides the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// `--ambient-enabled`.
    pub ambient_enabled: bool,
    /// `--ambient-enablement-selector`.
    pub selectors: EnablementSelectors,
    /// `--exclude-namespaces`.
    pub exclude_namespaces: Vec<String>,
    /// `SYSTEM_NAMESPACE`, where ztunnel runs.
    pub system_namespace: String,
}

/// Decides.
pub fn decide(_policy: &Policy, _pod: &Pod, _namespace_labels: &StringMap) -> Decision {
    todo!()
}
