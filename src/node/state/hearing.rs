//! Whether ztunnel listens in the pods that it has acknowledged.

use super::Node;
use crate::metrics;
use crate::node::event::Action;
use crate::node::pod::{Hearing, Pod};
use crate::node::publish::event_recorder::PodEvent;
use crate::node::ztunnels::Standing;
use std::collections::BTreeSet;
use std::time::Duration;

/// The time to the second look at listeners that were not there: a ztunnel that has just connected may be about to listen.
const SECOND_LOOK: Duration = Duration::from_millis(500);

impl Node {
    /// These ports were listened on when the pod's rules were looked at. Only where ztunnel has acknowledged the pod does
    /// that say anything.
    pub(super) fn listen_for_ztunnel(&mut self, pod: &mut Pod, ports: &BTreeSet<u16>) {
        let (Some(goal), Some(netns)) = (self.goal(pod), pod.held().map(|held| held.netns().id())) else { return };
        if self.ztunnels.standing(pod.uid(), &goal.info, netns) != Standing::Acknowledged {
            return;
        }
        let Some(hearing) = pod.held_mut().map(|held| held.note_listening(ports)) else { return };
        let soon = self.now + SECOND_LOOK;
        match hearing {
            Hearing::Nothing => {}
            Hearing::LookAgain => self.look_again(pod, soon),
            Hearing::TellAnew(message) => {
                log::warn!(uid = pod.uid(), pod:% = pod.name(); "{message}; it is told of it anew");
                metrics::VERIFICATION_REPAIRS.inc(["ztunnel"]);
                self.ztunnels.doubt(pod.uid());
                self.look_again(pod, soon);
            }
            Hearing::Deaf(message) => {
                log::error!(uid = pod.uid(), pod:% = pod.name(); "{message}, though it was told of it anew");
                if self.config.cluster {
                    self.out.push(Action::Announce(PodEvent {
                        uid: pod.uid().to_owned(),
                        pod: pod.name().clone(),
                        warning: true,
                        reason: "RedirectionUnheard",
                        component: "cni-agent",
                        message,
                    }));
                }
            }
            Hearing::Over(past) => log::warn!(uid = pod.uid(), pod:% = pod.name(); "it is over: {past}"),
        }
    }

    fn look_again(&self, pod: &mut Pod, at: std::time::Instant) {
        if self.config.verify_interval.is_zero() {
            return;
        }
        if let Some(held) = pod.held_mut() {
            held.verify(at);
        }
        pod.wake_at(at);
    }
}
