//! The rules of an ambient pod, inside its network namespace.

use std::net::{Ipv4Addr, Ipv6Addr};

/// What the rules of one pod depend on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Settings {
    /// Redirect the pod's DNS to ztunnel.
    pub dns_capture: bool,
    /// Do not capture inbound plaintext (ingress gateways).
    pub ingress_mode: bool,
    /// Virtual interfaces whose traffic counts as outbound (KubeVirt, docker in docker).
    pub reroute_interfaces: Vec<String>,
    /// Program IPv6 too (where the namespace has it).
    pub ipv6: bool,
    /// Source address of the kubelet's probes as SNATed on the host (`HOST_PROBE_SNAT_IP`).
    pub probe_v4: Ipv4Addr,
    /// IPv6 twin (`HOST_PROBE_SNAT_IPV6`).
    pub probe_v6: Ipv6Addr,
}
