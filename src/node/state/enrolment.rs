//! Bringing a pod into the mesh: rules, then ztunnel, then the annotation.

use super::State;
use super::pods::{Doing, Ending, Entry, Goal, Rules, settings_of};
use super::requests::{Add, answer_enrolled};
use super::ztunnels::Standing;
use crate::cni::event::Failure;
use crate::dataplane::inpod::Differences;
use crate::error::{Kind, Result};
use crate::metrics;
use crate::node::event::{Action, Answer, Outcome, Redirection, TaskId, Work};
use crate::node::memory::{NodeSettings, Record};
use crate::rules::inpod::Settings;
use crate::rules::preceding::Preceding;
use crate::sys::netns::Netns;
use std::sync::Arc;
use std::time::Duration;

/// While another pod lets go of a namespace.
const HAND_OVER: Duration = Duration::from_millis(20);

impl State {
    /// The next step of a pod that should be in the mesh and whose namespace is known.
    pub(super) fn enrol(&mut self, entry: &mut Entry, goal: &Goal) {
        let Some(netns) = entry.netns.clone() else { return };
        if self.is_taken(entry, &netns) {
            entry.wake_at(self.now + HAND_OVER);
            return;
        }
        if let Some(rules) = entry.rules.take_if(|rules| rules.netns.id() != netns.id()) {
            entry.leftovers.push(rules.netns);
        }
        if std::mem::take(&mut entry.unrecognised)
            && let Some(object) = &entry.object
        {
            let candidates = self.config.settings.variants().map(|node| (node, settings_of(object, &node)));
            entry.task = Some((self.start(Work::Recognise(netns, candidates.to_vec())), Doing::Recognising));
            return;
        }
        if entry.rules.as_ref().and_then(|rules| rules.settings.as_ref()) != Some(&goal.settings) {
            match entry.retry.blocked(self.now) {
                Some(at) => entry.wake_at(at),
                None => self.apply(entry, netns, goal),
            }
            return;
        }
        for add in &mut entry.adds {
            add.rules_done.get_or_insert(self.now);
        }
        let again = entry.retry.blocked(self.now).is_none();
        if self.ztunnels.offer(&entry.uid, &goal.info, &netns, again, &mut self.out) && entry.acknowledged {
            metrics::VERIFICATION_REPAIRS.inc(["ztunnel"]);
        }
        match self.ztunnels.standing(&entry.uid, &goal.info, netns.id()) {
            Standing::Acknowledged if self.enter(entry, &netns) => return,
            Standing::Acknowledged => self.settle(entry),
            standing => self.wait_for_ztunnel(entry, standing),
        }
        if self.ztunnels.refused_by_newest(&entry.uid)
            && let Some(at) = entry.retry.blocked(self.now)
        {
            entry.wake_at(at);
        }
        // Not while a plugin waits: what is done here would hold up its answer.
        if entry.netns.is_some() && entry.adds.is_empty() {
            self.look_after(entry, netns, goal);
        }
    }

    /// Whether somebody else has this namespace: a pod, which is made to let go, or a cleaning that is under way.
    fn is_taken(&mut self, entry: &Entry, netns: &Netns) -> bool {
        let cleaned = |task: &super::Task| matches!(task, super::Task::Clean(n, _) if n.id() == netns.id());
        if self.tasks.values().any(cleaned) {
            return true;
        }
        let Some(other) = self.holder(netns.id()) else { return false };
        let name = entry.name.clone();
        if let Some(holder) = self.pods.get_mut(&other)
            && holder.netns.as_ref().is_some_and(|held| held.id() == netns.id())
        {
            let text = format!("the namespace of this pod now belongs to {name}");
            holder.report(text);
            holder.drop_sandbox(self.now);
        }
        self.advance(&other);
        self.holder(netns.id()).is_some()
    }

    fn apply(&mut self, entry: &mut Entry, netns: Arc<Netns>, goal: &Goal) {
        let record = entry.unwritten();
        entry.rules.get_or_insert_with(|| Rules { netns: Arc::clone(&netns), settings: None });
        let task = self.start(Work::Apply(netns, goal.settings.clone(), record));
        entry.task = Some((task, Doing::Applying(goal.settings.clone())));
    }

