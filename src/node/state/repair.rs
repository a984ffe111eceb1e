//! Race repair in place: the namespaces of broken pods are looked for, all in one walk, and redirected as an ADD would.

use super::seeking::refusal;
use super::{Phase, State};
use crate::error::Result;
use crate::node::event::{Action, Walked, Work};
use crate::node::pod::Pod;
use crate::node::tasks::Task;
use crate::pod::decision::Action as Decided;
use crate::pod::redirection::{self, Redirection};
use crate::pod::types::{Phase as PodPhase, Pod as Object};
use crate::repair::order::{End, Order};
use std::collections::BTreeSet;
use std::time::Instant;

impl State {
    /// When broken pods are due. What is on its way is waited for.
    pub(super) fn repairs_due(&self) -> Option<Instant> {
        let seeking = self.node.tasks.values().any(|task| matches!(task, Task::Seek(_)));
        let broken = self.broken.as_ref().filter(|_| self.node.phase == Phase::Running && !seeking);
        broken.and_then(|broken| broken.deadline())
    }

    /// Hands out what is due.
    pub(super) fn repair(&mut self) {
        if self.repairs_due().is_none_or(|at| at > self.node.now) {
            return;
        }
        let now = self.node.now;
        let orders = self.broken.as_mut().map(|broken| broken.due(now)).unwrap_or_default();
        let mut sought = Vec::new();
        for order in orders {
            let Order::Repair(uid) = order else {
                self.node.out.push(Action::Remedy(order));
                continue;
            };
            match self.repairable(&uid) {
                Err(end) => self.repaired(&uid, end),
                Ok(()) => sought.extend(self.pods.get(&uid).map(Pod::sought)),
            }
        }
        if sought.is_empty() {
            return;
        }
        let claimed: BTreeSet<_> = self.pods.claimed().collect();
        let uids = sought.iter().map(|pod| pod.uid.clone()).collect();
        self.node.start_task(Work::Walk(sought, claimed), Task::Seek(uids));
    }

    /// Whether it is for us to redirect the pod.
    fn repairable(&self, uid: &str) -> Result<(), End> {
        let object = self.pods.get(uid).and_then(|pod| pod.object());
        let object = object.ok_or_else(|| End::Refused("it is gone".to_owned()))?;
        // A pod that is not started again has failed as a whole, and its sandbox may still be there.
        let decision = self.node.decide(&Object { phase: PodPhase::Active, ..object.clone() });
        if decision.action != Decided::Sidecar {
            return Err(End::Refused(decision.reason));
        }
        wanted(object).map(drop)
    }

    /// The namespaces of broken pods were looked for.
    pub(super) fn sought(&mut self, uids: Vec<String>, walked: Result<Walked>) {
        let (Walked { mut found, mut refused, .. }, failure) = match walked {
            Ok(walked) => (walked, None),
            Err(e) => (Walked::default(), Some(format!("looking for its namespace failed: {e}"))),
        };
        for uid in uids {
            let Some(object) = self.pods.get(&uid).and_then(|pod| pod.object().cloned()) else {
                self.repaired(&uid, End::Outdated);
                continue;
            };
            let netns =
                found.remove(&uid).filter(|n| n.id() != self.node.config.host && self.pods.holder(n.id()).is_none());
            match (netns, wanted(&object)) {
                (Some(netns), Ok(wanted)) => self.redirect_broken(&uid, netns, wanted, object.ips.clone()),
                (_, Err(end)) => self.repaired(&uid, end),
                (None, _) if object.phase == PodPhase::Finished && failure.is_none() => {
                    self.repaired(&uid, End::Hopeless("it has finished, and is not started again".to_owned()));
                }
                (None, _) => {
                    let why = failure.clone();
                    let refused = refusal(&refused.remove(&uid).unwrap_or_default());
                    let why = why.unwrap_or_else(|| format!("no running process of the pod has its address{refused}"));
                    self.repaired(&uid, End::Failed(why));
                }
            }
        }
    }
}

/// How the pod is redirected. A bad annotation is as bad for a pod that is made anew.
fn wanted(object: &Object) -> Result<Redirection, End> {
    redirection::of(object).map_err(|e| End::Refused(e.to_string()))
}
