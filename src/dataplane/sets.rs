//! The host's probe sets, wherever they are.

use super::backend::Backend;
use super::nftables::set;
use super::xtables::ipset;
use crate::error::Result;
use crate::rules::family::Family;
use crate::rules::host::probe_set as name;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Where the sets are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sets {
    /// Sets of ipset.
    Ipset,
    /// Sets of our own table of nf_tables.
    Nftables,
}

impl From<Backend> for Sets {
    fn from(backend: Backend) -> Self {
        match backend {
            Backend::Iptables(_) => Sets::Ipset,
            Backend::Nftables => Sets::Nftables,
        }
    }
}

impl Sets {
    /// The other place.
    pub fn other(self) -> Self {
        match self {
            Sets::Ipset => Sets::Nftables,
            Sets::Nftables => Sets::Ipset,
        }
    }

    /// What a person calls the set of a family.
    pub fn name(self, family: Family) -> String {
        match self {
            Sets::Ipset => format!("ipset {}", name(family)),
            Sets::Nftables => format!("nf_tables set {}", name(family)),
        }
    }

    /// Makes the set of a family unless it is there.
    pub fn create(self, family: Family) -> Result<()> {
        match self {
            Sets::Ipset => ipset::create(family),
            Sets::Nftables => set::create(family),
        }
    }

    /// Enters an address for a pod, in place of whoever had it.
    pub fn add(self, address: IpAddr, uid: &str) -> Result<()> {
        match self {
            Sets::Ipset => ipset::add(address, uid),
            Sets::Nftables => set::add(address, uid),
        }
    }

    /// Removes an address if its entry is this pod's; says whether it was.
    pub fn remove(self, address: IpAddr, uid: &str) -> Result<bool> {
        match self {
            Sets::Ipset => ipset::remove(address, uid),
            Sets::Nftables => set::remove(address, uid),
        }
    }

    /// Addresses and the uids they are entered for; empty when there is no such set.
    pub fn entries(self, family: Family) -> Result<BTreeMap<IpAddr, String>> {
        match self {
            Sets::Ipset => ipset::entries(family),
            Sets::Nftables => set::entries(family),
        }
    }
}
