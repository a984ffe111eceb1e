//! Finding the network namespace of a running pod by walking `/proc`.
//!
//! A pod's processes are known by their [`cgroup`]; the oldest one's namespace is taken, and only if an interface in
//! it carries one of the pod's addresses: a process may be visiting another pod's namespace, or the host's.

pub mod cgroup;

use crate::error::{Context, Result};
use crate::sys::file::HostRoot;
use crate::sys::netlink;
use crate::sys::netns::{Netns, NetnsId};
use cgroup::PodUid;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

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

/// A process of a wanted pod. Oldest first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Process {
    /// Clock ticks from boot to its start.
    start: u64,
    /// Its namespace file.
    file: PathBuf,
    /// Its namespace.
    netns: NetnsId,
}

/// One walk for all: the namespace of each pod that could be found, by uid. `claimed` are namespaces that belong to
/// enrolled pods already; the host's is never taken. A pod that is missing from the answer may turn up later: its
/// addresses may be out of date, or its processes not started.
pub fn find(
    root: &HostRoot,
    wanted: &[Wanted],
    host: NetnsId,
    claimed: &BTreeSet<NetnsId>,
) -> Result<BTreeMap<String, Netns>> {
    let processes = walk(&root.join("/proc"), wanted, |id| id == host || claimed.contains(&id))?;
    let mut found = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for (pod, mut processes) in wanted.iter().zip(processes) {
        processes.sort_unstable();
        let mut refused = BTreeSet::new();
        for process in processes {
            if taken.contains(&process.netns) || refused.contains(&process.netns) {
                continue;
            }
            // The process may have ended, and its number been given away: then another one is the witness.
            let Ok(netns) = Netns::open(&process.file) else { continue };
            if netns.id() != process.netns {
                continue;
            }
            match carries_one_of(&netns, &pod.ips) {
                Ok(true) => {
                    taken.insert(netns.id());
                    found.insert(pod.uid.clone(), netns);
                    break;
                }
                Ok(false) => log::debug!(uid = pod.uid, inode = process.netns.ino;
                    "a process of the pod is in a network namespace that has none of its addresses"),
                Err(error) => log::debug!(uid = pod.uid, inode = process.netns.ino;
                    "cannot look into the network namespace of a process of the pod: {error}"),
            }
            refused.insert(process.netns);
        }
    }
    Ok(found)
}

/// One walk for all: the namespaces in which each pod has processes, in its place; the host's does not count.
pub fn homes(root: &HostRoot, wanted: &[Wanted], host: NetnsId) -> Result<Vec<BTreeSet<NetnsId>>> {
    let processes = walk(&root.join("/proc"), wanted, |id| id == host)?;
    Ok(processes.into_iter().map(|of_pod| of_pod.into_iter().map(|process| process.netns).collect()).collect())
}

fn carries_one_of(netns: &Netns, ips: &[IpAddr]) -> Result<bool> {
    let inside = netns.enter(netlink::addresses)??;
    Ok(inside.iter().any(|inside| ips.iter().any(|ip| ip.to_canonical() == inside.to_canonical())))
}

/// The processes of each wanted pod, in its place, but for those whose namespace is to be skipped. Processes that end
/// meanwhile, or cannot be read, are left out.
fn walk(proc: &Path, wanted: &[Wanted], skip: impl Fn(NetnsId) -> bool) -> Result<Vec<Vec<Process>>> {
    let mut places: HashMap<PodUid, usize> = HashMap::new();
    for (place, pod) in wanted.iter().enumerate() {
        let uids = [Some(pod.uid.as_str()), pod.alias.as_deref()];
        places.extend(uids.into_iter().flatten().filter_map(PodUid::parse).map(|uid| (uid, place)));
    }
    let mut processes = vec![Vec::new(); wanted.len()];
    let about = || format!("list the processes in {}", proc.display());
    for entry in std::fs::read_dir(proc).with_context(about)? {
        let entry = entry.with_context(about)?;
        if !entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit) {
            continue;
        }
        let dir = entry.path();
        let file = dir.join("ns/net");
        let Ok(meta) = std::fs::metadata(&file) else { continue };
        let netns = NetnsId { dev: meta.dev(), ino: meta.ino() };
        if skip(netns) {
            continue;
        }
        let Some(process) = witness(&dir, &places) else { continue };
        if let Some(list) = processes.get_mut(process.0) {
            list.push(Process { start: process.1, file, netns });
        }
    }
    Ok(processes)
}

/// The place of the pod a process belongs to, and the process's start.
fn witness(dir: &Path, places: &HashMap<PodUid, usize>) -> Option<(usize, u64)> {
    let cgroup = std::fs::read(dir.join("cgroup")).ok()?;
    let place = *places.get(&cgroup::pod_of(&String::from_utf8_lossy(&cgroup))?)?;
    let stat = std::fs::read(dir.join("stat")).ok()?;
    Some((place, start_time(&String::from_utf8_lossy(&stat))?))
}

/// Field 22 of `/proc/PID/stat`, clock ticks from boot to the start of the process (proc(5)). The second field is the
/// program's name, in parentheses, and may itself have blanks and parentheses.
pub fn start_time(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_times() {
        let check = |stat: &str, want: Option<u64>| assert_eq!(start_time(stat), want, "{stat}");
        let rest = "S 1 42 42 0 -1 4194560 2189 0 11 0 3 5 0 0 20 0 1 0 8271 3444736 512 18446744073709551615 1 1";
        check(&format!("42 (sh) {rest}\n"), Some(8271));
        check(&format!("42 (a b) c) {rest}\n"), Some(8271));
        check(&format!("42 () S 1 2 3) {rest}\n"), Some(8271));
        check("42 (sh) S 1 2", None);
        check("", None);
        check("42 (sh", None);
        for end in 0..rest.len() {
            let cut = format!("42 (sh) {}", &rest[..end]);
            assert!(start_time(&cut).is_none_or(|start| start <= 8271), "{cut}");
        }
    }
}
