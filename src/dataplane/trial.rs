//! Rules that are tried in a namespace that is thrown away, to see whether this kernel takes them.

use super::look::Kernel;
use super::nftables::tables as own;
use crate::error::{Error, Kind, Result};
use crate::rules::family::Family;
use crate::rules::host;
use crate::rules::inpod::{Settings, rules};
use crate::rules::nftables::tables;
use crate::rules::program::Purpose;
use crate::sys::netns::Netns;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Whether this kernel takes tables of our own, as pods and the host get them, with rules of this family; tried in a
/// namespace that is thrown away.
pub fn takes_own_tables(kernel: Kernel, family: Family) -> Result<()> {
    if !kernel.has_nft() {
        return Err(Error::of(Kind::Unsupported, "the kernel has no nf_tables"));
    }
    let host = host::Settings { probe_v4: Ipv4Addr::LOCALHOST, probe_v6: Ipv6Addr::LOCALHOST, kubelet: None };
    let programs = [(Purpose::Ambient, rules(&settings(), family)), (Purpose::Host, host::rules(&host, family))];
    let write = |(purpose, rules)| Netns::scratch()?.enter(|| own::write(&tables(purpose, &[rules])))?;
    programs.into_iter().try_for_each(write)
}

/// The settings of a pod whose rules are tried.
pub(super) fn settings() -> Settings {
    Settings {
        dns_capture: false,
        ingress_mode: false,
        reroute_interfaces: vec![],
        ipv6: true,
        probe_v4: Ipv4Addr::LOCALHOST,
        probe_v6: Ipv6Addr::LOCALHOST,
    }
}
