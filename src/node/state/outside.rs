//! Which pods are provably not in the mesh: told to plugins that may find us gone.

use super::{Node, State};
use crate::cni::outside::Outside;
use crate::node::event::Action;
use crate::node::pod::Pod;
use crate::pod::decision::Action as Decided;
use crate::pod::types::Phase;

impl Node {
    /// Notes whether a pod is one of them. One that is never given a sandbox (again) need not be.
    pub(super) fn note_outside(&mut self, pod: &mut Pod) {
        let outside = pod.object().is_some_and(|object| {
            let sandboxed = !object.host_network && object.phase != Phase::Finished;
            let decidable = !self.config.cluster || self.namespaces.contains_key(&object.name.namespace);
            sandboxed && decidable && self.decide(object).action == Decided::None
        });
        self.outside_changed |= pod.set_outside(outside);
    }
}

impl State {
    /// Tells them once something has changed.
    pub(super) fn tell_outside(&mut self) {
        if !std::mem::take(&mut self.node.outside_changed) {
            return;
        }
        let pods = self.pods.iter().filter(|pod| pod.is_outside());
        let pods = pods.filter_map(|pod| Some((pod.object()?.runtime_uid().to_owned(), pod.name().clone())));
        let outside = Outside::new(&self.node.config.policy, pods);
        self.node.out.push(Action::Outside(outside));
    }
}
