//! Bringing a pod into the mesh: rules, then ztunnel, then the annotation.

use super::Node;
use super::node::Goal;
use crate::cni::event::{Failure, code};
use crate::error::Result;
use crate::metrics;
use crate::node::event::Work;
use crate::node::pod::report::OVERTAKEN;
use crate::node::pod::{ACK, Job, Late, Pod, Precedence, Rules, settings_of};
use crate::node::records::NodeSettings;
use crate::node::redirection::Redirection;
use crate::node::ztunnels::Standing;
use crate::rules::inpod::Settings;
use crate::rules::preceding::Preceding;
use crate::sys::netns::{Netns, NetnsId};
use std::sync::Arc;
use std::time::Duration;

/// While another pod lets go of a namespace.
const HAND_OVER: Duration = Duration::from_millis(20);

impl Node {
    /// Another pod still has the namespace.
    pub(super) fn wait_for_hand_over(&self, pod: &mut Pod) {
        pod.wake_at(self.now + HAND_OVER);
    }

    /// The next step of a pod that should be in the mesh and whose namespace is held.
    pub(super) fn enrol(&mut self, pod: &mut Pod, goal: &Goal) {
        let Some((netns, rules)) = pod.held().map(|held| (Arc::clone(held.netns()), held.rules().clone())) else {
            return;
        };
        // Probes must not wait for a ztunnel: a pod with rules that the kubelet cannot probe is started again and again.
        let runs = rules != Rules::None && !pod.waits().has_adds();
        if runs && !matches!(rules, Rules::Known(_)) && self.enter(pod, &netns) {
            return;
        }
        match (&rules, pod.object()) {
            (Rules::Known(settings), _) if *settings == goal.settings => {}
            (Rules::Unrecognised, Some(object)) => {
                let candidates = self.config.settings.variants().map(|node| (node, settings_of(object, &node)));
                let (id, work) = (netns.id(), Work::Recognise(netns, candidates.to_vec()));
                let task = self.start(work);
                return pod.begin(task, Job::Recognising(id));
            }
            _ => {
                if pod.may_try(self.now) {
                    self.apply(pod, netns, goal);
                }
                return;
            }
        }
        pod.waiting().rules_done(self.now);
        let again = pod.blocked(self.now).is_none();
        if self.ztunnels.offer(pod.uid(), &goal.info, &netns, again, &mut self.out)
            && pod.held().is_some_and(|held| held.is_acknowledged())
        {
            metrics::VERIFICATION_REPAIRS.inc(["ztunnel"]);
        }
        if runs && self.enter(pod, &netns) {
            return;
        }
        match self.ztunnels.standing(pod.uid(), &goal.info, netns.id()) {
            Standing::Acknowledged if self.enter(pod, &netns) => return,
            Standing::Acknowledged => self.settle(pod),
            standing => self.wait_for_ztunnel(pod, standing),
        }
        if self.ztunnels.refused_by_newest(pod.uid())
            && let Some(at) = pod.blocked(self.now)
        {
            pod.wake_at(at);
        }
        // Not while a plugin waits: what is done here would hold up its answer.
        if pod.held().is_some() && !pod.waits().has_adds() {
            self.look_after(pod, netns, goal);
        }
    }

    fn apply(&mut self, pod: &mut Pod, netns: Arc<Netns>, goal: &Goal) {
        let (record, id) = (pod.unwritten(), netns.id());
        if let Some(held) = pod.held_mut() {
            held.suspect();
        }
        let task = self.start(Work::Apply(netns, goal.settings.clone(), record));
        pod.begin(task, Job::Applying(id, goal.settings.clone()));
    }

    /// The pod is as it should be.
    fn settle(&mut self, pod: &mut Pod) {
        let started = pod.waiting().enrolled(self.now, &mut self.out);
        if !self.ztunnels.refused_by_newest(pod.uid()) {
            pod.succeeded();
        }
        if let Some(held) = pod.held_mut() {
            held.acknowledge();
        }
        let past = pod.trouble_over();
        let (uid, name) = (pod.uid(), pod.name());
        match (past, started) {
            (Some(past), _) => log::warn!(uid = uid, pod:% = name; "enrolled; it is over: {past}"),
            (None, Some(came)) => {
                let ms = self.now.saturating_duration_since(came).as_secs_f64() * 1e3;
                log::info!(uid = uid, pod:% = name; "enrolled, {ms:.1} ms after the request");
            }
            (None, None) if pod.published() != Some(Redirection::Enabled) && pod.report().trouble().is_none() => {
                log::info!(uid = uid, pod:% = name; "enrolled");
            }
            (None, None) => {}
        }
        // Peers would send HBONE to a pod where nobody takes it.
        let bypassed = pod.held().is_some_and(|held| held.is_bypassed());
        self.publish(pod, (!bypassed).then_some(Redirection::Enabled));
    }

    /// The rules are right, no ztunnel has acknowledged. A plugin waits a bounded time; without one the rules stay,
    /// since traffic must not bypass the mesh.
    fn wait_for_ztunnel(&mut self, pod: &mut Pod, standing: Standing) {
        if let Standing::Refused(text) = standing {
            self.enrolment_failed(pod, code::AGENT_REFUSED, format!("ztunnel refused the pod: {text}"));
        }
        self.expire(pod);
        if pod.held().is_none() {
            self.withdraw(pod);
        } else if !pod.waits().has_adds() && pod.published().is_none() {
            log::debug!(uid = pod.uid(), pod:% = pod.name();
                "the rules are in place, ztunnel has not acknowledged yet");
            self.publish(pod, Some(Redirection::Pending));
        }
    }

