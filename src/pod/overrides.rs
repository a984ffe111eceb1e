//! Per-pod settings by annotation.

use super::types::StringMap;

/// What a pod's annotations ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `ambient.istio.io/bypass-inbound-capture`: ingress mode.
    pub ingress_mode: bool,
    /// `ambient.istio.io/dns-capture`; overrides the global setting both ways.
    pub dns_capture: Option<bool>,
    /// `istio.io/reroute-virtual-interfaces`; only valid interface names.
    pub reroute_interfaces: Vec<String>,
    /// What was wrong with the rest, one sentence each, naming annotation and value.
    pub warnings: Vec<String>,
}

/// Reads the annotations. A bad value is a warning and counts as absent.
pub fn parse(_annotations: &StringMap) -> Overrides {
    todo!()
}
