//! Pods of AWS with a network interface of their own (branch ENIs, "security groups for pods"): their traffic is led
//! past this host, and the kubelet's probes, once they come from the well-known source address, would be too.
//!
//! Such a pod has a route in a table of its own, and a rule that sends whatever comes from its veth there. Two rules
//! more lead probes through the veth: to the pod by its own table, and back to this host by the local one. AWS asks for
//! `net.ipv4.tcp_early_demux=0` where it makes such pods reachable from the host; elsewhere nothing is done.
//!
//! What is put in is remembered in a file before it is, so that it can be taken out when the interface is long gone.

use super::policy::{self, LOCAL_TABLE, Match, PolicyRule};
use crate::error::{Context, Kind, Result};
use crate::rules::family::Family;
use crate::sys::file::{self, Mode};
use crate::sys::netns::Netns;
use crate::sys::run_dir::RunDir;
use crate::sys::sync;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

/// A node has some dozen such pods.
const MAX_FILE: usize = 1 << 20;
/// Preference of the rule to the pod: before those of AWS that lead packets of the host elsewhere (1024 and more).
const TO_POD: u32 = 512;
/// `RT_TABLE_DEFAULT` and the two after it, `main` and `local`: no pod's own.
const COMMON_TABLES: std::ops::RangeInclusive<u32> = 253..=LOCAL_TABLE;

/// How an address of a pod is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Branch {
    address: IpAddr,
    /// The host's end of the pod's veth.
    interface: String,
    /// The pod's table.
    table: u32,
    /// Preference of the rule that leads what comes from the pod to that table.
    priority: u32,
}

impl Branch {
    /// In the calling thread's namespace.
    fn of(address: IpAddr) -> Result<Option<Self>> {
        let routes = policy::host_routes(address)?;
        let rules = policy::list(Family::of(address))?;
        let found = routes.into_iter().filter(|route| !COMMON_TABLES.contains(&route.table)).find_map(|route| {
            let from = Match::From(route.interface.clone());
            let rule = rules.iter().find(|rule| rule.matches == from && rule.table == route.table)?;
            // There is no place before the first.
            let priority = Some(rule.priority).filter(|priority| *priority > 0)?;
            Some(Branch { address, interface: route.interface, table: route.table, priority })
        });
        Ok(found)
    }

    fn rules(&self) -> [PolicyRule; 2] {
        let family = Family::of(self.address);
        let (to, from) = (Match::To(self.address), Match::From(self.interface.clone()));
        [
            PolicyRule { family, matches: to, table: self.table, priority: TO_POD },
            PolicyRule { family, matches: from, table: LOCAL_TABLE, priority: self.priority.saturating_sub(1) },
        ]
    }
}

/// The rules that are in place, by pod uid.
type Held = BTreeMap<String, Vec<Branch>>;

/// The rules of all pods that need some.
#[derive(Debug)]
pub struct Branches {
    netns: Netns,
    path: PathBuf,
    held: Mutex<Held>,
}

impl Branches {
    /// Takes the host's namespace `netns`, and what an earlier run remembered in `run_dir`.
    pub fn recall(netns: Netns, run_dir: &RunDir) -> Self {
        let path = run_dir.branch_enis();
        let held = read(&path).unwrap_or_else(|e| {
            log::warn!("rules for probes of branch-ENI pods of an earlier run stay: {e}");
            Held::new()
        });
        Branches { netns, path, held: Mutex::new(held) }
    }

    /// Puts the rules for these addresses of a pod in, and takes out what it had for others.
    pub fn enter(&self, uid: &str, addresses: &[IpAddr]) -> Result<()> {
        let held = &mut *self.held();
        if !self.netns.enter(is_concerned)?? {
            return self.give_up(held, uid);
        }
        self.netns.enter(|| {
            let branches = addresses.iter().map(|address| Branch::of(address.to_canonical()));
            let new = branches.filter_map(Result::transpose).collect::<Result<Vec<_>>>()?;
            let old = held.get(uid).cloned().unwrap_or_default();
            if new != old {
                log::info!(uid = uid; "probes of a branch-ENI pod are led to its interface: {new:?}");
                let all = old.iter().chain(&new).cloned().collect();
                self.remember(held, uid, all)?;
                let kept = |rule: &PolicyRule| new.iter().any(|branch| branch.rules().contains(rule));
                old.iter()
                    .flat_map(Branch::rules)
                    .filter(|r| !kept(r))
                    .try_for_each(|r| policy::remove(&r).map(drop))?;
                self.remember(held, uid, new.clone())?;
            }
            new.iter().flat_map(Branch::rules).try_for_each(|rule| policy::add(&rule).map(drop))
        })?
    }

    /// Takes everything of a pod out.
    pub fn leave(&self, uid: &str) -> Result<()> {
        self.give_up(&mut self.held(), uid)
    }

    /// Puts back what is missing, and takes out what is of none of these pods if they are given. Returns what was not
    /// as it should be, one clause each.
    pub fn ensure(&self, known: Option<&BTreeSet<String>>) -> Result<Vec<String>> {
        let held = &mut *self.held();
        let strangers = known.map(|known| held.keys().filter(|uid| !known.contains(*uid)).cloned().collect::<Vec<_>>());
        for uid in strangers.unwrap_or_default() {
            self.give_up(held, &uid)?;
        }
        if held.is_empty() {
            return Ok(Vec::new());
        }
        self.netns.enter(|| {
            let mut missing = Vec::new();
            for (uid, branch) in held.iter().flat_map(|(uid, all)| all.iter().map(move |branch| (uid, branch))) {
                for rule in branch.rules() {
                    if policy::add(&rule)? {
                        missing.push(format!("a policy rule for the probes of pod {uid} was missing: {rule:?}"));
                    }
                }
            }
            Ok(missing)
        })?
    }

    /// What is in place, one clause each.
    pub fn left(&self) -> Vec<String> {
        self.held().keys().map(|uid| format!("remove the policy rules for the probes of pod {uid}")).collect()
    }

    fn give_up(&self, held: &mut Held, uid: &str) -> Result<()> {
        let Some(branches) = held.get(uid).cloned() else { return Ok(()) };
        self.netns
            .enter(|| branches.iter().flat_map(Branch::rules).try_for_each(|rule| policy::remove(&rule).map(drop)))??;
        self.remember(held, uid, Vec::new())
    }

    fn remember(&self, held: &mut Held, uid: &str, branches: Vec<Branch>) -> Result<()> {
        if branches.is_empty() {
            held.remove(uid);
        } else {
            held.insert(uid.to_owned(), branches);
        }
        let text = serde_json::to_vec(held).context("encode the rules for branch-ENI pods")?;
        file::replace_volatile(&self.path, &text, Mode(0o600))
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        sync::lock(&self.held)
    }
}

/// Whether the host of the calling thread's namespace may have such pods.
fn is_concerned() -> Result<bool> {
    match file::read_limited(Path::new("/proc/sys/net/ipv4/tcp_early_demux"), 16) {
        Ok(text) => Ok(text.trim_ascii() == b"0"),
        Err(e) if e.kind() == Kind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

fn read(path: &Path) -> Result<Held> {
    match file::read_limited(path, MAX_FILE) {
        Err(e) if e.kind() == Kind::NotFound => Ok(Held::new()),
        bytes => decode(&bytes?).with_context(|| format!("parse {}", path.display())),
    }
}

fn decode(bytes: &[u8]) -> Result<Held> {
    Ok(serde_json::from_slice(bytes)?)
}
