//! From the start, when the source is read and pods of an earlier run are looked for, to the stop.

use super::{Phase, State};
use crate::node::event::{Action, Stop};
use crate::node::tasks::Task;
use std::time::Duration;

/// From the stop signal to the exit; the process has 5 s in all.
const STOP: Duration = Duration::from_millis(3500);

impl State {
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
        if self.node.config.host_side {
            // What was entered for pods that went while no agent ran is thrown out.
            let busy = self.node.tasks.values().any(|task| matches!(task, Task::Host));
            self.node.host.look_again(self.node.now, busy);
        }
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
