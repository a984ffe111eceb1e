//! What people who look at a pod are told: by an Event, and only what is still wrong one verification later. Much is over
//! by then, as on a node that has just started, and a pod that ends is nobody's concern.

use super::{Node, State};
use crate::node::event::Action;
use crate::node::pod::Pod;
use crate::node::publish::event_recorder::PodEvent;
use crate::node::redirection::Redirection;
use crate::pod::types::Phase as Lifetime;
use std::time::{Duration, Instant};

/// Where verification is off.
const PATIENCE: Duration = Duration::from_secs(30);

impl State {
    /// What is to be published of a pod was written on its object, or not.
    pub(super) fn published(&mut self, uid: &str, redirection: Option<Redirection>, result: Result<(), String>) {
        let Some(pod) = self.pods.get_mut(uid) else { return };
        match result {
            Ok(()) => pod.accepted(redirection),
            Err(why) => pod.not_accepted(why, self.node.next_verification()),
        }
        self.advance(uid);
    }
}

impl Node {
    /// Says what is wrong with a pod, also to people if it stays so.
    pub(super) fn announce(&self, pod: &mut Pod, trouble: String) {
        pod.announce(trouble, self.next_verification());
    }

    /// When what is wrong now has been looked at once more.
    pub(super) fn next_verification(&self) -> Instant {
        let interval = self.config.verify_interval;
        self.now + if interval.is_zero() { PATIENCE } else { interval + interval / 4 }
    }

    /// Writes the Events that are due.
    pub(super) fn tell_people(&mut self, pod: &mut Pod) {
        let ends =
            |pod: &Pod| pod.object().is_none_or(|object| object.being_deleted || object.phase == Lifetime::Finished);
        while let Some((reason, message)) = pod.take_event(self.now) {
            if self.config.cluster && !ends(pod) {
                self.out.push(Action::Announce(PodEvent {
                    uid: pod.uid().to_owned(),
                    pod: pod.name().clone(),
                    warning: true,
                    reason,
                    component: "cni-agent",
                    message,
                }));
            }
        }
        if let Some(at) = pod.report().next_event() {
            pod.wake_at(at);
        }
    }
}