    /// The pod is as it should be.
    fn settle(&mut self, entry: &mut Entry) {
        let started = entry.adds.iter().map(|add| add.came).min();
        for add in &entry.adds {
            add.observe(self.now);
        }
        for add in std::mem::take(&mut entry.adds) {
            self.out.push(answer_enrolled(add));
        }
        if !self.ztunnels.refused_by_newest(&entry.uid) {
            entry.retry.reset();
        }
        entry.acknowledged = true;
        let uid = entry.uid.as_str();
        // What is wrong with a pod whose processes are elsewhere is not over.
        let past = if entry.strayed { None } else { entry.trouble.take() };
        match (past, started) {
            (Some(past), _) => {
                log::warn!(uid = uid, pod:% = entry.name; "enrolled; it is over: {past}");
            }
            (None, Some(came)) => {
                let ms = self.now.saturating_duration_since(came).as_secs_f64() * 1e3;
                log::info!(uid = uid, pod:% = entry.name; "enrolled, {ms:.1} ms after the request");
            }
            (None, None) if entry.published != Some(Redirection::Enabled) => {
                log::info!(uid = uid, pod:% = entry.name; "enrolled");
            }
            (None, None) => {}
        }
        self.publish(entry, Some(Redirection::Enabled));
    }

    /// The rules are right, no ztunnel has acknowledged. A plugin waits a bounded time; without one the rules stay,
    /// since traffic must not bypass the mesh.
    fn wait_for_ztunnel(&mut self, entry: &mut Entry, standing: Standing) {
        if let Standing::Refused(text) = standing {
            let message = format!("ztunnel refused the pod: {text}");
            if entry.adds.is_empty() {
                entry.pod_event(message);
            } else {
                log::warn!(uid = entry.uid.as_str(), pod:% = entry.name; "{message}");
                self.fail_sandbox(entry, 100, message);
            }
        }
        self.expire(entry);
        if entry.netns.is_none() {
            self.withdraw(entry);
        } else if entry.adds.is_empty() && entry.published.is_none() {
            log::debug!(uid = entry.uid.as_str(), pod:% = entry.name;
                "the rules are in place, ztunnel has not acknowledged yet");
            self.publish(entry, Some(Redirection::Pending));
        }
    }

    /// The ADDs that wait have failed: everything is undone, and the runtime comes back with a new sandbox.
    pub(super) fn fail_sandbox(&mut self, entry: &mut Entry, code: u32, message: String) {
        let failure = Failure { code, message, details: String::new() };
        for Add { reply, until, .. } in std::mem::take(&mut entry.adds) {
            entry.ending.push(Ending { reply, answer: Answer::Failed(failure.clone()), until });
        }
        entry.drop_sandbox(self.now);
    }

    /// What else is to be done for a pod whose rules are believed to be right: checks, and the rest of older sandboxes.
    fn look_after(&mut self, entry: &mut Entry, netns: Arc<Netns>, goal: &Goal) {
        if !self.config.verify_interval.is_zero() && !self.is_stopping() {
            // The first one is spread over the interval, and so are all that follow.
            let at = match entry.verify_at {
                Some(at) => at,
                None => self.now + self.config.verify_interval.mul_f64((self.jitter)()),
            };
            entry.verify_at = Some(at);
            entry.wake_at(at.max(self.now + Duration::from_millis(1)));
        }
        let due = entry.verify_at.is_some_and(|at| at <= self.now) && !self.is_stopping();
        if due || !entry.checks.is_empty() {
            let task = self.start(Work::Check(netns, goal.settings.clone(), entry.unwritten()));
            entry.task = Some((task, Doing::Checking));
        } else {
            self.sweep(entry);
        }
    }

    /// Publishes the pod's redirection unless that is what is published.
    pub(super) fn publish(&mut self, entry: &mut Entry, redirection: Option<Redirection>) {
        if entry.published != redirection {
            entry.published = redirection;
            if self.config.cluster && entry.object.is_none() {
                // The annotation went with the pod.
                return;
            }
            self.out.push(Action::Publish(entry.uid.clone(), entry.name.clone(), redirection));
        }
    }

    /// A worker finished something in a pod's namespace.
    pub(super) fn pod_done(&mut self, id: TaskId, outcome: Outcome) {
        let matches = |entry: &Entry| entry.task.as_ref().is_some_and(|(task, _)| *task == id);
        let Some(uid) = self.pods.iter().find(|(_, entry)| matches(entry)).map(|(uid, _)| uid.clone()) else { return };
        let Some(mut entry) = self.pods.remove(&uid) else { return };
        match (entry.task.take(), outcome) {
            (Some((_, Doing::Applying(settings))), Outcome::Applied(result, record)) => {
                entry.remembered(record);
                self.applied(&mut entry, settings, result);
            }
            (Some((_, Doing::Checking)), Outcome::Checked(result, record)) => {
                entry.remembered(record);
                self.checked(&mut entry, result);
            }
            (Some((_, Doing::Recognising)), Outcome::Recognised(result)) => self.recognised(&mut entry, result),
            (Some((_, Doing::Entering(ips))), Outcome::Entered(result)) => self.entered(&mut entry, ips, result),
            (Some((_, Doing::Leaving)), Outcome::Left(result)) => self.left(&mut entry, result),
            (Some((_, Doing::Noting)), Outcome::Noted(result)) => self.noted(&mut entry, result),
            (Some((_, doing)), Outcome::Removed(result)) => self.removed(&mut entry, &doing, result),
            (task, outcome) => {
                log::error!(uid = uid.as_str(); "{outcome:?} does not answer {task:?}");
            }
        }
        self.pods.insert(uid.clone(), entry);
        self.advance(&uid);
    }