    /// Ends what has waited long enough.
    pub(super) fn expire(&mut self, pod: &mut Pod) {
        let now = self.now;
        match pod.waits().limit(!self.ztunnels.is_empty(), self.ztunnels.gone_since()) {
            Some((at, late)) if at <= now => {
                let (code, message) = match late {
                    Late::Rules => {
                        (code::RULES_FAILED, "the traffic rules could not be put in place in time".to_owned())
                    }
                    Late::Ztunnel if self.ztunnels.is_empty() => (code::TRY_AGAIN_LATER, self.no_ztunnel()),
                    Late::Ztunnel => {
                        let text = format!("ztunnel did not acknowledge the pod within {} s", ACK.as_secs());
                        (code::TRY_AGAIN_LATER, text)
                    }
                };
                log::warn!(uid = pod.uid(), pod:% = pod.name(); "{message}");
                self.fail_sandbox(pod, code, message);
            }
            Some((at, _)) => pod.wake_at(at),
            None => {}
        }
        pod.waiting().expire(now, &mut self.out);
        if let Some(at) = pod.waits().next_ending() {
            pod.wake_at(at);
        }
    }

    /// The pod could not be enrolled: whoever waits is told, else people who look at the pod are.
    fn enrolment_failed(&mut self, pod: &mut Pod, code: u32, message: String) {
        if pod.waits().has_adds() {
            log::warn!(uid = pod.uid(), pod:% = pod.name(); "{message}");
            self.fail_sandbox(pod, code, message);
        } else {
            self.announce(pod, message);
        }
    }

    /// The ADDs that wait have failed. If the sandbox is new with one of them, everything is undone, and the runtime
    /// comes back with another; one that runs keeps what it has.
    fn fail_sandbox(&mut self, pod: &mut Pod, code: u32, message: String) {
        if pod.waiting().fail(&Failure { code, message, details: String::new() }, &mut self.out) {
            pod.undo(self.now);
        }
    }

    /// What else is to be done for a pod whose rules are believed to be right: checks, and the rest of older sandboxes.
    fn look_after(&mut self, pod: &mut Pod, netns: Arc<Netns>, goal: &Goal) {
        let interval = self.config.verify_interval;
        let looks = !interval.is_zero() && !self.is_stopping();
        let planned = pod.held().and_then(|held| held.verify_at());
        let mut due = false;
        if looks {
            // The first one is spread over the interval, and so are all that follow.
            let at = planned.unwrap_or_else(|| self.now + interval.mul_f64((self.jitter)()));
            if let Some(held) = pod.held_mut() {
                held.verify(at);
            }
            pod.wake_at(at.max(self.now + Duration::from_millis(1)));
            due = at <= self.now;
        }
        if due || pod.waits().has_checks() {
            let id = netns.id();
            let task = self.start(Work::Check(netns, goal.settings.clone(), pod.ips(), pod.unwritten()));
            pod.begin(task, Job::Checking(id));
        } else {
            self.sweep(pod);
        }
    }

    /// Rules were put into a namespace, or not.
    pub(super) fn applied(
        &mut self,
        pod: &mut Pod,
        netns: NetnsId,
        settings: Settings,
        result: Result<Vec<Preceding>>,
    ) {
        let Some(held) = pod.held_mut().filter(|held| held.netns().id() == netns) else {
            // A newer sandbox has come meanwhile, or none is wanted: how the old one fared no longer matters.
            if let Err(e) = result {
                log::debug!(uid = pod.uid(); "an old sandbox: {e}");
            }
            return;
        };
        match result {
            Ok(preceding) => {
                held.applied(settings);
                let precedence = held.note_preceding(preceding);
                pod.succeeded();
                self.tell_precedence(pod, precedence);
            }
            Err(e) => {
                // Some of them may be there.
                held.suspect();
                held.doubt();
                pod.failed(self.now, (self.jitter)());
                let code = code::of_rules(&e);
                self.enrolment_failed(pod, code, format!("the traffic rules could not be put in place: {e}"));
            }
        }
    }

    /// Rules that are made of settings which a node may have keep them; any others are put right.
    pub(super) fn recognised(&mut self, pod: &mut Pod, result: Result<Option<NodeSettings>>) {
        match result {
            Ok(Some(node)) => pod.recognise(node),
            Ok(None) => {}
            Err(e) => {
                log::warn!(uid = pod.uid(), pod:% = pod.name(); "what its rules are made of cannot be told: {e}");
            }
        }
        // It is asked once.
        if let Some(held) = pod.held_mut().filter(|held| *held.rules() == Rules::Unrecognised) {
            held.doubt();
        }
    }

    /// Tells people that rules of others have come before ours, or have gone.
    pub(super) fn tell_precedence(&mut self, pod: &mut Pod, change: Precedence) {
        match change {
            Precedence::Nothing => {}
            Precedence::Over(past) => {
                pod.tell_no_more(OVERTAKEN);
                log::info!(uid = pod.uid(), pod:% = pod.name(); "it is over: {past}");
            }
            Precedence::Came(message) => {
                log::warn!(uid = pod.uid(), pod:% = pod.name(); "{message}");
                pod.tell(OVERTAKEN, message, self.next_verification());
            }
        }
    }
}
