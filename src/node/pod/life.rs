//! What becomes of a pod: the transitions that change several of its parts at once.

use super::sandbox::Sandbox;
use super::{GRACE, Job, Location, Pod, settings_of};
use crate::node::records::{NodeSettings, Record};
use crate::node::redirection::Redirection;
use crate::pod::types::Pod as Object;
use crate::sys::netns::{Netns, NetnsId};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

impl Pod {
    /// Takes over what an earlier run wrote down.
    pub fn recall(&mut self, record: Record, settings: NodeSettings) {
        let location = Location {
            container_id: record.container_id.clone(),
            interface: record.interface.clone(),
            path: record.path.clone(),
            netns: record.netns,
            alias: record.alias.clone(),
            ips: record.ips.clone(),
            told: BTreeMap::new(),
            settings,
        };
        self.sandbox = Sandbox::recalled(location, record.enrolled);
        if record.enrolled {
            self.probes.believe_entered();
        }
        self.record = Some(record);
    }

    /// What an earlier run published.
    pub fn recall_published(&mut self, redirection: Redirection) {
        self.published = Some(redirection);
    }

    /// The source tells of it; returns what it told before. `on_object`: what is published stands on the object, and
    /// its first word is what we know of it.
    pub fn observe(&mut self, object: Object, on_object: bool, now: Instant) -> Option<Object> {
        if on_object {
            self.annotated = Redirection::of(&object.annotations);
        }
        if self.object.is_none() {
            self.search.postpone(now + GRACE);
            if on_object {
                // From here on we know better: what the watch tells may be older than what was written.
                self.published = Redirection::of(&object.annotations);
                if self.published.is_some() {
                    // Without a record of ours: an agent of another make, or a run directory that was emptied.
                    self.sandbox.believe_enrolled();
                }
                if self.sandbox.is_recalled() {
                    self.probes.believe_entered();
                }
            }
        }
        if self.object.as_ref().is_some_and(|old| old.ips != object.ips) {
            self.search.encourage();
            let are_first = self.object.as_ref().is_some_and(|old| old.ips.is_empty());
            if let Some(held) = self.sandbox.held_mut().filter(|_| are_first) {
                // Its sandbox runs now: a sandboxed runtime has taken the addresses over by then.
                held.verify(now);
            }
            self.outdated.clear();
        }
        self.name = object.name.clone();
        self.object.replace(object)
    }

    /// The source does not know it any more.
    pub fn unobserved(&mut self) {
        self.object = None;
    }

    /// The runtime has made this sandbox; returns whether its namespace is another one than before.
    pub fn replace_sandbox(&mut self, netns: Arc<Netns>, location: Location) -> bool {
        let told = location.told();
        let new = self.sandbox.replace(netns, location);
        if new {
            self.made_anew(&told);
            self.probes.outdated();
        } else if self.job.is_none()
            && let Some(held) = self.sandbox.held_mut()
        {
            // Believed to be right; looked at again, since somebody asks.
            held.doubt();
        }
        self.search.found();
        self.retry.reset();
        new
    }

    /// Where its sandbox is, while it is not in the mesh.
    pub fn locate(&mut self, location: Location, netns: Option<Arc<Netns>>) {
        if self.sandbox.location().is_none_or(|known| !known.is_of(&location)) {
            self.made_anew(&location.told());
        }
        self.sandbox.locate(location, netns);
    }

    /// The runtime has made a sandbox with these addresses: others in the object are of an earlier one.
    fn made_anew(&mut self, told: &[IpAddr]) {
        let ips = self.object.as_ref().map_or(&[][..], |object| &object.ips);
        let others = !told.is_empty() && !ips.iter().any(|ip| told.contains(ip));
        self.outdated = if others { ips.to_vec() } else { Vec::new() };
    }

    /// The runtime has taken an attachment away that is not the first.
    pub fn detach(&mut self, interface: &str) {
        self.sandbox.detach(interface);
    }

    /// A search has found its namespace. `keep`: rules of an earlier run that nobody remembers stay as they are.
    pub fn found(&mut self, netns: Arc<Netns>, keep: bool, settings: NodeSettings) {
        // One with a record keeps what that says.
        let recorded = self.record.is_some() && !self.sandbox.is_remembered_otherwise(netns.id());
        let unrecognised = keep && !recorded;
        self.sandbox.found(netns, unrecognised, settings);
        self.search.found();
        self.retry.reset();
    }

    /// Its processes live in this namespace now.
    pub fn moved(&mut self, netns: Arc<Netns>) {
        self.sandbox.moved(netns);
        self.probes.outdated();
        self.retry.reset();
    }

    /// Its sandbox has ended; what is in its namespace goes with that.
    pub fn tear_down(&mut self, now: Instant) {
        self.sandbox.tear_down();
        self.given_up(now);
    }

    /// The ADD of its sandbox has failed: everything is undone.
    pub fn undo(&mut self, now: Instant) {
        if let (Some((_, Job::Applying(..))), Some(held)) = (&self.job, self.sandbox.held_mut()) {
            held.suspect();
        }
        self.sandbox.undo();
        self.given_up(now);
    }

    /// Another pod has this namespace now.
    pub fn cede(&mut self, id: NetnsId, now: Instant) {
        self.sandbox.cede(id);
        self.given_up(now);
    }

    fn given_up(&mut self, now: Instant) {
        self.search.postpone(now + GRACE);
        self.probes.outdated();
        self.retry.reset();
    }

    /// It has ended: its rules go with the namespace.
    pub fn abandon(&mut self) {
        self.sandbox.abandon();
    }

    /// The namespace that an earlier run had put rules into is gone.
    pub fn give_up(&mut self) {
        self.sandbox.give_up();
    }

    /// Everything is undone; returns whether it had been enrolled.
    pub fn undone(&mut self) -> bool {
        self.report.over();
        self.sandbox.undone(self.object.is_none())
    }

    /// The rules are out of this namespace, or it is not worth more tries.
    pub fn cleaned(&mut self, id: NetnsId) {
        self.retry.reset();
        self.stuck = 0;
        self.sandbox.cleaned(id);
    }

    /// Its rules are made of these settings of a node.
    pub fn recognise(&mut self, node: NodeSettings) {
        if let Some(object) = &self.object {
            self.sandbox.recognise(node, settings_of(object, &node));
        }
    }
}
