//! What is known of the node besides its pods, and what follows from it for each of them.

use super::{Node, Phase};
use crate::node::event::{Action, Subject, TaskId, Work};
use crate::node::pod::{Pod, settings_of};
use crate::node::records::NodeSettings;
use crate::node::redirection::Redirection;
use crate::node::tasks::Task;
use crate::pod::decision::{Action as Decided, Decision, decide};
use crate::pod::types::{Phase as Lifetime, Pod as Object, StringMap};
use crate::rules::inpod::Settings;
use crate::zds::server::WorkloadInfo;

/// What a pod should be, if it should be in the mesh.
pub(super) struct Goal {
    pub settings: Settings,
    pub info: WorkloadInfo,
}

impl Node {
    /// The decision about a pod of the source.
    pub(super) fn decide(&self, object: &Object) -> Decision {
        let none = StringMap::new();
        decide(&self.config.policy, object, self.namespaces.get(&object.name.namespace).unwrap_or(&none))
    }

    /// The node-wide settings of a pod's rules: those of its sandbox, if it has one.
    pub(super) fn settings_for(&self, pod: &Pod) -> NodeSettings {
        pod.sandbox().location().map_or(self.config.settings, |location| location.settings)
    }

    /// What the pod should be in the mesh; `None` when it should not be there.
    pub(super) fn goal(&self, pod: &Pod) -> Option<Goal> {
        let object = pod.object()?;
        if self.decide(object).action != Decided::Ambient {
            return None;
        }
        let settings = settings_of(object, &self.settings_for(pod));
        let info = WorkloadInfo {
            name: object.name.name.clone(),
            namespace: object.name.namespace.clone(),
            service_account: object.service_account.clone(),
        };
        Some(Goal { settings, info })
    }

    /// The pod has ended: the source knows it no more, or it has finished. That is not to leave the mesh: what is left of
    /// it in its namespace must not talk past the mesh, so that rules stay there as long as the namespace does.
    pub(super) fn has_ended(&self, pod: &Pod) -> bool {
        pod.object().is_none_or(|object| object.phase == Lifetime::Finished) && !self.is_unread(pod)
    }

    /// Something the agent needs is wrong, or right again. Whoever found the trouble has logged it.
    pub(super) fn condition(&mut self, what: &'static str, problem: Option<String>) {
        match problem {
            Some(problem) => self.conditions.insert(what, problem),
            None => self.conditions.remove(what),
        };
    }

    /// What helps a pod that the source does not know.
    pub(super) fn remedy_for_unknown(&self) -> String {
        match self.unread.as_slice() {
            _ if self.config.cluster => String::new(),
            [] => "; write a Pod file for it there".to_owned(),
            [first] => format!("; a file there cannot be read: {}", first.text),
            [first, rest @ ..] => format!("; {} files there cannot be read: {}; …", rest.len() + 1, first.text),
        }
    }

    /// Whether the pod is there and nothing is known of it, since what the source has of it or its namespace cannot be
    /// read: that is no reason to change anything about it.
    pub(super) fn is_unread(&self, pod: &Pod) -> bool {
        let namespace = &pod.name().namespace;
        self.unread.iter().any(|unread| match &unread.subject {
            Subject::File => false,
            Subject::Pod(uid) => pod.object().is_none() && uid == pod.uid(),
            Subject::Namespace(name) => name == namespace && !self.namespaces.contains_key(namespace),
        })
    }

    /// Said where a pod needs a ztunnel and there is none.
    pub(super) fn no_ztunnel(&self) -> String {
        let socket = &self.config.ztunnel_socket;
        let remedy = if self.config.cluster {
            "the ztunnel pod running on this node"
        } else {
            "ztunnel running, with this socket"
        };
        format!("no ztunnel is connected on {socket}; is {remedy}?")
    }

    /// The source has not told everything, or pods of an earlier run are being looked for.
    pub(super) fn is_starting(&self) -> bool {
        matches!(self.phase, Phase::Filling | Phase::Recalling(_))
    }

    /// The agent leaves.
    pub(super) fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Stopping(_))
    }

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

    /// Publishes the pod's redirection unless that is what is published.
    pub(super) fn publish(&mut self, pod: &mut Pod, redirection: Option<Redirection>) {
        // The annotation went with the object.
        let goes = pod.publish(redirection) && !(self.config.cluster && pod.object().is_none());
        if goes {
            self.out.push(Action::Publish(pod.uid().to_owned(), pod.name().clone(), redirection));
        }
    }
}
