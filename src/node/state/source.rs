//! What the source tells of pods and namespaces.

use super::State;
use crate::metrics;
use crate::pod::overrides;
use crate::pod::types::{Pod as Object, StringMap};

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
}
