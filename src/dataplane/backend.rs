//! The choice of where new rules go.

use super::xtables::variant::Variant;

/// Where new rules go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// Where this iptables keeps its rules.
    Iptables(Variant),
    /// Into tables of nf_tables of our own; no program is run.
    Nftables,
}
