//! Whether the rules of a pod are still what they should be.

use super::Node;
use crate::cni::event::{Failure, code};
use crate::dataplane::inpod::Differences;
use crate::error::Result;
use crate::metrics;
use crate::node::event::{Action, Answer};
use crate::node::pod::Pod;

/// What is told of a pod whose runtime has its own network stack.
pub(super) const BYPASSED: &str = "lost: no interface in its network namespace has its address any more, so that no rule \
    sees its packets: a sandboxed runtime, as gVisor, has taken them over; --exclude-runtime-classes leaves such pods out";

impl Node {
    /// Its rules were looked at, because that was due or a CHECK asks.
    pub(super) fn checked(&mut self, pod: &mut Pod, result: Result<Differences>) {
        let next = self.now + self.config.verify_interval;
        if let Some(held) = pod.held_mut().filter(|_| !self.config.verify_interval.is_zero()) {
            held.verify(next);
        }
        if let Ok(differences) = &result
            && pod.held_mut().is_some_and(|held| held.bypass(differences.bypassed))
        {
            self.announce(pod, BYPASSED.to_owned());
        }
        let failure = self.verdict(pod, result);
        if let Some(Failure { message, .. }) = &failure {
            if let Some(held) = pod.held_mut() {
                // Put in place again, whatever it was.
                held.doubt();
            }
            pod.warn(message.clone());
        }
        for reply in pod.waiting().take_checks() {
            let answer = failure.clone().map_or(Answer::Done, Answer::Failed);
            self.out.push(Action::Reply(reply, answer));
        }
    }

    /// Answers CHECKs of a pod whose sandbox has gone while they waited: nothing is left to look at.
    pub(super) fn answer_checks(&mut self, pod: &mut Pod) {
        if pod.held().is_some() || pod.job().is_some() || !pod.waits().has_checks() {
            return;
        }
        let wanted = self.goal(pod).is_some();
        for reply in pod.waiting().take_checks() {
            if wanted {
                let message = "the pod should be in the mesh, and its sandbox is not known any more".to_owned();
                self.refuse(reply, code::AGENT_REFUSED, message);
            } else {
                self.out.push(Action::Reply(reply, Answer::Done));
            }
        }
    }

    fn verdict(&mut self, pod: &mut Pod, result: Result<Differences>) -> Option<Failure> {
        let differences = match result {
            Ok(differences) => differences,
            Err(e) => {
                return Some(Failure::new(
                    code::TRY_AGAIN_LATER,
                    format!("the traffic rules could not be checked: {e}"),
                ));
            }
        };
        for (kind, found) in [("rules", &differences.rules), ("routes", &differences.routes)] {
            if !found.is_empty() {
                metrics::VERIFICATION_REPAIRS.inc([kind]);
            }
        }
        if differences.is_empty() {
            if let Some(precedence) = pod.held_mut().map(|held| held.note_preceding(differences.preceding)) {
                self.tell_precedence(pod, precedence);
            }
            if let Some(ports) = differences.listening {
                self.listen_for_ztunnel(pod, &ports);
            }
            return None;
        }
        let missing = differences.all().join("; ");
        Some(Failure::new(code::AGENT_REFUSED, format!("the traffic rules are not in place: {missing}")))
    }
}
