//! Which pods are provably not in the mesh: told to plugins that may find us gone.

use super::State;
use super::pods::Entry;
use crate::cni::outside::Outside;
use crate::node::event::Action;
use crate::pod::decision::Action as Decided;
use crate::pod::types::Phase;

impl State {
    /// Notes whether a pod is one of them. One that is never given a sandbox (again) need not be.
    pub(super) fn note_outside(&mut self, entry: &mut Entry) {
        let outside = entry.object.as_ref().is_some_and(|object| {
            let sandboxed = !object.host_network && object.phase != Phase::Finished;
            let decidable = !self.config.cluster || self.namespaces.contains_key(&object.name.namespace);
            sandboxed && decidable && self.decide(object).action == Decided::None
        });
        self.outside_changed |= outside != entry.outside;
        entry.outside = outside;
    }

    /// Tells them once something has changed.
    pub(super) fn tell_outside(&mut self) {
        if !std::mem::take(&mut self.outside_changed) {
            return;
        }
        let pods = self.pods.values().filter(|entry| entry.outside);
        let pods = pods.filter_map(|entry| Some((entry.object.as_ref()?.runtime_uid().to_owned(), entry.name.clone())));
        let outside = Outside::new(&self.config.policy, pods);
        self.out.push(Action::Outside(outside));
    }
}
