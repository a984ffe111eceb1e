//! The pods of this node, and what the source tells of them.

use super::State;
use crate::metrics;
use crate::node::event::Action;
use crate::node::pod::Pod;
use crate::node::publish::event_recorder::PodEvent;
use crate::pod::overrides;
use crate::pod::types::{Pod as Object, PodName, StringMap};
use crate::sys::netns::NetnsId;
use std::collections::{BTreeMap, HashMap};

/// All pods.
#[derive(Debug, Default)]
pub(super) struct Pods {
    by_uid: BTreeMap<String, Pod>,
    /// The uid of the pod that has this name now.
    names: HashMap<PodName, String>,
}

impl Pods {
    /// The pod of a uid, made if there is none.
    pub fn entry(&mut self, uid: &str, name: &PodName) -> &mut Pod {
        self.by_uid.entry(uid.to_owned()).or_insert_with(|| Pod::new(uid, name))
    }

    /// The pod of a uid.
    pub fn get(&self, uid: &str) -> Option<&Pod> {
        self.by_uid.get(uid)
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, uid: &str) -> Option<&mut Pod> {
        self.by_uid.get_mut(uid)
    }

    /// The pod that has this name now.
    pub fn named(&self, name: &PodName) -> Option<&Pod> {
        self.names.get(name).and_then(|uid| self.by_uid.get(uid))
    }

    /// This pod has this name now.
    pub fn name(&mut self, name: &PodName, uid: &str) {
        self.names.insert(name.clone(), uid.to_owned());
    }

    /// This pod has the name no more, if it had it.
    pub fn unname(&mut self, name: &PodName, uid: &str) {
        if self.names.get(name).is_some_and(|current| current == uid) {
            self.names.remove(name);
        }
    }

    /// Forgets a pod of which nothing is left.
    pub fn remove_if_over(&mut self, uid: &str) {
        if self.by_uid.get(uid).is_some_and(Pod::is_over) {
            self.by_uid.remove(uid);
        }
    }

    /// All of them, in the order of their uids.
    pub fn iter(&self) -> impl Iterator<Item = &Pod> {
        self.by_uid.values()
    }

    /// The same, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Pod> {
        self.by_uid.values_mut()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_uid.len()
    }

    /// The uids of those for which this holds.
    pub fn uids(&self, holds: impl Fn(&Pod) -> bool) -> Vec<String> {
        self.iter().filter(|pod| holds(pod)).map(|pod| pod.uid().to_owned()).collect()
    }

    /// The first for which this holds.
    pub fn find(&self, holds: impl Fn(&Pod) -> bool) -> Option<String> {
        self.iter().find(|pod| holds(pod)).map(|pod| pod.uid().to_owned())
    }

    /// The pod that holds this namespace, or may have something in it.
    pub fn holder(&self, id: NetnsId) -> Option<String> {
        self.find(|pod| pod.sandbox().holds(id))
    }

    /// The namespaces that are held.
    pub fn claimed(&self) -> impl Iterator<Item = NetnsId> {
        self.iter().filter_map(|pod| pod.sandbox().netns()).map(|netns| netns.id())
    }
}

impl State {
    /// The source tells of a pod, new or changed.
    pub(super) fn pod_upserted(&mut self, object: Object) {
        let (uid, name) = (object.uid.clone(), object.name.clone());
        self.pods.name(&name, &uid);
        let annotations = object.annotations.clone();
        let old = self.pods.entry(&uid, &name).observe(object, self.node.config.cluster, self.node.now);
        metrics::RECONCILE_EVENTS.inc([if old.is_some() { "update" } else { "add" }]);
        if old.is_none_or(|old| old.annotations != annotations) {
            for warning in overrides::parse(&annotations).warnings {
                log::warn!(uid = uid.as_str(), pod:% = name; "{warning}");
            }
        }
        self.examine(&uid);
        self.advance(&uid);
        self.told_of(&name);
    }

    /// The source does not know a pod any more.
    pub(super) fn pod_gone(&mut self, uid: &str) {
        metrics::RECONCILE_EVENTS.inc(["delete"]);
        let Some(pod) = self.pods.get_mut(uid) else { return };
        pod.unobserved();
        let name = pod.name().clone();
        self.pods.unname(&name, uid);
        self.examine(uid);
        self.advance(uid);
    }

    /// The labels of a namespace have changed; `None`: it is gone.
    pub(super) fn namespace_changed(&mut self, name: &str, labels: Option<StringMap>) {
        // A cluster has thousands, with labels for everybody but us.
        let labels = labels.map(|labels| self.node.config.policy.selectors.relevant(labels));
        if self.node.namespaces.get(name) == labels.as_ref() {
            return;
        }
        match labels {
            Some(labels) => self.node.namespaces.insert(name.to_owned(), labels),
            None => self.node.namespaces.remove(name),
        };
        for uid in self.pods.uids(|pod| pod.name().namespace == name) {
            self.advance(&uid);
        }
    }

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
