//! What a kernel shows that holds a program.

use super::nftables::tables::Own;
use crate::rules::diff::Expected;
use crate::rules::family::Family;
use std::collections::BTreeMap;

/// What a kernel that holds a program looks like.
#[derive(Debug, Default)]
pub struct Reference {
    /// What iptables keeps, by family; IPv6 only where it works.
    pub families: BTreeMap<Family, Expected>,
    /// Tables of our own.
    pub own: Own,
}
