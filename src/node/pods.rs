//! The pods of this node, by uid and by name.

use super::pod::Pod;
use crate::pod::types::PodName;
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

    /// The pod of a uid, to change it.
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

    /// All of them, to change them.
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

    /// The pod that holds this namespace, or for which something is, or is to be, done there.
    pub fn holder(&self, id: NetnsId) -> Option<String> {
        self.find(|pod| pod.sandbox().holds(id) || pod.works_in(id))
    }

    /// The namespaces that are held.
    pub fn claimed(&self) -> impl Iterator<Item = NetnsId> {
        self.iter().filter_map(|pod| pod.sandbox().netns()).map(|netns| netns.id())
    }
}
