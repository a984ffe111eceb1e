//! Finding the network namespace of a running pod by walking `/proc`.
//!
//! Whatever is read there others can shape: any user may name a cgroup after a pod where a part of the hierarchy is
//! his, and may make a network in a user namespace of his own and give it a pod's address. So a process is proved
//! before its namespace is taken, all through one descriptor of its directory, which cannot pass to another process:
//! its cgroup is one that a kubelet made for the pod ([`cgroup`]) and belongs to root, its network belongs to the node
//! or to a user namespace that a runtime made for a pod that wants one, an interface in it has one of the pod's
//! addresses (a process may be visiting another pod's namespace), and after all that its cgroup is still the same. Of
//! several such namespaces the one with the oldest process counts. What is refused is told, with the reason.

pub mod cgroup;
pub mod refusal;
pub mod root;
pub mod uid;

use crate::error::{Context, Error, Kind, Result};
use crate::sys::file::HostRoot;
use crate::sys::netns::{Netns, NetnsId, Owner};
use crate::sys::process::Process;
use crate::sys::{cgroup as sys_cgroup, netlink};
use cgroup::{Layout, Member};
use refusal::Refusal;
use root::CgroupRoots;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;
use uid::PodUid;

/// Most namespaces of one pod that are looked into, those with the oldest processes: a pod may make any number.
const MOST_NAMESPACES: usize = 32;

/// A pod that is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its uid.
    pub uid: String,
    /// The uid its cgroup carries when that differs (static pods).
    pub alias: Option<String>,
    /// Its addresses: one of them must be on an interface inside.
    pub ips: Vec<IpAddr>,
    /// It may have a user namespace of its own (`hostUsers: false`).
    pub own_users: bool,
}

/// What a search brought up.
#[derive(Debug, Default)]
pub struct Findings {
    /// The namespace of each pod that could be found, by uid. A pod that is missing may turn up later: its addresses
    /// may be out of date, or its processes not started.
    pub found: BTreeMap<String, Netns>,
    /// What was taken for a pod's and is none of its, by uid; one example of each kind.
    pub refused: BTreeMap<String, Vec<Refusal>>,
}

/// A node's processes.
#[derive(Debug, Clone, Copy)]
pub struct Processes<'a> {
    /// Below which `/proc` is.
    pub root: &'a HostRoot,
    /// Where the kubelet puts pods.
    pub cgroup_roots: &'a CgroupRoots,
    /// The host's network namespace, which is never a pod's.
    pub host: NetnsId,
}

/// A process that may be a pod's. Oldest first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Clock ticks from boot to its start.
    start: u64,
    /// Its directory.
    dir: PathBuf,
}

/// What one walk brought up about each pod, in its place: by namespace the oldest process, and what was refused.
type Walked = Vec<(BTreeMap<NetnsId, Candidate>, Vec<Refusal>)>;

