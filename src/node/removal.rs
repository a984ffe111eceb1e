//! Taking off a node what no installer put there: the host's rules, probe sets and policy rules, and on demand the rules
//! in the pods that an agent enrolled.

use super::Site;
use super::event::Sought;
use super::execute::Context as Workspace;
use super::publish::state_file;
use super::records::{Record, Records};
use super::walk::walk;
use crate::dataplane::inpod::InPod;
use crate::error::{Context, Result};
use crate::install::{Removal, Run};
use crate::rules::inpod::nothing;
use crate::sys::netns::Netns;
use crate::sys::run_dir::RunDir;
use std::collections::BTreeSet;

/// Removes the host's side, and with `pods` also the rules of pods, as the records in the run directory name them. No
/// agent may be running. Goes on past failures; a second call does nothing.
pub fn remove(site: &Site, pods: bool, run: Run) -> Removal {
    let workspace = match Workspace::at(site, Records::existing(&site.run_dir)) {
        Ok(workspace) => workspace,
        Err(e) => return Removal { failures: vec![e], ..Removal::default() },
    };
    let mut removal = host_side(&workspace, run);
    if pods && let Err(e) = pod_rules(&workspace, &site.run_dir, run, &mut removal) {
        removal.failures.push(e.context("take the rules out of pods"));
    }
    removal
}

/// Removes the host's side.
pub(super) fn host_side(workspace: &Workspace, run: Run) -> Removal {
    let mut removal = Removal::default();
    if let Some(host) = &workspace.host_side {
        match workspace.programmer() {
            Ok(programmer) => {
                let left = host.left(programmer.engine());
                let removed = left.and_then(|left| match run {
                    Run::Real if !left.is_empty() => host.remove_all(programmer.engine()).map(|()| left),
                    _ => Ok(left),
                });
                removal.take(removed.context("remove the host's rules and probe sets"));
            }
            // On such a node there has never been a rule that uses them.
            Err(_) if host.in_kernel().is_ok_and(|entries| entries.is_empty()) => {}
            Err(e) => removal.failures.push(e.context("remove the host's rules and probe sets")),
        }
    }
    if let Some(branches) = &workspace.branches {
        let left = branches.left();
        let removed = if run == Run::Real { branches.ensure(Some(&BTreeSet::new())).map(drop) } else { Ok(()) };
        removal.take(removed.map(|()| left).context("remove the policy rules for probes"));
    }
    removal
}

fn pod_rules(workspace: &Workspace, run_dir: &RunDir, run: Run, removal: &mut Removal) -> Result<()> {
    let records: Vec<Record> = workspace.records.recall()?.into_iter().filter(|record| record.enrolled).collect();
    if records.is_empty() {
        return Ok(());
    }
    let sought: Vec<Sought> = records.iter().map(sought).collect();
    let mut found = walk(&workspace.places(), &sought, BTreeSet::new())?.found;
    let programmer = workspace.programmer()?;
    let mut out = BTreeSet::new();
    for record in records {
        let name = format!("{}/{}", record.namespace, record.name);
        let removed = match found.remove(&record.uid) {
            Some(netns) => of_pod(&programmer, &netns, &name, run),
            None => Ok(vec![format!("pod {name} is gone, or has another address; nothing is done in its place")]),
        };
        if removed.is_ok() && run == Run::Real {
            workspace.records.forget(&record.uid)?;
            out.insert(record.uid);
        }
        removal.take(removed.with_context(|| format!("take the rules out of pod {name}")));
    }
    state_file::withdraw(run_dir, &out)
}

fn of_pod(programmer: &InPod, netns: &Netns, name: &str, run: Run) -> Result<Vec<String>> {
    if programmer.check(netns, nothing())?.is_empty() {
        return Ok(Vec::new());
    }
    if run == Run::Real {
        programmer.remove(netns)?;
    }
    Ok(vec![format!("remove the rules of pod {name}")])
}

fn sought(record: &Record) -> Sought {
    Sought {
        uid: record.uid.clone(),
        alias: record.alias.clone(),
        ips: record.ips.clone(),
        // Not known any more.
        own_users: true,
        path: Some(record.path.clone()).filter(|path| !path.is_empty()),
        identity: record.netns,
    }
}

impl Removal {
    fn take(&mut self, steps: Result<Vec<String>>) {
        match steps {
            Ok(steps) => self.steps.extend(steps),
            Err(e) => self.failures.push(e),
        }
    }
}
