//! A pod's sandbox as far as we have to do with it: the namespace that is held, and what is, or may be, in it.

use super::listeners::{Hearing, Listeners};
use super::location::Location;
use super::preceding::{Change, PrecedingRules};
use crate::node::records::{NodeSettings, Record};
use crate::rules::inpod::Settings;
use crate::rules::preceding::Preceding;
use crate::sys::netns::{Netns, NetnsId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// The sandbox, and what older ones have left.
#[derive(Debug, Default)]
pub(in crate::node) struct Sandbox {
    phase: Phase,
    /// Where it is; `None` when nothing could be made of it.
    location: Option<Location>,
    /// The namespace there, held until its identity is written down.
    unmarked: Option<Arc<Netns>>,
    /// Namespaces of ADDs that failed and may still hold rules of ours, the newest last.
    leftovers: Vec<Arc<Netns>>,
    /// Changes whenever an answer about the namespace that is still on its way no longer counts.
    generation: u64,
}

#[derive(Debug, Default)]
enum Phase {
    /// No namespace is held, and none has anything of ours.
    #[default]
    None,
    /// An earlier run put rules into a namespace that has not been found again yet.
    Recalled,
    /// Its namespace is held open, from the first step of an enrolment to the last of its removal.
    Held(Held),
    /// It was given up: the runtime took it down, its ADD failed, or another pod has its namespace.
    TornDown {
        /// It had been enrolled, and its end has not been told yet.
        established: bool,
    },
}

/// A namespace that is held.
#[derive(Debug)]
pub(in crate::node) struct Held {
    netns: Arc<Netns>,
    rules: Rules,
    /// The rules were complete at some time: ztunnel may have it.
    established: bool,
    /// A ztunnel has acknowledged it.
    acknowledged: bool,
    /// Since when it is being taken out, and a ztunnel may still carry its connections.
    leaving: Option<Instant>,
    /// The pod's processes are in another namespace, which is not provably the pod's.
    strayed: bool,
    /// No interface in it has one of the pod's addresses: the rules see none of its packets.
    bypassed: bool,
    /// When its rules are looked at next.
    verify_at: Option<Instant>,
    preceding: Box<PrecedingRules>,
    listeners: Listeners,
}

/// What is in a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::node) enum Rules {
    /// Nothing of ours.
    None,
    /// Rules of an earlier run that are to stay as they are, and nobody remembers what they are made of.
    Unrecognised,
    /// Rules that are being put in place or taken out, or were found to differ.
    Uncertain,
    /// Rules of these settings.
    Known(Settings),
}

impl Held {
    fn new(netns: Arc<Netns>, rules: Rules, established: bool) -> Self {
        let preceding = Box::default();
        Held {
            netns,
            rules,
            established,
            acknowledged: false,
            leaving: None,
            strayed: false,
            bypassed: false,
            verify_at: None,
            preceding,
            listeners: Listeners::default(),
        }
    }

    /// The namespace.
    pub fn netns(&self) -> &Arc<Netns> {
        &self.netns
    }

    /// What is in it.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Whether the rules were complete at some time.
    pub fn is_established(&self) -> bool {
        self.established
    }

    /// Whether a ztunnel has acknowledged it.
    pub fn is_acknowledged(&self) -> bool {
        self.acknowledged
    }

    /// Whether the pod's processes are in another namespace.
    pub fn has_strayed(&self) -> bool {
        self.strayed
    }

    /// Whether the rules see none of the pod's packets.
    pub fn is_bypassed(&self) -> bool {
        self.bypassed
    }

    /// When its rules are looked at next.
    pub fn verify_at(&self) -> Option<Instant> {
        self.verify_at
    }

    /// What rules of others came before ours, in words.
    pub fn preceded_by(&self) -> Option<&str> {
        self.preceding.by()
    }

    /// In words, that ztunnel does not listen in it.
    pub fn unheard(&self) -> Option<String> {
        self.listeners.trouble()
    }

    /// These ports are listened on in it, and ztunnel has acknowledged it.
    pub fn note_listening(&mut self, ports: &BTreeSet<u16>) -> Hearing {
        match &self.rules {
            Rules::Known(settings) => self.listeners.note(settings, ports),
            _ => Hearing::Nothing,
        }
    }

    /// Rules of these settings are complete.
    pub fn applied(&mut self, settings: Settings) {
        self.rules = Rules::Known(settings);
        self.established = true;
    }

    /// What the rules are is not certain any more, so that they are put in place again.
    pub fn doubt(&mut self) {
        if self.rules != Rules::None {
            self.rules = Rules::Uncertain;
        }
    }

    /// There may be rules in it that others have left.
    pub fn suspect(&mut self) {
        if self.rules == Rules::None {
            self.rules = Rules::Uncertain;
        }
    }

    /// A ztunnel has acknowledged it.
    pub fn acknowledge(&mut self) {
        self.acknowledged = true;
        self.leaving = None;
    }

