//! What comes of work that was handed out.

use super::{Phase, State};
use crate::node::event::{Action, Answer, Outcome, TaskId};
use crate::node::pod::Job;
use crate::node::tasks::Task;

impl State {
    /// A worker has finished.
    pub(super) fn done(&mut self, id: TaskId, outcome: Outcome) {
        let Some(task) = self.node.tasks.remove(&id) else {
            self.pod_done(id, outcome);
            return;
        };
        match (task, outcome) {
            (Task::Walk(sought), Outcome::Walked(found)) => {
                self.walked(&sought, found);
                if self.node.phase == Phase::Recalling(id) {
                    self.serve();
                }
            }
            (Task::Probe(reply), Outcome::Probed(gone)) => {
                self.probed(&gone);
                self.node.out.push(Action::Reply(reply, Answer::Done));
            }
            (Task::Redirect(task), Outcome::Redirected(result)) => self.redirected(task, result),
            (Task::Seek(uids), Outcome::Walked(found)) => self.sought(uids, found),
            (Task::Inspect(reply), Outcome::Inspected(result)) => self.inspected(reply, result),
            (Task::Compare(asked), Outcome::Compared(moved)) => self.compared(&asked, moved),
            (Task::Host, Outcome::Hosted(result)) => self.node.host_done(result),
            (_, outcome) => log::error!("{outcome:?} does not answer task {}", id.0),
        }
    }

    /// A worker has finished something in a pod's namespace.
    fn pod_done(&mut self, id: TaskId, outcome: Outcome) {
        let Some(uid) = self.pods.find(|pod| pod.job().is_some_and(|(task, _)| *task == id)) else { return };
        let Some(pod) = self.pods.get_mut(&uid) else { return };
        match (pod.finish(), outcome) {
            (Some(Job::Applying(netns, settings)), Outcome::Applied(result, record)) => {
                pod.written(record);
                self.node.applied(pod, netns, settings, result);
            }
            (Some(Job::Checking(_)), Outcome::Checked(result, record)) => {
                pod.written(record);
                self.node.checked(pod, result);
            }
            (Some(Job::Recognising(_)), Outcome::Recognised(result)) => self.node.recognised(pod, result),
            (Some(Job::Entering(ips)), Outcome::Entered(result)) => self.node.entered(pod, ips, result),
            (Some(Job::Leaving), Outcome::Left(result)) => self.node.left(pod, result),
            (Some(Job::Recording), Outcome::Noted(result)) => self.node.noted(pod, result),
            (Some(Job::Removing(netns)), Outcome::Removed(result)) => self.node.removed(pod, netns, result),
            (job, outcome) => log::error!(uid = uid.as_str(); "{outcome:?} does not answer {job:?}"),
        }
        self.advance(&uid);
    }
}
