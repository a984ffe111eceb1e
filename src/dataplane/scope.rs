//! How much of a namespace's packet filters is looked at.

use crate::rules::nftables;
use crate::rules::program::Purpose;

/// How much of a table is looked at.
#[derive(Debug, Clone, Copy)]
pub enum Scope {
    /// All there is.
    Everything,
    /// The rules of these chains of one table. Which other chains there are is seen, but nothing in them.
    Chains {
        /// The table.
        table: &'static str,
        /// The chains.
        chains: &'static [&'static str],
        /// Tables of nf_tables whose rules are looked at besides.
        ours: &'static [&'static str],
    },
}

impl Scope {
    /// What a program of this purpose depends on. A host may have ten thousands of rules that are not ours.
    pub fn of(purpose: Purpose) -> Self {
        match purpose {
            Purpose::Ambient | Purpose::Sidecar => Scope::Everything,
            Purpose::Host => {
                Scope::Chains { table: "nat", chains: &["POSTROUTING", "ISTIO_POSTRT"], ours: &[nftables::HOST_TABLE] }
            }
        }
    }
}