    /// It is being taken out; returns since when, if a ztunnel had acknowledged it and so may carry its connections.
    pub fn leaves(&mut self, now: Instant) -> Option<Instant> {
        self.acknowledged.then(|| *self.leaving.get_or_insert(now))
    }

    /// The next look at its rules.
    pub fn verify(&mut self, at: Instant) {
        self.verify_at = Some(at);
    }

    /// Notes whether the pod's processes are elsewhere; returns whether that is new.
    pub fn stray(&mut self, strayed: bool) -> bool {
        !std::mem::replace(&mut self.strayed, strayed) && strayed
    }

    /// Notes whether the rules see none of the pod's packets; returns whether that is new.
    pub fn bypass(&mut self, bypassed: bool) -> bool {
        !std::mem::replace(&mut self.bypassed, bypassed) && bypassed
    }

    /// The known rules stand behind these of others.
    pub fn note_preceding(&mut self, preceding: Vec<Preceding>) -> Change {
        match &self.rules {
            Rules::Known(settings) => self.preceding.note(settings, preceding),
            _ => Change::Nothing,
        }
    }
}

impl Sandbox {
    /// What an earlier run remembered; `enrolled`: its namespace may have rules of ours.
    pub fn recalled(location: Location, enrolled: bool) -> Self {
        let phase = if enrolled { Phase::Recalled } else { Phase::None };
        Sandbox { phase, location: Some(location), ..Sandbox::default() }
    }

    /// The namespace that is held.
    pub fn held(&self) -> Option<&Held> {
        match &self.phase {
            Phase::Held(held) => Some(held),
            _ => None,
        }
    }

    /// The namespace that is held, to note what became of it.
    pub fn held_mut(&mut self) -> Option<&mut Held> {
        match &mut self.phase {
            Phase::Held(held) => Some(held),
            _ => None,
        }
    }

    /// The namespace that is held, with its number.
    pub fn netns(&self) -> Option<&Arc<Netns>> {
        self.held().map(Held::netns)
    }

    /// The namespace of the location, while its identity is not written down.
    pub fn unmarked(&self) -> Option<&Arc<Netns>> {
        self.unmarked.as_ref()
    }

    /// Where it is.
    pub fn location(&self) -> Option<&Location> {
        self.location.as_ref()
    }

    /// An earlier run put rules into a namespace that has not been found again yet.
    pub fn is_recalled(&self) -> bool {
        matches!(self.phase, Phase::Recalled)
    }

    /// The runtime took it down, or throws it away.
    pub fn is_torn_down(&self) -> bool {
        matches!(self.phase, Phase::TornDown { .. })
    }

    /// Whether rules of ours are, or may be, somewhere: in the namespace that is held, or in an older one.
    pub fn has_rules(&self) -> bool {
        self.held().is_some_and(|held| held.rules != Rules::None) || !self.leftovers.is_empty()
    }

    /// Changes whenever an answer about the namespace that is still on its way no longer counts.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether this namespace is held, or is to be cleaned.
    pub fn holds(&self, id: NetnsId) -> bool {
        self.netns().into_iter().chain(&self.leftovers).any(|netns| netns.id() == id)
    }

    /// The namespace of an ADD that failed, to be cleaned next.
    pub fn leftover(&self) -> Option<&Arc<Netns>> {
        self.leftovers.last()
    }

    /// A namespace is held, or one is to be cleaned.
    pub fn is_in_use(&self) -> bool {
        self.held().is_some() || !self.leftovers.is_empty()
    }

    /// Another agent's word, or an earlier run's, says that the pod is enrolled: its namespace is to be found.
    pub fn believe_enrolled(&mut self) {
        if self.held().is_none() {
            self.phase = Phase::Recalled;
        }
    }

    /// The runtime has made this sandbox: it is the pod's from now on. Returns whether its namespace is another one
    /// than before.
    pub fn replace(&mut self, netns: Arc<Netns>, location: Location) -> bool {
        let new = self.netns().is_none_or(|held| held.id() != netns.id());
        if new {
            self.hold(netns, Rules::None, false);
            self.generation += 1;
            self.location = Some(location);
        } else {
            self.attach(location);
        }
        self.unmarked = None;
        new
    }

    /// A pod that is not in the mesh got this sandbox: where it is will matter if the pod joins the mesh while it runs.
    pub fn locate(&mut self, location: Location, netns: Option<Arc<Netns>>) {
        match self.phase {
            // What an earlier run left is found by what it remembered.
            Phase::Recalled => return,
            Phase::TornDown { .. } => self.phase = Phase::None,
            Phase::None | Phase::Held(_) => {}
        }
        self.attach(location);
        self.unmarked = netns;
    }

    /// Whether this is another namespace than the one that was written down.
    pub fn is_remembered_otherwise(&self, netns: NetnsId) -> bool {
        let known = self.location.as_ref().and_then(|location| location.netns);
        known.is_some_and(|known| known.id() != netns)
    }