impl Processes<'_> {
    /// One walk for all. `claimed` are namespaces that belong to enrolled pods already.
    pub fn find(&self, wanted: &[Wanted], claimed: &BTreeSet<NetnsId>) -> Result<Findings> {
        self.as_the_node_sees_them(|layout| {
            let mut findings = Findings::default();
            let mut taken = claimed.clone();
            for (pod, (candidates, mut refused)) in wanted.iter().zip(self.walk(layout, wanted, claimed)?) {
                let mut candidates: Vec<Candidate> = candidates.into_values().collect();
                candidates.sort_unstable();
                for candidate in candidates.into_iter().take(MOST_NAMESPACES) {
                    match self.prove(layout, pod, &candidate, &taken) {
                        Ok(Some(netns)) => {
                            taken.insert(netns.id());
                            findings.found.insert(pod.uid.clone(), netns);
                            break;
                        }
                        Ok(None) => {}
                        Err(why) => {
                            log::debug!(uid = pod.uid, process:% = candidate.dir.display();
                                "refused: {why}");
                            note(&mut refused, why);
                        }
                    }
                }
                if !refused.is_empty() {
                    findings.refused.insert(pod.uid.clone(), refused);
                }
            }
            Ok(findings)
        })
    }

    /// One walk for all: the namespaces in which each pod has processes, in its place; the host's does not count.
    pub fn homes(&self, wanted: &[Wanted]) -> Result<Vec<BTreeSet<NetnsId>>> {
        let walked = self.as_the_node_sees_them(|layout| self.walk(layout, wanted, &BTreeSet::new()))?;
        Ok(walked.into_iter().map(|(candidates, _)| candidates.into_keys().collect()).collect())
    }

    /// One walk for all: the pods that have processes in these namespaces, by what their cgroups say.
    pub fn residents(&self, places: &BTreeSet<NetnsId>) -> Result<BTreeMap<NetnsId, BTreeSet<PodUid>>> {
        self.as_the_node_sees_them(|layout| {
            let mut residents: BTreeMap<NetnsId, BTreeSet<PodUid>> = BTreeMap::new();
            self.each(|_, process, netns| {
                if places.contains(&netns)
                    && let Ok(text) = process.read("cgroup")
                    && let Some(member) = layout.judge(&text).member
                {
                    residents.entry(netns).or_default().insert(member.uid);
                }
            })?;
            Ok(residents)
        })
    }

    /// Paths of cgroups are written as their reader sees them: they are read as process 1 would.
    fn as_the_node_sees_them<T: Send>(&self, work: impl Fn(&Layout<'_>) -> Result<T> + Sync) -> Result<T> {
        let first = self.root.join("/proc/1");
        let look = || {
            let text = Process::open(&first).and_then(|process| process.read("cgroup")).unwrap_or_default();
            work(&Layout::new(self.cgroup_roots, &text))
        };
        match sys_cgroup::as_seen_from(&first.join("ns/cgroup"), look) {
            Ok(done) => done,
            // What cannot be told from here is refused.
            Err(e) => {
                if e.kind() != Kind::NotFound {
                    log::debug!("cgroups are seen from the agent's own namespace: {e}");
                }
                look()
            }
        }
    }

    /// Processes that end meanwhile, or cannot be read, are left out.
    fn walk(&self, layout: &Layout<'_>, wanted: &[Wanted], claimed: &BTreeSet<NetnsId>) -> Result<Walked> {
        let mut places: HashMap<PodUid, usize> = HashMap::new();
        for (place, pod) in wanted.iter().enumerate() {
            places.extend(uids(pod).map(|uid| (uid, place)));
        }
        let mut walked: Walked = vec![Default::default(); wanted.len()];
        self.each(|dir, process, netns| {
            if claimed.contains(&netns) {
                return;
            }
            let Ok(text) = process.read("cgroup") else { return };
            let judgement = layout.judge(&text);
            for (uid, why) in judgement.refused {
                if let Some((_, refused)) = places.get(&uid).and_then(|place| walked.get_mut(*place)) {
                    note(refused, why);
                }
            }
            let place = judgement.member.and_then(|member| places.get(&member.uid));
            let Some((candidates, _)) = place.and_then(|place| walked.get_mut(*place)) else { return };
            let Some(start) = process.read("stat").ok().and_then(|stat| start_time(&stat)) else { return };
            let candidate = Candidate { start, dir };
            candidates
                .entry(netns)
                .and_modify(|oldest| *oldest = oldest.clone().min(candidate.clone()))
                .or_insert(candidate);
        })?;
        Ok(walked)
    }

    /// Shows every process with its directory and its namespace, if that is not the host's. Processes that end meanwhile
    /// are left out.
    fn each(&self, mut show: impl FnMut(PathBuf, &Process, NetnsId)) -> Result<()> {
        let proc = self.root.join("/proc");
        let about = || format!("list the processes in {}", proc.display());
        for entry in std::fs::read_dir(&proc).with_context(about)? {
            let entry = entry.with_context(about)?;
            if !entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit) {
                continue;
            }
            let dir = entry.path();
            let Ok(process) = Process::open(&dir) else { continue };
            let Ok(netns) = process.netns_id() else { continue };
            if netns != self.host {
                show(dir, &process, netns);
            }
        }
        Ok(())
    }

    /// The namespace of a process that is proved to be the pod's; `None` for one that belongs to somebody else by now.
    fn prove(
        &self,
        layout: &Layout<'_>,
        pod: &Wanted,
        candidate: &Candidate,
        taken: &BTreeSet<NetnsId>,
    ) -> Result<Option<Netns>, Refusal> {
        let unreadable = |e: Error| Refusal::Unreadable(e.to_string());
        let process = Process::open(&candidate.dir).map_err(unreadable)?;
        let member = || -> Result<Member, Refusal> {
            let member = layout.judge(&process.read("cgroup").map_err(unreadable)?).member;
            let its = member.filter(|member| uids(pod).any(|uid| uid == member.uid));
            its.ok_or_else(|| Refusal::Unreadable("it has left the pod's cgroup".to_owned()))
        };
        let before = member()?;
        self.check_owners(&before)?;
        let netns = process.netns().map_err(unreadable)?;
        if netns.id() == self.host || taken.contains(&netns.id()) {
            return Ok(None);
        }
        admit(netns.owner().map_err(unreadable)?, pod.own_users)?;
        if !carries_one_of(&netns, &pod.ips).map_err(unreadable)? {
            return Err(if is_bare(&netns).map_err(unreadable)? { Refusal::Bare } else { Refusal::Address });
        }
        if member()? != before {
            return Err(Refusal::Unreadable("it went to another cgroup meanwhile".to_owned()));
        }
        Ok(Some(netns))
    }

    /// The directories that name the pod are root's. Where the file system cannot be seen, a place where nobody else
    /// can make a directory is enough.
    fn check_owners(&self, member: &Member) -> Result<(), Refusal> {
        for proof in &member.proofs {
            let owner = sys_cgroup::owner(self.root, &proof.controllers, &proof.path);
            match owner.map_err(|e| Refusal::Unreadable(e.to_string()))? {
                Some(0) => {}
                Some(owner) => return Err(Refusal::Owned { dir: proof.path.clone(), owner }),
                None if proof.by_runtime => return Err(Refusal::Unseen(proof.path.clone())),
                None => {}
            }
        }
        Ok(())
    }
}

