//! From the start, when the source is read and pods of an earlier run are looked for, to the stop.

use super::tasks::Task;
use super::{Phase, State};
use crate::node::event::{Action, Stop};
use crate::node::pod::Pod;
use crate::pod::types::PodName;
use std::time::Duration;

/// From the stop signal to the exit; the process has 5 s in all.
const STOP: Duration = Duration::from_millis(3500);

impl State {
    /// Why the agent is not ready; empty when it is.
    pub(super) fn not_ready(&self) -> Vec<String> {
        let node = &self.node;
        let phase = match node.phase {
            Phase::Filling => Some(match self.missed().filter(|_| node.told) {
                Some(name) => {
                    let (source, remedy) = (&node.config.source, node.remedy_for_unknown());
                    format!("starting: pod {name} was in the mesh, and is not by what {source} says{remedy}")
                }
                None => format!("starting: {} has not been read yet", node.config.source),
            }),
            Phase::Recalling(_) => Some("starting: pods enrolled by an earlier run are being looked for".to_owned()),
            Phase::Running => None,
            Phase::Stopping(_) => Some("the agent is stopping".to_owned()),
        };
        let conditions = node.conditions.iter().map(|(what, problem)| format!("{what}: {problem}"));
        phase.into_iter().chain(node.host_not_ready()).chain(conditions).collect()
    }

    /// A pod of an earlier run that would be taken out, while that may be because of a file that could not be read: it
    /// is no proof that the pod has gone, or its namespace left the mesh.
    pub(super) fn missed(&self) -> Option<&PodName> {
        if self.node.unread.is_empty() {
            return None;
        }
        let was_in = |pod: &&Pod| pod.sandbox().is_recalled() || pod.published().is_some();
        self.pods.iter().filter(was_in).find(|pod| self.node.goal(pod).is_none()).map(Pod::name)
    }

    /// Everything the source had has been told: pods of an earlier run are looked for, all in one walk.
    pub(super) fn synced(&mut self) {
        self.node.synced = true;
        // Also when there are none: an earlier run may have known others.
        self.node.outside_changed = true;
        if self.node.phase != Phase::Filling {
            return;
        }
        self.node.phase = Phase::Running;
        self.seek_recalled();
        match self.start_search() {
            Some(task) => self.node.phase = Phase::Recalling(task),
            None => self.serve(),
        }
        self.advance_all();
    }

    /// What was looked for has been found, or not: ztunnels that wait for their snapshot get it.
    pub(super) fn serve(&mut self) {
        self.node.phase = Phase::Running;
        log::info!(pods = self.pods.len(); "ready: {} has been read", self.node.config.source);
        for connection in self.node.ztunnels.waiting() {
            self.send_snapshot(connection);
        }
        for (event, netns, reply) in std::mem::take(&mut self.early) {
            self.del(&event, netns, reply);
        }
        self.advance_all();
    }

    /// The agent is to leave.
    pub(super) fn stop(&mut self, why: &Stop) {
        if !self.node.is_stopping() {
            log::info!("stopping: {why}");
            self.node.phase = Phase::Stopping(self.node.now + STOP);
            self.refuse_lookups();
        }
    }

    /// Leaves when nothing is left that a stop should not cut off, or its time is over.
    pub(super) fn leave_when_idle(&mut self) {
        let Phase::Stopping(until) = self.node.phase else { return };
        let walk = |task: &Task| matches!(task, Task::Walk(_) | Task::Compare(_) | Task::Seek(_));
        let idle = self.node.tasks.values().all(walk) && self.pods.iter().all(|pod| !pod.is_busy());
        if idle || self.node.now >= until {
            self.node.out.push(Action::Exit);
        }
    }
}
