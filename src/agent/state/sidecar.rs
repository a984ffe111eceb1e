//! Pods with a sidecar: their redirection is programmed in answer to the plugin's ADD. Nothing is held afterwards; the
//! rules go with the namespace.

use super::{State, Task};
use crate::agent::event::{Action, Answer, ReplyTo, Work};
use crate::cni::event::{AddAnswer, AddEvent};
use crate::error::{Kind, Result};
use crate::pod::redirection;
use crate::sys::netns::{Netns, NetnsId};
use std::sync::Arc;

/// A namespace that is being programmed, and who waits for it.
pub(super) struct Redirecting {
    uid: String,
    netns: NetnsId,
    /// With whether they want to know what was decided.
    waiting: Vec<(ReplyTo, bool)>,
}

impl State {
    /// An ADD of a pod that has a sidecar, into a namespace that is not the host's.
    pub(super) fn redirect(&mut self, uid: &str, event: &AddEvent, netns: Arc<Netns>, reply: ReplyTo) {
        let Some(object) = self.pods.get(uid).and_then(|entry| entry.object.as_ref()) else { return };
        let name = object.name.clone();
        let wanted = match redirection::of(object) {
            Ok(wanted) => wanted,
            Err(e) => return self.refuse(reply, 100, format!("pod {name}: {e}")),
        };
        for warning in &wanted.warnings {
            log::warn!(target: "cni-agent", uid = uid, pod:% = name; "{warning}");
        }
        let here = netns.id();
        // Two plugins in one chain, or a second one after the first was killed: the same work serves both.
        let running = self.tasks.values_mut().find_map(|task| match task {
            Task::Redirect(task) if task.netns == here => Some(task),
            _ => None,
        });
        if let Some(running) = running {
            running.waiting.push((reply, event.decide));
            return;
        }
        let mut ips = event.addresses();
        if ips.is_empty() {
            ips.clone_from(&object.ips);
        }
        let task = self.start(Work::Redirect(netns, Box::new(wanted), ips));
        let waiting = vec![(reply, event.decide)];
        self.tasks.insert(task, Task::Redirect(Redirecting { uid: uid.to_owned(), netns: here, waiting }));
    }

    pub(super) fn redirected(&mut self, task: Redirecting, result: Result<()>) {
        let Redirecting { uid, waiting, .. } = task;
        match result {
            Ok(()) => {
                log::info!(target: "cni-agent", uid = uid.as_str(); "redirected to its sidecar");
                let reason = "the pod's traffic is redirected to its sidecar";
                let decided = AddAnswer { action: "sidecar".to_owned(), reason: reason.to_owned() };
                for (reply, decide) in waiting {
                    let answer = if decide { Answer::Decided(decided.clone()) } else { Answer::Done };
                    self.out.push(Action::Reply(reply, answer));
                }
            }
            Err(e) => {
                let code = if e.kind() == Kind::HostNetns { 4 } else { 101 };
                for (reply, _) in waiting {
                    self.refuse(reply, code, format!("the redirection to the sidecar could not be put in place: {e}"));
                }
            }
        }
    }
}
