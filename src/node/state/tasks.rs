//! Work that is handed out, and what comes of it.

use super::sidecar::Redirecting;
use super::{Node, Phase, State};
use crate::node::event::{Action, Answer, Outcome, ReplyTo, TaskId, Work};
use crate::node::pod::Job;
use crate::sys::netns::{Netns, NetnsId};
use std::sync::Arc;

/// Work that is not of one pod.
pub(super) enum Task {
    /// The namespace of an unknown sandbox is being cleaned; who asked for it is answered then.
    Clean(Arc<Netns>, Option<ReplyTo>),
    /// These pods are being looked for: uid, and the pod's generation when the search began.
    Walk(Vec<(String, u64)>),
    /// The paths of sandboxes that are no longer valid are being looked at.
    Probe(ReplyTo),
    /// The namespaces of these pods are being compared with those of their processes: uid and generation.
    Compare(Vec<(String, u64)>),
    /// The host's side is being looked at.
    Host,
    /// The namespaces of these broken pods are being looked for.
    Seek(Vec<String>),
    /// Whether a namespace is redirected to its sidecar is being looked at, for whoever asked.
    Inspect(ReplyTo),
    /// A namespace is being redirected to a sidecar.
    Redirect(Redirecting),
}

impl Node {
    /// Hands work out and returns its number.
    pub(super) fn start(&mut self, work: Work) -> TaskId {
        self.last_task += 1;
        let id = TaskId(self.last_task);
        self.out.push(Action::Work(id, work));
        id
    }

    /// Hands out work that is not of one pod.
    pub(super) fn start_task(&mut self, work: Work, task: Task) -> TaskId {
        let id = self.start(work);
        self.tasks.insert(id, task);
        id
    }

    /// Whether the namespace of an unknown sandbox is being cleaned.
    pub(super) fn is_being_cleaned(&self, id: NetnsId) -> bool {
        self.tasks.values().any(|task| matches!(task, Task::Clean(netns, _) if netns.id() == id))
    }
}

impl State {
    /// A worker has finished.
    pub(super) fn done(&mut self, id: TaskId, outcome: Outcome) {
        let Some(task) = self.node.tasks.remove(&id) else {
            self.pod_done(id, outcome);
            return;
        };
        match (task, outcome) {
            (Task::Clean(_, reply), outcome) => {
                if let Outcome::Removed(Err(e)) = outcome {
                    log::warn!("cleaning the namespace of an unknown sandbox failed: {e}");
                }
                self.node.out.extend(reply.map(|reply| Action::Reply(reply, Answer::Done)));
            }
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
            (Some(Job::Checking), Outcome::Checked(result, record)) => {
                pod.written(record);
                self.node.checked(pod, result);
            }
            (Some(Job::Recognising), Outcome::Recognised(result)) => self.node.recognised(pod, result),
            (Some(Job::Entering(ips)), Outcome::Entered(result)) => self.node.entered(pod, ips, result),
            (Some(Job::Leaving), Outcome::Left(result)) => self.node.left(pod, result),
            (Some(Job::Recording), Outcome::Noted(result)) => self.node.noted(pod, result),
            (Some(Job::Removing(netns)), Outcome::Removed(result)) => self.node.removed(pod, netns, result),
            (job, outcome) => log::error!(uid = uid.as_str(); "{outcome:?} does not answer {job:?}"),
        }
        self.advance(&uid);
    }
}
