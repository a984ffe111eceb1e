//! What files say of pods and namespaces, compared with what was told last.

use crate::node::event::Notice;
use crate::pod::object::Objects;
use crate::pod::types::{Namespace, Pod, PodName};
use std::collections::{BTreeMap, HashMap, HashSet};

/// What was told last.
#[derive(Default)]
pub(super) struct Store {
    pods: BTreeMap<String, Pod>,
    namespaces: BTreeMap<String, Namespace>,
    /// Pods that are in two files: said once.
    doubles: HashSet<(String, PodName)>,
}

impl Store {
    /// Whether a pod of this name was told of.
    pub(super) fn knows(&self, name: &PodName) -> bool {
        self.pods.values().any(|pod| pod.name == *name)
    }

    /// Compares with what was told last: namespaces first, since pods are decided by their labels.
    pub(super) fn update<'a>(&mut self, files: impl Iterator<Item = (&'a str, &'a Objects)>) -> Vec<Notice> {
        let mut pods = BTreeMap::new();
        let mut names = HashMap::new();
        let mut namespaces = BTreeMap::new();
        let mut doubles = HashSet::new();
        for (file, objects) in files {
            for namespace in &objects.namespaces {
                namespaces.entry(namespace.name.clone()).or_insert_with(|| namespace.clone());
            }
            for pod in &objects.pods {
                // The one that has its uid, or its name.
                let first = pods.get(&pod.uid).map_or(&pod.name, |first: &Pod| &first.name);
                if let Some(earlier) = names.get(first) {
                    let double = (file.to_owned(), pod.name.clone());
                    if !self.doubles.contains(&double) {
                        log::warn!("pod {} is in {earlier}, which counts, and in {file}", pod.name);
                    }
                    doubles.insert(double);
                } else {
                    names.insert(pod.name.clone(), file);
                    pods.insert(pod.uid.clone(), pod.clone());
                }
            }
        }
        self.doubles = doubles;
        let mut notices = Vec::new();
        let old = std::mem::replace(&mut self.namespaces, namespaces);
        for (name, namespace) in &self.namespaces {
            if old.get(name) != Some(namespace) {
                notices.push(Notice::Namespace(namespace.clone()));
            }
        }
        notices.extend(old.into_keys().filter(|name| !self.namespaces.contains_key(name)).map(Notice::NamespaceGone));
        let old = std::mem::replace(&mut self.pods, pods);
        // Who is gone first: a new pod may have the name of an old one.
        let gone = old.keys().filter(|uid| !self.pods.contains_key(*uid)).cloned().map(Notice::PodGone);
        notices.extend(gone);
        for (uid, pod) in &self.pods {
            if old.get(uid) != Some(pod) {
                notices.push(Notice::Pod(Box::new(pod.clone())));
            }
        }
        notices
    }
}
