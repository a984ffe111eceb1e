//! Finding the network namespace of a running pod by walking `/proc`.

use crate::error::Result;
use crate::sys::file::HostRoot;
use crate::sys::netns::{Netns, NetnsId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// A pod that is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its uid.
    pub uid: String,
    /// The uid its cgroup carries when that differs (static pods).
    pub alias: Option<String>,
    /// Its addresses: one of them must be on an interface inside.
    pub ips: Vec<IpAddr>,
}

/// One walk for all: the namespace of each pod that could be found, by uid. `claimed` are namespaces that belong to
/// enrolled pods already; the host's is never taken.
pub fn find(
    _root: &HostRoot,
    _wanted: &[Wanted],
    _host: NetnsId,
    _claimed: &BTreeSet<NetnsId>,
) -> Result<BTreeMap<String, Netns>> {
    todo!()
}