    fn attach(&mut self, location: Location) {
        match &mut self.location {
            Some(known) if known.is_of(&location) => known.attach(location),
            other => *other = Some(location),
        }
    }

    /// The runtime has taken an attachment away that is not the first.
    pub fn detach(&mut self, interface: &str) {
        if let Some(location) = &mut self.location {
            location.detach(interface);
        }
    }

    /// A search has found the pod's namespace. `unrecognised`: rules of an earlier run in it are to stay as they are.
    pub fn found(&mut self, netns: Arc<Netns>, unrecognised: bool, settings: NodeSettings) {
        let rules = match (&self.phase, unrecognised) {
            (Phase::Recalled, true) => Rules::Unrecognised,
            (Phase::Recalled, false) => Rules::Uncertain,
            _ => Rules::None,
        };
        let established = rules != Rules::None;
        if self.is_remembered_otherwise(netns.id()) {
            // That was an earlier sandbox.
            self.location = None;
        }
        self.hold(netns, rules, established);
        self.location.get_or_insert_with(|| Location::unknown(settings));
    }

    /// The pod's processes live in this namespace, and no longer in the one that is held.
    pub fn moved(&mut self, netns: Arc<Netns>) {
        self.hold(netns, Rules::None, false);
        self.generation += 1;
        if let Some(location) = &mut self.location {
            // What is known leads to the old one.
            *location = Location { alias: location.alias.take(), ..Location::unknown(location.settings) };
        }
    }

    /// The sandbox has ended, and a new one will come with a new ADD. What is in its namespace goes with that: a process
    /// that is left there must not talk past the mesh.
    pub fn tear_down(&mut self) {
        let established = match &self.phase {
            Phase::Held(held) => held.established,
            Phase::TornDown { established } => *established,
            Phase::Recalled | Phase::None => false,
        };
        self.phase = Phase::TornDown { established };
        self.location = None;
        self.unmarked = None;
        self.generation += 1;
    }

    /// The ADD that made the sandbox has failed: what it put into the namespace is to be taken out.
    pub fn undo(&mut self) {
        if let Phase::Held(held) = &self.phase
            && held.rules != Rules::None
        {
            self.leftovers.push(Arc::clone(&held.netns));
        }
        self.tear_down();
    }

    /// Nothing is taken out of any namespace any more: the pod has ended, and its rules go with the namespace.
    pub fn abandon(&mut self) {
        self.leftovers.clear();
        match &mut self.phase {
            Phase::Held(held) => held.rules = Rules::None,
            Phase::Recalled => self.give_up(),
            Phase::None | Phase::TornDown { .. } => {}
        }
    }

    /// Another pod has this namespace now: nothing is taken out of it any more.
    pub fn cede(&mut self, id: NetnsId) {
        self.leftovers.retain(|leftover| leftover.id() != id);
        if self.netns().is_some_and(|held| held.id() == id) {
            self.tear_down();
        }
    }

    /// The namespace that an earlier run had put rules into is gone.
    pub fn give_up(&mut self) {
        self.phase = Phase::None;
        self.location = None;
    }

    /// Everything is undone; returns whether it had been enrolled. `forget`: nobody knows the pod any more.
    pub fn undone(&mut self, forget: bool) -> bool {
        let established = match &mut self.phase {
            Phase::Held(held) => {
                let established = held.established;
                self.phase = Phase::None;
                established
            }
            Phase::TornDown { established } => std::mem::take(established),
            Phase::None | Phase::Recalled => false,
        };
        if forget {
            self.location = None;
            self.unmarked = None;
        }
        established
    }

    /// The rules are out of this namespace, or it is not worth more tries.
    pub fn cleaned(&mut self, id: NetnsId) {
        self.leftovers.retain(|leftover| leftover.id() != id);
        if let Some(held) = self.held_mut().filter(|held| held.netns.id() == id) {
            held.rules = Rules::None;
        }
    }

    /// What the rules are made of was told: they keep it.
    pub fn recognise(&mut self, node: NodeSettings, settings: Settings) {
        if let (Some(location), Phase::Held(held)) = (&mut self.location, &mut self.phase) {
            location.settings = node;
            held.rules = Rules::Known(settings);
        }
    }

    /// What was written down of it.
    pub fn remember(&mut self, record: &Record) {
        if let Some(location) = &mut self.location {
            location.ips.clone_from(&record.ips);
            location.netns = record.netns;
            self.unmarked = None;
        }
    }

    /// Holds another namespace. One that was given up before, and is not clean, may still have rules.
    fn hold(&mut self, netns: Arc<Netns>, rules: Rules, established: bool) {
        let left = self.leftovers.extract_if(.., |leftover| leftover.id() == netns.id()).count() > 0;
        let rules = if left && rules == Rules::None { Rules::Uncertain } else { rules };
        self.phase = Phase::Held(Held::new(netns, rules, established));
    }
}
