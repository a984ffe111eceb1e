//! ADDs of pods that the source has to be asked about: it does not know them yet, or what it knows may be of a
//! predecessor of the same name.

use super::requests::named;
use super::{Lookup, State};
use crate::cni::event::{AddEvent, code};
use crate::node::event::{Action, Answer, Opened, ReplyTo, Subject};
use crate::node::pod::{Pod, Rules};
use crate::pod::types::{Phase, PodName};
use std::time::{Duration, Instant};

/// An ADD waits so long for the source to look its pod up.
const LOOK_UP: Duration = Duration::from_secs(4);

impl State {
    /// A pod's sandbox is being made.
    pub(super) fn add(&mut self, event: AddEvent, netns: Opened, reply: ReplyTo) {
        let name = named(&event.pod_namespace, &event.pod_name);
        let known = self.pods.named(&name).filter(|pod| !self.is_doubtful(pod, &event, &netns));
        match known.map(|pod| pod.uid().to_owned()) {
            Some(uid) => self.admit(&uid, &event, netns, reply),
            None => {
                self.node.out.push(Action::LookUp(name.clone()));
                self.lookups.push(Lookup { name, event, netns, reply, until: self.node.now + LOOK_UP });
            }
        }
    }

    /// Whether what we know may be the pod's predecessor of the same name.
    fn is_doubtful(&self, pod: &Pod, event: &AddEvent, netns: &Opened) -> bool {
        let Some(object) = pod.object() else { return true };
        if self.node.config.cluster && !self.node.namespaces.contains_key(&object.name.namespace) {
            return true;
        }
        // Known is what it was; what it is now cannot be read.
        if self.node.unread.iter().any(|unread| unread.subject == Subject::Pod(object.uid.clone())) {
            return true;
        }
        if event.pod_uid.is_empty() {
            let moves = match (pod.sandbox().netns(), netns) {
                (Some(held), Ok(new)) => held.id() != new.id(),
                _ => false,
            };
            moves || object.being_deleted || object.phase == Phase::Finished
        } else {
            event.pod_uid != object.uid && event.pod_uid != object.runtime_uid()
        }
    }

    /// The source has told of a pod: a request that waits for it need not wait for the whole look-up.
    pub(super) fn told_of(&mut self, name: &PodName) {
        let Some(uid) = self.pods.named(name).map(|pod| pod.uid().to_owned()) else { return };
        for Lookup { event, netns, reply, .. } in self.take_lookups(|state, lookup| {
            let doubtful = |pod| state.is_doubtful(pod, &lookup.event, &lookup.netns);
            lookup.name == *name && !state.pods.get(&uid).is_none_or(doubtful)
        }) {
            self.admit(&uid, &event, netns, reply);
        }
    }

    /// The source was asked for a pod; if there is one it has told of it before.
    pub(super) fn looked_up(&mut self, name: &PodName, trouble: Option<&str>) {
        for Lookup { event, netns, reply, .. } in self.take_lookups(|_, lookup| lookup.name == *name) {
            let by_name = event.pod_uid.is_empty() || !self.node.config.cluster;
            let known = self.pods.named(name).filter(|pod| {
                let is_it = |uid: &str| uid == event.pod_uid;
                by_name || pod.object().is_some_and(|object| is_it(&object.uid) || is_it(object.runtime_uid()))
            });
            let source = &self.node.config.source;
            match (known.map(|pod| pod.uid().to_owned()), trouble) {
                // What is known of it may be wrong: it is the answer that would have told.
                (_, Some(trouble)) => {
                    let message = format!("{source} cannot tell about pod {name}: {trouble}");
                    self.node.refuse(reply, code::TRY_AGAIN_LATER, message);
                }
                (Some(uid), None) => self.admit(&uid, &event, netns, reply),
                (None, None) => {
                    let message = format!("pod {name} is not known to {source}{}", self.node.remedy_for_unknown());
                    self.node.refuse(reply, code::TRY_AGAIN_LATER, message);
                }
            }
        }
    }

    /// Refuses the requests whose pod the source has not been able to tell of in time.
    pub(super) fn expire_lookups(&mut self) {
        let now = self.node.now;
        for Lookup { name, reply, .. } in self.take_lookups(|_, lookup| lookup.until <= now) {
            let message = format!("{} did not answer in time when asked for pod {name}", self.node.config.source);
            self.node.refuse(reply, code::TRY_AGAIN_LATER, message);
        }
    }

    /// When the first of them is refused.
    pub(super) fn lookups_due(&self) -> Option<Instant> {
        self.lookups.iter().map(|lookup| lookup.until).min()
    }

    /// Whoever sent a request is gone. Before the rules it is dropped; past them the enrolment is finished and kept,
    /// and the DEL that follows undoes it.
    pub(super) fn requester_gone(&mut self, id: u64) {
        self.lookups.retain(|lookup| lookup.reply.id != id);
        let Some(uid) = self.pods.find(|pod| pod.waits().is_asked_by(id)) else { return };
        if let Some(pod) = self.pods.get_mut(&uid) {
            let past_rules = pod.held().is_some_and(|held| matches!(held.rules(), Rules::Known(_)));
            if pod.waiting().requester_gone(id) && !past_rules {
                log::info!(uid = uid.as_str(), pod:% = pod.name();
                    "whoever asked for the enrolment is gone before the rules were in place; dropped");
                pod.undo(self.node.now);
            }
        }
        self.advance(&uid);
    }

    /// The agent stops: nobody waits for the source any more.
    pub(super) fn refuse_lookups(&mut self) {
        for lookup in std::mem::take(&mut self.lookups) {
            let answer = Answer::NotReady(self.not_ready());
            self.node.out.push(Action::Reply(lookup.reply, answer));
        }
    }

    fn take_lookups(&mut self, is_it: impl Fn(&Self, &Lookup) -> bool) -> Vec<Lookup> {
        let waiting = std::mem::take(&mut self.lookups).into_iter();
        let (taken, others) = waiting.partition(|lookup| is_it(self, lookup));
        self.lookups = others;
        taken
    }
}