/// Whether a network that belongs to this user namespace may be a pod's. Runtimes make those of pods, as root and
/// straight below the node's; anybody else's has somebody else for its root.
pub fn admit(owner: Owner, own_users: bool) -> Result<(), Refusal> {
    match owner {
        Owner::Own => Ok(()),
        Owner::Child { .. } | Owner::Deeper if !own_users => Err(Refusal::UserNamespace),
        Owner::Child { maker: 0 } => Ok(()),
        Owner::Child { maker } => Err(Refusal::Maker(maker)),
        Owner::Deeper | Owner::Stranger => Err(Refusal::Inner),
    }
}

/// Whether no interface in the namespace has an address by which a pod could be known.
fn is_bare(netns: &Netns) -> Result<bool> {
    let inside = netns.enter(netlink::addresses)??;
    Ok(inside.iter().all(|address| match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local(),
    }))
}

/// Whether an interface in the namespace has one of these addresses.
pub fn carries_one_of(netns: &Netns, ips: &[IpAddr]) -> Result<bool> {
    let inside = netns.enter(netlink::addresses)??;
    Ok(inside.iter().any(|inside| ips.iter().any(|ip| ip.to_canonical() == inside.to_canonical())))
}

/// The uids under which a pod's cgroup may be.
fn uids(pod: &Wanted) -> impl Iterator<Item = PodUid> {
    uids_of(&pod.uid, pod.alias.as_deref())
}

/// The uids under which the cgroup of a pod with this uid, and this alias, may be.
pub fn uids_of<'a>(uid: &'a str, alias: Option<&'a str>) -> impl Iterator<Item = PodUid> + 'a {
    [Some(uid), alias].into_iter().flatten().filter_map(PodUid::parse)
}

fn note(refused: &mut Vec<Refusal>, why: Refusal) {
    if !refused.iter().any(|known| known.is_like(&why)) {
        refused.push(why);
    }
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
