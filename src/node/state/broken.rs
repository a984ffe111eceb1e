//! Pods that started before the plugin was there: which they are, and what people are told of their repair.

use super::State;
use crate::error::{Kind, Result};
use crate::node::event::Action;
use crate::node::publish::event_recorder::PodEvent;
use crate::repair::order::End;

impl State {
    /// The source has told of a pod.
    pub(super) fn examine(&mut self, uid: &str) {
        let (Some(broken), Some(pod)) = (&mut self.broken, self.pods.get(uid)) else { return };
        match pod.object() {
            Some(object) if !self.node.config.policy.exclude_namespaces.contains(&object.name.namespace) => {
                broken.observe(object, self.node.now);
            }
            _ => broken.gone(uid),
        }
    }

    /// What came of an order, for people as well.
    pub(super) fn repaired(&mut self, uid: &str, end: End) {
        let now = self.node.now;
        let Some(notice) = self.broken.as_mut().and_then(|broken| broken.settled(uid, end, now)) else { return };
        self.node.out.push(Action::Announce(PodEvent {
            uid: uid.to_owned(),
            pod: notice.pod,
            warning: notice.warning,
            reason: notice.reason,
            component: "cni-repair",
            message: notice.message,
        }));
    }
}

/// What became of the rules.
pub(super) fn end_of(result: &Result<()>) -> End {
    match result {
        Ok(()) => End::Done,
        Err(e) if e.kind() == Kind::HostNetns => End::Refused(e.to_string()),
        Err(e) => End::Failed(e.to_string()),
    }
}