    fn applied(&mut self, entry: &mut Entry, settings: Settings, result: Result<Vec<Preceding>>) {
        let Some(rules) = &mut entry.rules else { return };
        let current = entry.netns.as_ref().is_some_and(|netns| netns.id() == rules.netns.id());
        rules.settings = result.is_ok().then(|| settings.clone());
        match result {
            Ok(preceding) => {
                self.note_preceding(entry, &settings, preceding);
                entry.established |= current;
                entry.retry.reset();
            }
            // A newer sandbox has come meanwhile, or none is wanted: how the old one fared no longer matters.
            Err(e) if !current => log::debug!(uid = entry.uid.as_str(); "an old sandbox: {e}"),
            Err(e) => {
                entry.retry.failed(self.now, (self.jitter)());
                let code = if e.kind() == Kind::HostNetns { 4 } else { 101 };
                let message = format!("the traffic rules could not be put in place: {e}");
                if entry.adds.is_empty() {
                    entry.pod_event(message);
                } else {
                    log::warn!(uid = entry.uid.as_str(), pod:% = entry.name; "{message}");
                    self.fail_sandbox(entry, code, message);
                }
            }
        }
    }

    /// Rules that are made of settings which a node may have keep them; any others are put right.
    fn recognised(&mut self, entry: &mut Entry, result: Result<Option<NodeSettings>>) {
        let here = entry.netns.as_ref().map(|netns| netns.id());
        match (result, &mut entry.place, &mut entry.rules, &entry.object) {
            (Ok(Some(node)), Some(place), Some(rules), Some(object)) if here == Some(rules.netns.id()) => {
                place.settings = node;
                rules.settings = Some(settings_of(object, &node));
            }
            (Err(e), ..) => {
                log::warn!(uid = entry.uid.as_str(), pod:% = entry.name;
                    "what its rules are made of cannot be told: {e}");
            }
            _ => {}
        }
    }

    fn checked(&mut self, entry: &mut Entry, result: Result<Differences>) {
        if !self.config.verify_interval.is_zero() {
            entry.verify_at = Some(self.now + self.config.verify_interval);
        }
        if let Ok(Differences { rules, routes, .. }) = &result {
            for (kind, found) in [("rules", rules), ("routes", routes)] {
                if !found.is_empty() {
                    metrics::VERIFICATION_REPAIRS.inc([kind]);
                }
            }
        }
        let failure = match result {
            Ok(differences) if differences.is_empty() => {
                if let Some(settings) = entry.rules.as_ref().and_then(|rules| rules.settings.clone()) {
                    self.note_preceding(entry, &settings, differences.preceding);
                }
                None
            }
            Ok(differences) => {
                Some((100, format!("the traffic rules are not in place: {}", differences.all().join("; "))))
            }
            Err(e) => Some((11, format!("the traffic rules could not be checked: {e}"))),
        };
        if let (Some((_, text)), Some(rules)) = (&failure, &mut entry.rules) {
            // Put in place again, whatever it was.
            rules.settings = None;
            entry.report(text.clone());
        }
        for reply in std::mem::take(&mut entry.checks) {
            let answer = match &failure {
                None => Answer::Done,
                Some((code, message)) => {
                    Answer::Failed(Failure { code: *code, message: message.clone(), details: String::new() })
                }
            };
            self.out.push(Action::Reply(reply, answer));
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        matches!(self.phase, super::Phase::Stopping(_))
    }
}

impl Entry {
    /// The record of the sandbox, if it is not on disk as it is.
    fn unwritten(&self) -> Option<Record> {
        self.record(true).filter(|record| self.remembered.as_ref() != Some(record))
    }

    /// Notes what was written.
    fn remembered(&mut self, record: Option<Record>) {
        if let (Some(place), Some(record)) = (&mut self.place, &record) {
            place.ips.clone_from(&record.ips);
        }
        self.remembered = record.or(self.remembered.take());
    }
}
