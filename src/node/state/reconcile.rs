//! The one path by which a pod is enrolled or taken out: what should be is compared with what is.

use super::State;
use crate::node::event::Action;
use crate::node::pods::Pods;
use crate::node::publish::event_recorder::PodEvent;

impl State {
    /// Compares what should be with what is, and takes the next step.
    pub(super) fn advance(&mut self, uid: &str) {
        if !self.node.synced {
            // What the source has not told yet is not gone.
            return;
        }
        let taken = self.evict(uid);
        let Some(pod) = self.pods.get_mut(uid) else { return };
        pod.woken();
        self.node.expire(pod);
        if pod.job().is_none() {
            match self.node.goal(pod) {
                Some(_) if pod.held().is_some() && taken => self.node.wait_for_hand_over(pod),
                Some(goal) if pod.held().is_some() => self.node.enrol(pod, &goal),
                goal => {
                    let out = goal.is_none() || pod.sandbox().is_torn_down();
                    if pod.sandbox().is_recalled() || !out || self.node.withdraw(pod) {
                        self.node.seek(pod, goal.is_some());
                    }
                }
            }
        }
        if let Some(message) = pod.take_event()
            && self.node.config.cluster
            && pod.object().is_some()
        {
            self.node.out.push(Action::Announce(PodEvent {
                uid: uid.to_owned(),
                pod: pod.name().clone(),
                warning: true,
                reason: "RedirectionFailed",
                component: "cni-agent",
                message,
            }));
        }
        self.node.note_outside(pod);
        let (state, _) = self.node.pod_state(pod);
        pod.stands(state, self.node.now);
        self.pods.remove_if_over(uid);
    }

    /// Makes another pod let go of the namespace that a pod is to be enrolled in. Returns whether somebody still has
    /// it: a pod, or a cleaning that is under way.
    fn evict(&mut self, uid: &str) -> bool {
        let Some(pod) = self.pods.get(uid) else { return false };
        let Some(netns) = pod.sandbox().netns().filter(|_| pod.job().is_none()) else { return false };
        if self.node.goal(pod).is_none() {
            return false;
        }
        let (id, name) = (netns.id(), pod.name().clone());
        if self.node.is_being_cleaned(id) {
            return true;
        }
        let other = |pods: &Pods| pods.find(|other| other.uid() != uid && other.sandbox().holds(id));
        let Some(holder) = other(&self.pods) else { return false };
        if let Some(holder) = self.pods.get_mut(&holder)
            && holder.sandbox().netns().is_some_and(|held| held.id() == id)
        {
            holder.warn(format!("the namespace of this pod now belongs to {name}"));
            holder.tear_down(None, self.node.now);
        }
        self.advance(&holder);
        other(&self.pods).is_some()
    }

    pub(super) fn advance_all(&mut self) {
        for uid in self.pods.uids(|_| true) {
            self.advance(&uid);
        }
    }
}
