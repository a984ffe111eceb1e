//! Routing of marked packets: the policy rule and the route that it leads to.

use super::family::Family;

/// A policy rule: packets with this mark use this table (`ip rule add fwmark MARK/MASK pref PREF lookup TABLE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MarkRule {
    /// Family.
    pub family: Family,
    /// Mark.
    pub mark: u32,
    /// Mask of the mark.
    pub mask: u32,
    /// Preference; `None` lets the kernel choose.
    pub priority: Option<u32>,
    /// Routing table.
    pub table: u32,
}

/// `ip route … local 0.0.0.0/0 dev lo table TABLE` (or `::/0`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LocalRoute {
    /// Family.
    pub family: Family,
    /// Routing table.
    pub table: u32,
}
