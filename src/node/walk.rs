//! Finds the namespaces of running pods: in remembered places first, then in one walk over `/proc` for all the others.
//!
//! A remembered place is proved before it is taken: paths, inodes and addresses come back with another pod while another
//! agent runs. What is there must be the very namespace that was remembered, must have one of the pod's addresses, and
//! its processes must not say that it is another pod's. Whoever fails that is looked for by its own processes.

use super::event::{Sought, Walked};
use crate::dataplane::procfs::refusal::Refusal;
use crate::dataplane::procfs::root::CgroupRoots;
use crate::dataplane::procfs::{Processes, Wanted, admit, carries_one_of, uids_of};
use crate::error::{Error, Kind, Result};
use crate::sys::file::HostRoot;
use crate::sys::netns::{Netns, NetnsId};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Where is looked.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    /// Where the host's files are.
    pub host_root: &'a HostRoot,
    /// Where the kubelet puts pods.
    pub cgroup_roots: &'a CgroupRoots,
    /// The host's namespace, which is never a pod's.
    pub host: NetnsId,
}

impl Places<'_> {
    fn processes(&self) -> Processes<'_> {
        Processes { root: self.host_root, cgroup_roots: self.cgroup_roots, host: self.host }
    }
}

impl From<&Sought> for Wanted {
    fn from(sought: &Sought) -> Self {
        let Sought { uid, alias, ips, own_users, .. } = sought.clone();
        Wanted { uid, alias, ips, own_users }
    }
}

/// The pods whose processes are all in other namespaces than the one that is held for them.
pub fn compare(places: &Places<'_>, pods: &[(Sought, NetnsId)]) -> Result<BTreeMap<String, Option<Arc<Netns>>>> {
    let all: Vec<Wanted> = pods.iter().map(|(sought, _)| sought.into()).collect();
    let homes = places.processes().homes(&all)?;
    let elsewhere =
        |((_, held), homes): &(&(Sought, NetnsId), &BTreeSet<NetnsId>)| !homes.is_empty() && !homes.contains(held);
    let moved: Vec<Wanted> = pods.iter().zip(&homes).filter(elsewhere).map(|((sought, _), _)| sought.into()).collect();
    if moved.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut found = places.processes().find(&moved, &BTreeSet::new())?.found;
    Ok(moved.into_iter().map(|pod| (found.remove(&pod.uid).map(Arc::new), pod.uid)).map(|(n, uid)| (uid, n)).collect())
}

/// Looks for all of them. Of two that claim one namespace the first gets it.
pub fn walk(places: &Places<'_>, sought: &[Sought], mut claimed: BTreeSet<NetnsId>) -> Result<Walked> {
    let mut walked = Walked::default();
    let mut others = Vec::new();
    let mut in_place = remembered(places, sought)?;
    for pod in sought {
        match in_place.remove(&pod.uid).filter(|netns| !claimed.contains(&netns.id())) {
            Some(netns) => {
                claimed.insert(netns.id());
                walked.found.insert(pod.uid.clone(), Arc::new(netns));
            }
            None => others.push(pod.into()),
        }
    }
    if !others.is_empty() {
        let running = places.processes().find(&others, &claimed)?;
        walked.found.extend(running.found.into_iter().map(|(uid, netns)| (uid, Arc::new(netns))));
        for (uid, why) in running.refused {
            if why.contains(&Refusal::Bare) {
                walked.bypassed.insert(uid.clone());
            }
            walked.refused.insert(uid, why.iter().map(ToString::to_string).collect());
        }
    }
    Ok(walked)
}

/// The namespaces at remembered paths that are proved to be the pods'.
fn remembered(places: &Places<'_>, sought: &[Sought]) -> Result<BTreeMap<String, Netns>> {
    let candidates: Vec<(&Sought, Netns)> =
        sought.iter().filter_map(|pod| Some((pod, candidate(places, pod)?))).collect();
    if candidates.is_empty() {
        return Ok(BTreeMap::new());
    }
    let residents = places.processes().residents(&candidates.iter().map(|(_, netns)| netns.id()).collect())?;
    let is_its = |(pod, netns): &(&Sought, Netns)| match residents.get(&netns.id()) {
        Some(there) => uids_of(&pod.uid, pod.alias.as_deref()).any(|uid| there.contains(&uid)),
        // Of the cookie alone it is known that nobody else can have it.
        None => pod.identity.is_some_and(|identity| identity.cookie.is_some()),
    };
    let proved = candidates.into_iter().filter(is_its);
    Ok(proved.map(|(pod, netns)| (pod.uid.clone(), netns)).collect())
}

fn candidate(places: &Places<'_>, pod: &Sought) -> Option<Netns> {
    let netns = open_netns(places.host_root, pod.path.as_deref()?).ok()?;
    if netns.id() == places.host || netns.identity().ok() != Some(pod.identity?) {
        return None;
    }
    admit(netns.owner().ok()?, pod.own_users).ok()?;
    carries_one_of(&netns, &pod.ips).ok()?.then_some(netns)
}

/// Opens a namespace by the path a runtime gave: below the host root, else as process 1 sees it (a mount that was made
/// on the host after we started is visible only there).
pub fn open_netns(host_root: &HostRoot, path: &str) -> Result<Netns> {
    if path.is_empty() {
        return Err(Error::of(Kind::NotFound, "no path of a network namespace was given"));
    }
    let open = |root: &HostRoot| Netns::from_fd(OwnedFd::from(root.open(path)?));
    open(host_root).or_else(|e| open(&HostRoot::new(host_root.join("/proc/1/root"))).map_err(|_| e))
}
