//! What the plugin asks: ADD, DEL, CHECK and GC.

use super::{Node, State};
use crate::cni::event::{AddAnswer, AddEvent, AttachmentEvent, Failure, GcEvent, code};
use crate::node::event::{Action, Answer, NetnsPath, Opened, ReplyTo, Work};
use crate::node::pod::{Location, Pod};
use crate::node::tasks::Task;
use crate::pod::decision::Action as Decided;
use crate::pod::types::PodName;
use crate::sys::netns::{Netns, NetnsId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Our own plugin gives up after 28 s.
const PATIENCE: Duration = Duration::from_secs(25);
/// Istio's gives up after 5 s; the answer must be there before.
const SHORT_PATIENCE: Duration = Duration::from_millis(4700);
/// A pod that is not in the mesh does not wait longer for what it was before to be undone.
const PASS: Duration = Duration::from_secs(1);
/// The interface that runtimes make first, where nobody told which it was.
const FIRST: &str = "eth0";
/// A DEL is answered after this long even if not everything is undone: the plugin waits 1 s.
const DEL: Duration = Duration::from_millis(800);

impl State {
    /// An ADD of a pod that is known.
    pub(super) fn admit(&mut self, uid: &str, event: &AddEvent, netns: Opened, reply: ReplyTo) {
        let Some((pod, object)) = self.pods.get(uid).and_then(|pod| Some((pod, pod.object()?))) else { return };
        let decision = self.node.decide(object);
        let name = pod.name().clone();
        match decision.action {
            Decided::Ambient | Decided::Sidecar => match netns {
                Err(e) => {
                    self.node.refuse(reply, code::IO, format!("the pod's network namespace {}: {e}", event.netns))
                }
                Ok(netns) if netns.id() == self.node.config.host => {
                    let message = format!("{} is the network namespace of the host, not of a pod", event.netns);
                    self.node.refuse(reply, code::INVALID_ENVIRONMENT, message);
                }
                Ok(netns) if decision.action == Decided::Sidecar => self.redirect(uid, event, netns, reply),
                Ok(netns) => {
                    let location = self.node.location(uid, event);
                    if let Some(pod) = self.pods.get_mut(uid) {
                        self.node.take_sandbox(pod, location, netns, event.decide, reply);
                    }
                    self.advance(uid);
                }
            },
            Decided::None if event.decide => {
                log::info!(uid = uid, pod:% = name; "not in the mesh: {}", decision.reason);
                let location = self.node.location(uid, event);
                let Some(pod) = self.pods.get_mut(uid) else { return };
                pod.locate(location, netns.ok());
                let answer = AddAnswer { action: Decided::None, reason: decision.reason };
                pod.waiting().end(reply, Answer::Decided(answer), self.node.now + PASS);
                self.advance(uid);
            }
            Decided::None => {
                let message = format!("pod {name} is not in the mesh: {}", decision.reason);
                self.node.refuse(reply, code::AGENT_REFUSED, message);
            }
        }
    }

    /// A sandbox is torn down. Nothing is done in its namespace: what is there goes with it, and the path of a late DEL
    /// may lead to the namespace of another pod by now.
    pub(super) fn del(&mut self, event: &AttachmentEvent, netns: Opened, reply: ReplyTo) {
        let Some(uid) = self.attached(event, netns.ok().map(|netns| netns.id())) else {
            self.node.out.push(Action::Reply(reply, Answer::Done));
            return;
        };
        let Some(pod) = self.pods.get_mut(&uid) else { return };
        let first = pod.sandbox().location().map_or("", |location| &location.interface);
        let first = if first.is_empty() { FIRST } else { first };
        if !event.interface.is_empty() && first != event.interface {
            log::info!(uid = uid.as_str(), pod:% = pod.name(); "attachment {} is taken away", event.interface);
            pod.detach(&event.interface);
            self.node.out.push(Action::Reply(reply, Answer::Done));
            self.advance(&uid);
            return;
        }
        log::info!(uid = uid.as_str(), pod:% = pod.name(); "the sandbox is torn down");
        pod.tear_down(self.node.now);
        pod.waiting().end(reply, Answer::Done, self.node.now + DEL);
        for reply in pod.waiting().take_adds() {
            self.node.refuse(reply, code::TRY_AGAIN_LATER, "the sandbox was torn down meanwhile".to_owned());
        }
        self.advance(&uid);
    }

    /// The pod whose sandbox this is: by sandbox id, by namespace where one of the two has no id. A late DEL of an old
    /// sandbox belongs to nobody, and so does one of another pod whose namespace this was.
    fn attached(&self, event: &AttachmentEvent, netns: Option<NetnsId>) -> Option<String> {
        let id = event.container_id.as_str();
        let name = named(&event.pod_namespace, &event.pod_name);
        self.pods.find(|pod| {
            if !event.pod_name.is_empty() && *pod.name() != name || !self.node.may_mean(pod, &event.pod_uid) {
                return false;
            }
            let known = pod.sandbox().location().map_or("", |location| location.container_id.as_str());
            if !id.is_empty() && !known.is_empty() {
                return id == known;
            }
            netns.is_some_and(|netns| pod.sandbox().netns().is_some_and(|held| held.id() == netns))
        })
    }

    /// Is the pod's network as it should be?
    pub(super) fn check(&mut self, event: &AttachmentEvent, netns: Opened, reply: ReplyTo) {
        let id = netns.as_ref().ok().map(|netns| netns.id());
        let name = named(&event.pod_namespace, &event.pod_name);
        let uid = self.attached(event, id).or_else(|| self.pods.named(&name).map(|pod| pod.uid().to_owned()));
        let Some(pod) = uid.as_ref().and_then(|uid| self.pods.get_mut(uid)) else {
            self.node.out.push(Action::Reply(reply, Answer::Done));
            return;
        };
        let sidecar = pod.object().filter(|object| self.node.decide(object).action == Decided::Sidecar);
        if let Some(object) = sidecar.cloned() {
            self.inspect(&object, netns, reply);
        } else if self.node.goal(pod).is_none() {
            self.node.out.push(Action::Reply(reply, Answer::Done));
        } else if pod.held().is_none() {
            let why = pod.report().trouble().unwrap_or("it has not been enrolled");
            let message = format!("the pod should be in the mesh and is not: {why}");
            self.node.refuse(reply, code::AGENT_REFUSED, message);
        } else {
            pod.waiting().check(reply);
            let uid = pod.uid().to_owned();
            self.advance(&uid);
        }
    }

    /// Ends the enrolments whose attachment is not valid any more and whose namespace is gone from its path.
    pub(super) fn gc(&mut self, event: &GcEvent, reply: ReplyTo) {
        let valid: BTreeSet<&str> = event.container_ids.iter().map(String::as_str).collect();
        let invalid = self.pods.iter().filter_map(|pod| {
            let (netns, location) = (pod.sandbox().netns()?, pod.sandbox().location()?);
            let doubtful = !valid.contains(location.container_id.as_str()) && !location.path.is_empty();
            doubtful.then(|| NetnsPath { uid: pod.uid().to_owned(), path: location.path.clone(), id: netns.id() })
        });
        let paths: Vec<NetnsPath> = invalid.collect();
        if paths.is_empty() {
            self.node.out.push(Action::Reply(reply, Answer::Done));
        } else {
            self.node.start_task(Work::Probe(paths), Task::Probe(reply));
        }
    }

    /// These paths lead elsewhere or nowhere.
    pub(super) fn probed(&mut self, gone: &[NetnsPath]) {
        for NetnsPath { uid, path, id } in gone {
            let Some(pod) = self.pods.get_mut(uid) else { continue };
            if pod.sandbox().netns().is_some_and(|netns| netns.id() == *id) {
                log::info!(uid = uid.as_str(), pod:% = pod.name();
                    "not a valid attachment any more, and {path} is gone");
                pod.tear_down(self.node.now);
                self.advance(uid);
            }
        }
    }
}

impl Node {
    /// Whether a runtime may mean this pod by a uid. A pod of a directory has one that the runtime need not know.
    fn may_mean(&self, pod: &Pod, uid: &str) -> bool {
        let alias = pod.sandbox().location().and_then(|location| location.alias.as_deref());
        let known = [Some(pod.uid()), alias, pod.object().map(|object| object.runtime_uid())];
        uid.is_empty() || !self.config.cluster || known.contains(&Some(uid))
    }

    /// Where the sandbox of an ADD is.
    fn location(&self, uid: &str, event: &AddEvent) -> Location {
        Location {
            container_id: event.container_id.clone(),
            interface: event.interface.clone(),
            path: event.netns.clone(),
            netns: None,
            alias: (!event.pod_uid.is_empty() && event.pod_uid != uid).then(|| event.pod_uid.clone()),
            ips: event.addresses(),
            told: [(event.interface.clone(), event.addresses())]
                .into_iter()
                .filter(|(_, ips)| !ips.is_empty())
                .collect(),
            settings: self.config.settings,
        }
    }

    /// The sandbox of the newest ADD is the pod's.
    fn take_sandbox(&mut self, pod: &mut Pod, location: Location, netns: Arc<Netns>, decide: bool, reply: ReplyTo) {
        // Those who wait for an older sandbox to be undone wait no longer.
        pod.waiting().undone(&mut self.out);
        let fresh = pod.replace_sandbox(netns, location);
        if fresh {
            for reply in pod.waiting().take_adds() {
                let message = "a newer sandbox of the pod has come meanwhile".to_owned();
                self.refuse(reply, code::TRY_AGAIN_LATER, message);
            }
        }
        let until = self.now + if decide { PATIENCE } else { SHORT_PATIENCE };
        pod.waiting().add(reply, decide, fresh, self.now, until);
    }

    /// A request fails.
    pub(super) fn refuse(&mut self, reply: ReplyTo, code: u32, message: String) {
        log::warn!(code = code; "refused: {message}");
        let failure = Failure { code, message, details: String::new() };
        self.out.push(Action::Reply(reply, Answer::Failed(failure)));
    }
}

/// Runtimes that pass no namespace (podman) mean `default`.
pub(super) fn named(namespace: &str, name: &str) -> PodName {
    let namespace = if namespace.is_empty() { "default" } else { namespace };
    PodName { namespace: namespace.to_owned(), name: name.to_owned() }
}
