//! What the plugin asks: ADD, DEL, CHECK and GC.

use super::pods::{Ending, Entry, Place};
use super::{State, Task};
use crate::cni::event::{AddAnswer, AddEvent, AttachmentEvent, Failure, GcEvent};
use crate::metrics;
use crate::node::event::{Action, Answer, Opened, Path, ReplyTo, Work};
use crate::pod::decision::Action as Decided;
use crate::pod::types::{Phase, PodName};
use crate::sys::netns::{Netns, NetnsId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Our own plugin gives up after 28 s.
const PATIENCE: Duration = Duration::from_secs(25);
/// Istio's gives up after 5 s; the answer must be there before.
const SHORT_PATIENCE: Duration = Duration::from_millis(4700);
/// For ztunnel's acknowledgement, once the rules are in place.
const ACK: Duration = Duration::from_secs(3);
/// For a ztunnel to connect, while none is.
const CONNECT: Duration = Duration::from_secs(1);
/// For the source to look a pod up.
const LOOK_UP: Duration = Duration::from_secs(4);
/// A pod that is not in the mesh does not wait longer for what it was before to be undone.
const PASS: Duration = Duration::from_secs(1);
/// A DEL is answered after this long even if not everything is undone: the plugin waits 1 s.
const DEL: Duration = Duration::from_millis(800);

/// An ADD that waits for its pod to be enrolled.
pub(super) struct Add {
    pub reply: ReplyTo,
    /// Our own plugin wants to know what was decided.
    decide: bool,
    /// The pod had no enrolment when it came.
    fresh: bool,
    pub came: Instant,
    /// When the rules were in place.
    pub rules_done: Option<Instant>,
    pub until: Instant,
}

impl Add {
    /// Counts how long it took, now that it is done.
    pub(super) fn observe(&self, now: Instant) {
        let rules = self.rules_done.unwrap_or(now);
        for (step, from, to) in [("rules", self.came, rules), ("ztunnel", rules, now), ("total", self.came, now)] {
            metrics::ENROLMENT_SECONDS.observe([step], to.saturating_duration_since(from));
        }
    }
}

/// An ADD whose pod is being looked up.
pub(super) struct Lookup {
    name: PodName,
    event: AddEvent,
    netns: Opened,
    pub reply: ReplyTo,
    pub until: Instant,
}

/// The answer to an ADD whose pod is enrolled.
pub(super) fn answer_enrolled(add: Add) -> Action {
    let reason = "the pod's rules are in place and ztunnel has it".to_owned();
    let decided = AddAnswer { action: "ambient".to_owned(), reason };
    Action::Reply(add.reply, if add.decide { Answer::Decided(decided) } else { Answer::Done })
}

impl State {
    pub(super) fn add(&mut self, event: AddEvent, netns: Opened, reply: ReplyTo) {
        let name = named(&event.pod_namespace, &event.pod_name);
        let uid = self.names.get(&name).filter(|uid| !self.is_doubtful(uid, &event, &netns)).cloned();
        match uid {
            Some(uid) => self.admit(&uid, event, netns, reply),
            None => {
                self.out.push(Action::LookUp(name.clone()));
                self.lookups.push(Lookup { name, event, netns, reply, until: self.now + LOOK_UP });
            }
        }
    }

    /// Whether what we know may be the pod's predecessor of the same name.
    fn is_doubtful(&self, uid: &str, event: &AddEvent, netns: &Opened) -> bool {
        let Some(entry) = self.pods.get(uid) else { return true };
        let Some(object) = &entry.object else { return true };
        if self.config.cluster && !self.namespaces.contains_key(&object.name.namespace) {
            return true;
        }
        if event.pod_uid.is_empty() {
            let moves = match (&entry.netns, netns) {
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
        let Some(uid) = self.names.get(name).cloned() else { return };
        let waiting = std::mem::take(&mut self.lookups).into_iter();
        let (answered, others): (Vec<_>, Vec<_>) =
            waiting.partition(|lookup| lookup.name == *name && !self.is_doubtful(&uid, &lookup.event, &lookup.netns));
        self.lookups = others;
        for Lookup { event, netns, reply, .. } in answered {
            self.admit(&uid, event, netns, reply);
        }
    }

    pub(super) fn looked_up(&mut self, name: &PodName, trouble: Option<&str>) {
        let (asked, others) = std::mem::take(&mut self.lookups).into_iter().partition(|lookup| lookup.name == *name);
        self.lookups = others;
        for Lookup { event, netns, reply, .. } in asked {
            let known = self.names.get(name).cloned().filter(|uid| {
                let is_it = |entry: &Entry| {
                    let object = entry.object.as_ref();
                    object.is_some_and(|o| o.uid == event.pod_uid || o.runtime_uid() == event.pod_uid)
                };
                let by_name = event.pod_uid.is_empty() || !self.config.cluster;
                by_name || self.pods.get(uid).is_some_and(is_it)
            });
            match (known, trouble) {
                // What is known of it may be wrong: it is the answer that would have told.
                (_, Some(trouble)) => {
                    self.refuse(reply, 11, format!("{} cannot tell about pod {name}: {trouble}", self.config.source));
                }
                (Some(uid), None) => self.admit(&uid, event, netns, reply),
                (None, None) => {
                    let (source, remedy) = (&self.config.source, self.remedy_for_unknown());
                    self.refuse(reply, 11, format!("pod {name} is not known to {source}{remedy}"));
                }
            }
        }
    }

    pub(super) fn expire_lookups(&mut self) {
        let now = self.now;
        let (late, others) = std::mem::take(&mut self.lookups).into_iter().partition(|lookup| lookup.until <= now);
        self.lookups = others;
        for Lookup { name, reply, .. } in late {
            self.refuse(reply, 11, format!("{} did not answer in time when asked for pod {name}", self.config.source));
        }
    }

    /// An ADD of a pod that is known.
    fn admit(&mut self, uid: &str, event: AddEvent, netns: Opened, reply: ReplyTo) {
        let Some((entry, object)) = self.pods.get(uid).and_then(|e| Some((e, e.object.as_ref()?))) else { return };
        let decision = self.decide(object);
        let alias = (!event.pod_uid.is_empty() && event.pod_uid != uid).then(|| event.pod_uid.clone());
        let place = Place {
            container_id: event.container_id.clone(),
            path: event.netns.clone(),
            alias,
            ips: event.addresses(),
            told: event.addresses(),
            settings: self.config.settings,
        };
        let name = entry.name.clone();
        match decision.action {
            Decided::Ambient | Decided::Sidecar => match netns {
                Err(e) => self.refuse(reply, 5, format!("the pod's network namespace {}: {e}", event.netns)),
                Ok(netns) if netns.id() == self.config.host => {
                    let message = format!("{} is the network namespace of the host, not of a pod", event.netns);
                    self.refuse(reply, 4, message);
                }
                Ok(netns) if decision.action == Decided::Sidecar => self.redirect(uid, &event, netns, reply),
                Ok(netns) => {
                    self.take_sandbox(uid, place, netns, event.decide, reply);
                    self.advance(uid);
                }
            },
            Decided::None if event.decide => {
                log::info!(uid = uid, pod:% = name; "not in the mesh: {}", decision.reason);
                let Some(entry) = self.pods.get_mut(uid) else { return };
                if !entry.recalled {
                    // Where it is will matter if it joins the mesh while it runs.
                    entry.place = Some(place);
                    entry.torn_down = false;
                }
                let answer = AddAnswer { action: "none".to_owned(), reason: decision.reason };
                let (answer, until) = (Answer::Decided(answer), self.now + PASS);
                entry.ending.push(Ending { reply, answer, until });
                self.advance(uid);
            }
            Decided::None => self.refuse(reply, 100, format!("pod {name} is not in the mesh: {}", decision.reason)),
        }
    }

    /// The sandbox of the newest ADD is the pod's.
    fn take_sandbox(&mut self, uid: &str, place: Place, netns: Arc<Netns>, decide: bool, reply: ReplyTo) {
        let Some(mut entry) = self.pods.remove(uid) else { return };
        // Those who wait for an older sandbox to be undone wait no longer.
        self.answer_undone(&mut entry);
        let same = entry.netns.as_ref().is_some_and(|held| held.id() == netns.id());
        if !same {
            for add in std::mem::take(&mut entry.adds) {
                self.refuse(add.reply, 11, "a newer sandbox of the pod has come meanwhile".to_owned());
            }
            entry.generation += 1;
            entry.established = false;
            entry.acknowledged = false;
            entry.entered.outdated();
            entry.verify_at = None;
            entry.leftovers.retain(|leftover| leftover.id() != netns.id());
            entry.netns = Some(netns);
        } else if entry.task.is_none()
            && let Some(rules) = &mut entry.rules
        {
            // Believed to be right; looked at again, since somebody asks.
            rules.settings = None;
        }
        entry.place = Some(place);
        entry.recalled = false;
        entry.torn_down = false;
        entry.sought = false;
        entry.seek_at = None;
        entry.retry.reset();
        let until = self.now + if decide { PATIENCE } else { SHORT_PATIENCE };
        entry.adds.push(Add { reply, decide, fresh: !same, came: self.now, rules_done: None, until });
        self.pods.insert(uid.to_owned(), entry);
    }

    /// Whoever sent a request is gone. Before the rules it is dropped; past them the enrolment is finished and kept,
    /// and the DEL that follows undoes it.
    pub(super) fn requester_gone(&mut self, id: u64) {
        self.lookups.retain(|lookup| lookup.reply.id != id);
        let asked = |entry: &Entry| entry.adds.iter().any(|add| add.reply.id == id);
        let Some(uid) = self.pods.iter().find(|(_, entry)| asked(entry)).map(|(uid, _)| uid.clone()) else { return };
        if let Some(entry) = self.pods.get_mut(&uid) {
            let fresh = entry.adds.extract_if(.., |add| add.reply.id == id).any(|add| add.fresh);
            let past_rules = entry.rules.as_ref().is_some_and(|rules| rules.settings.is_some());
            if entry.adds.is_empty() && fresh && !past_rules {
                log::info!(uid = uid.as_str(), pod:% = entry.name;
                    "whoever asked for the enrolment is gone before the rules were in place; dropped");
                entry.drop_sandbox(self.now);
            }
        }
        self.advance(&uid);
    }

    /// Ends what has waited long enough.
    pub(super) fn expire(&mut self, entry: &mut Entry) {
        let now = self.now;
        let waits = entry.adds.iter().map(|add| (add.until, self.ack_limit(add)));
        let next = waits.map(|(until, ack)| ack.map_or(until, |ack| ack.min(until))).min();
        match next {
            Some(at) if at <= now => {
                let rules = entry.adds.iter().all(|add| add.rules_done.is_none());
                let (code, message) = if rules {
                    (101, "the traffic rules could not be put in place in time".to_owned())
                } else if self.ztunnels.is_empty() {
                    (11, self.no_ztunnel())
                } else {
                    (11, format!("ztunnel did not acknowledge the pod within {} s", ACK.as_secs()))
                };
                log::warn!(uid = entry.uid.as_str(), pod:% = entry.name; "{message}");
                self.fail_sandbox(entry, code, message);
            }
            Some(at) => entry.wake_at(at),
            None => {}
        }
        for ending in entry.ending.extract_if(.., |ending| ending.until <= now) {
            self.out.push(Action::Reply(ending.reply, ending.answer));
        }
        if let Some(at) = entry.ending.iter().map(|ending| ending.until).min() {
            entry.wake_at(at);
        }
    }

    /// Until when an ADD waits for ztunnel: 3 s for the acknowledgement, 1 s for one to connect.
    fn ack_limit(&self, add: &Add) -> Option<Instant> {
        let done = add.rules_done?;
        let connected = !self.ztunnels.is_empty();
        let since = self.ztunnels.gone_since.map_or(done, |gone| gone.max(done));
        Some(if connected { done + ACK } else { (since + CONNECT).min(done + ACK) })
    }

    pub(super) fn del(&mut self, event: &AttachmentEvent, netns: Opened, reply: ReplyTo) {
        let opened = netns.ok().filter(|netns| netns.id() != self.config.host);
        if let Some(uid) = self.attached(event, opened.as_ref().map(|netns| netns.id())) {
            let Some(entry) = self.pods.get_mut(&uid) else { return };
            log::info!(uid = uid.as_str(), pod:% = entry.name; "the sandbox is torn down");
            if std::mem::take(&mut entry.recalled) {
                entry.leftovers.extend(opened);
            }
            entry.drop_sandbox(self.now);
            entry.ending.push(Ending { reply, answer: Answer::Done, until: self.now + DEL });
            let adds = std::mem::take(&mut entry.adds);
            for add in adds {
                self.refuse(add.reply, 11, "the sandbox was torn down meanwhile".to_owned());
            }
            self.advance(&uid);
            return;
        }
        match opened {
            // A kill may have come between the rules and everything that could tell of them.
            Some(netns) if self.holder(netns.id()).is_none() => {
                let task = self.start(Work::Remove(Arc::clone(&netns)));
                self.tasks.insert(task, Task::Clean(netns, Some(reply)));
            }
            _ => self.out.push(Action::Reply(reply, Answer::Done)),
        }
    }

    /// The pod whose sandbox this is: by sandbox id, by namespace where one of the two has no id. A late DEL of an old
    /// sandbox belongs to nobody.
    fn attached(&self, event: &AttachmentEvent, netns: Option<NetnsId>) -> Option<String> {
        let id = event.container_id.as_str();
        let is_it = |entry: &Entry| {
            let known = entry.place.as_ref().map_or("", |place| place.container_id.as_str());
            if !id.is_empty() && !known.is_empty() {
                return id == known;
            }
            netns.is_some_and(|netns| entry.netns.as_ref().is_some_and(|held| held.id() == netns))
        };
        self.pods.iter().find(|(_, entry)| is_it(entry)).map(|(uid, _)| uid.clone())
    }

    pub(super) fn check(&mut self, event: &AttachmentEvent, netns: Opened, reply: ReplyTo) {
        let id = netns.as_ref().ok().map(|netns| netns.id());
        let name = named(&event.pod_namespace, &event.pod_name);
        let uid = self.attached(event, id).or_else(|| self.names.get(&name).cloned());
        let Some((uid, entry)) = uid.and_then(|uid| self.pods.get(&uid).map(|entry| (uid, entry))) else {
            self.out.push(Action::Reply(reply, Answer::Done));
            return;
        };
        let sidecar = entry.object.as_ref().filter(|object| self.decide(object).action == Decided::Sidecar);
        if let Some(object) = sidecar.cloned() {
            self.inspect(&object, netns, reply);
        } else if self.goal(entry).is_none() {
            self.out.push(Action::Reply(reply, Answer::Done));
        } else if entry.netns.is_none() {
            let why = entry.trouble.clone().unwrap_or_else(|| "it has not been enrolled".to_owned());
            self.refuse(reply, 100, format!("the pod should be in the mesh and is not: {why}"));
        } else {
            if let Some(entry) = self.pods.get_mut(&uid) {
                entry.checks.push(reply);
            }
            self.advance(&uid);
        }
    }

    /// Ends the enrolments whose attachment is not valid any more and whose namespace is gone from its path.
    pub(super) fn gc(&mut self, event: &GcEvent, reply: ReplyTo) {
        let valid: BTreeSet<&str> = event.container_ids.iter().map(String::as_str).collect();
        let invalid = self.pods.values().filter_map(|entry| {
            let (netns, place) = (entry.netns.as_ref()?, entry.place.as_ref()?);
            let doubtful = !valid.contains(place.container_id.as_str()) && !place.path.is_empty();
            doubtful.then(|| Path { uid: entry.uid.clone(), path: place.path.clone(), id: netns.id() })
        });
        let paths: Vec<Path> = invalid.collect();
        if paths.is_empty() {
            self.out.push(Action::Reply(reply, Answer::Done));
        } else {
            let task = self.start(Work::Probe(paths));
            self.tasks.insert(task, Task::Probe(reply));
        }
    }

    pub(super) fn probed(&mut self, gone: &[Path]) {
        for Path { uid, path, id } in gone {
            let Some(entry) = self.pods.get_mut(uid) else { continue };
            if entry.netns.as_ref().is_some_and(|netns| netns.id() == *id) {
                log::info!(uid = uid.as_str(), pod:% = entry.name;
                    "not a valid attachment any more, and {path} is gone");
                entry.drop_sandbox(self.now);
                self.advance(uid);
            }
        }
    }

    pub(super) fn refuse(&mut self, reply: ReplyTo, code: u32, message: String) {
        log::warn!(code = code; "refused: {message}");
        let failure = Failure { code, message, details: String::new() };
        self.out.push(Action::Reply(reply, Answer::Failed(failure)));
    }
}

/// Runtimes that pass no namespace (podman) mean `default`.
fn named(namespace: &str, name: &str) -> PodName {
    let namespace = if namespace.is_empty() { "default" } else { namespace };
    PodName { namespace: namespace.to_owned(), name: name.to_owned() }
}
