//! Pods with a sidecar: their redirection is programmed in answer to the plugin's ADD, or where it was found missing.
//! Nothing is held afterwards; the rules go with the namespace.

use super::broken::end_of;
use super::{Node, State};
use crate::cni::event::{AddAnswer, AddEvent, code};
use crate::error::Result;
use crate::node::event::{Action, Answer, Opened, ReplyTo, Work};
use crate::node::tasks::{Redirecting, Task};
use crate::pod::decision::Action as Decided;
use crate::pod::redirection::{self, Redirection};
use crate::pod::types::Pod as Object;
use crate::sys::netns::Netns;
use std::net::IpAddr;
use std::sync::Arc;

impl State {
    /// An ADD of a pod that has a sidecar, into a namespace that is not the host's.
    pub(super) fn redirect(&mut self, uid: &str, event: &AddEvent, netns: Arc<Netns>, reply: ReplyTo) {
        let Some(object) = self.pods.get(uid).and_then(|pod| pod.object()) else { return };
        let name = object.name.clone();
        let wanted = match redirection::of(object) {
            Ok(wanted) => wanted,
            Err(e) => return self.node.refuse(reply, code::AGENT_REFUSED, format!("pod {name}: {e}")),
        };
        for warning in &wanted.warnings {
            log::warn!(uid = uid, pod:% = name; "{warning}");
        }
        let mut ips = event.addresses();
        if ips.is_empty() {
            ips.clone_from(&object.ips);
        }
        if let Some(task) = self.node.redirecting(uid, netns, wanted, ips) {
            task.waiting.push((reply, event.decide));
        }
    }

    /// A pod that runs without its redirection.
    pub(super) fn redirect_broken(&mut self, uid: &str, netns: Arc<Netns>, wanted: Redirection, ips: Vec<IpAddr>) {
        if let Some(task) = self.node.redirecting(uid, netns, wanted, ips) {
            task.repairs = true;
        }
    }

    /// A CHECK of a pod with a sidecar.
    pub(super) fn inspect(&mut self, object: &Object, netns: Opened, reply: ReplyTo) {
        let wanted = redirection::of(object).map_err(|e| (code::AGENT_REFUSED, format!("pod {}: {e}", object.name)));
        let netns = netns.map_err(|e| (code::IO, format!("the network namespace of pod {}: {e}", object.name)));
        match wanted.and_then(|wanted| Ok((netns?, wanted))) {
            Ok((netns, wanted)) => {
                let work = Work::Inspect(netns, Box::new(wanted), object.ips.clone());
                self.node.start_task(work, Task::Inspect(reply));
            }
            Err((code, message)) => self.node.refuse(reply, code, message),
        }
    }

    pub(super) fn inspected(&mut self, reply: ReplyTo, result: Result<Vec<String>>) {
        match result {
            Ok(differences) if differences.is_empty() => self.node.out.push(Action::Reply(reply, Answer::Done)),
            Ok(differences) => {
                let missing = differences.join("; ");
                self.node.refuse(
                    reply,
                    code::AGENT_REFUSED,
                    format!("the redirection to the sidecar is not in place: {missing}"),
                );
            }
            Err(e) => self.node.refuse(
                reply,
                code::TRY_AGAIN_LATER,
                format!("the redirection to the sidecar could not be checked: {e}"),
            ),
        }
    }

    pub(super) fn redirected(&mut self, task: Redirecting, result: Result<()>) {
        let Redirecting { uid, waiting, repairs, .. } = task;
        if repairs {
            self.repaired(&uid, end_of(&result));
        }
        match result {
            Ok(()) if waiting.is_empty() => {}
            Ok(()) => {
                log::info!(uid = uid.as_str(); "redirected to its sidecar");
                let reason = "the pod's traffic is redirected to its sidecar";
                let decided = AddAnswer { action: Decided::Sidecar, reason: reason.to_owned() };
                for (reply, decide) in waiting {
                    let answer = if decide { Answer::Decided(decided.clone()) } else { Answer::Done };
                    self.node.out.push(Action::Reply(reply, answer));
                }
            }
            Err(e) => {
                let code = code::of_rules(&e);
                for (reply, _) in waiting {
                    self.node.refuse(
                        reply,
                        code,
                        format!("the redirection to the sidecar could not be put in place: {e}"),
                    );
                }
            }
        }
    }
}

impl Node {
    /// The work on a namespace, started unless it is under way. Two plugins in one chain, a second one after the first
    /// was killed, a repair at the same time: one serves them all.
    fn redirecting(
        &mut self,
        uid: &str,
        netns: Arc<Netns>,
        wanted: Redirection,
        ips: Vec<IpAddr>,
    ) -> Option<&mut Redirecting> {
        let here = netns.id();
        let is_it = |task: &Task| matches!(task, Task::Redirect(task) if task.netns == here);
        let running = self.tasks.iter().find(|(_, task)| is_it(task)).map(|(id, _)| *id);
        let id = running.unwrap_or_else(|| {
            let task = Redirecting { uid: uid.to_owned(), netns: here, waiting: Vec::new(), repairs: false };
            self.start_task(Work::Redirect(netns, Box::new(wanted), ips), Task::Redirect(task))
        });
        match self.tasks.get_mut(&id) {
            Some(Task::Redirect(task)) => Some(task),
            _ => None,
        }
    }
}
