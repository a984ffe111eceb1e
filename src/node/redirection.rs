//! What is published about a pod: whether peers may send it HBONE.

use crate::pod::types::StringMap;

/// The annotation by which pods are published.
pub const ANNOTATION: &str = "ambient.istio.io/redirection";

/// Value of [`ANNOTATION`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Redirection {
    /// Peers may send HBONE to the pod.
    Enabled,
    /// The rules are in place, ztunnel has not acknowledged yet.
    Pending,
}

impl Redirection {
    /// The annotation's value.
    pub fn value(self) -> &'static str {
        match self {
            Redirection::Enabled => "enabled",
            Redirection::Pending => "pending",
        }
    }

    /// What the annotation of a pod says; a value that is not ours says nothing.
    pub fn of(annotations: &StringMap) -> Option<Self> {
        let value = annotations.get(ANNOTATION)?;
        [Redirection::Enabled, Redirection::Pending].into_iter().find(|known| known.value() == value)
    }
}
