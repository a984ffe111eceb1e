//! The one path by which a pod is enrolled or taken out: what should be is compared with what is.

use super::State;
use crate::node::pod::Pod;
use crate::sys::netns::NetnsId;

impl State {
    /// Compares what should be with what is, and takes the next step.
    pub(super) fn advance(&mut self, uid: &str) {
        if !self.node.synced {
            // What the source has not told yet is not gone.
            return;
        }
        self.evict(uid);
        self.take_step(uid);
    }

    fn take_step(&mut self, uid: &str) {
        let taken = self.contested(uid).is_some();
        let Some(pod) = self.pods.get_mut(uid) else { return };
        pod.woken();
        self.node.expire(pod);
        let unread = self.node.is_unread(pod) && !pod.sandbox().is_torn_down();
        if self.node.has_ended(pod) {
            pod.abandon();
        }
        if pod.job().is_none() && !unread {
            let goal = self.node.goal(pod);
            if goal.is_some() {
                pod.is_wanted();
            }
            match goal {
                Some(_) if pod.held().is_some() && taken => self.node.wait_for_hand_over(pod),
                Some(goal) if pod.held().is_some() => self.node.enrol(pod, &goal),
                goal => {
                    let out = goal.is_none() || pod.sandbox().is_torn_down();
                    if pod.sandbox().is_recalled() || !out || self.node.withdraw(pod) {
                        self.node.seek(pod, goal.is_some());
                    }
                    if !out && pod.job().is_none() {
                        // An older sandbox may be another pod's by now, which waits for it.
                        self.node.sweep(pod);
                    }
                }
            }
        }
        self.node.answer_checks(pod);
        self.node.tell_people(pod);
        self.node.note_outside(pod);
        let (state, _) = self.node.pod_state(pod);
        pod.stands(state, self.node.now);
        self.pods.remove_if_over(uid);
    }

    /// Makes another pod let go of the namespace that a pod is to be enrolled in.
    fn evict(&mut self, uid: &str) {
        let Some((id, holder)) = self.contested(uid) else { return };
        let name = self.pods.get(uid).map(|pod| pod.name().to_string()).unwrap_or_default();
        if let Some(holder) = self.pods.get_mut(&holder)
            && holder.sandbox().holds(id)
        {
            holder.warn(format!("the namespace of this pod now belongs to {name}"));
            holder.cede(id, self.node.now);
        }
        // What the other one has left there is this one's now.
        if let Some(held) = self.pods.get_mut(uid).and_then(|pod| pod.held_mut()) {
            held.suspect();
        }
        // It does not evict in turn: two pods that have something in each other's namespace would never end.
        self.take_step(&holder);
    }

    /// The namespace that a pod is to be enrolled in, and the other pod that still has it.
    fn contested(&self, uid: &str) -> Option<(NetnsId, String)> {
        let pod = self.pods.get(uid).filter(|pod| pod.job().is_none())?;
        let id = pod.sandbox().netns()?.id();
        self.node.goal(pod)?;
        let has = |other: &Pod| other.sandbox().holds(id) || other.works_in(id);
        Some((id, self.pods.find(|other| other.uid() != uid && has(other))?))
    }

    /// Compares all pods.
    pub(super) fn advance_all(&mut self) {
        for uid in self.pods.uids(|_| true) {
            self.advance(&uid);
        }
    }
}
