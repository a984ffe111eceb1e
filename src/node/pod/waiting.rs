//! Who waits for a pod: ADDs for its enrolment, CHECKs for a look at it, and requests whose answer is known already.

use crate::cni::event::{AddAnswer, Failure};
use crate::metrics;
use crate::node::event::{Action, Answer, ReplyTo};
use crate::pod::decision::Action as Decided;
use std::time::{Duration, Instant};

/// An ADD waits so long for ztunnel's acknowledgement, once the rules are in place.
pub(in crate::node) const ACK: Duration = Duration::from_secs(3);
/// An ADD waits so long for a ztunnel to connect, while none is.
const CONNECT: Duration = Duration::from_secs(1);

/// Everybody who waits.
#[derive(Debug, Default)]
pub(in crate::node) struct Waiting {
    adds: Vec<Add>,
    endings: Vec<Ending>,
    checks: Vec<ReplyTo>,
}

/// An ADD that waits for its pod to be enrolled.
#[derive(Debug)]
struct Add {
    reply: ReplyTo,
    /// Our own plugin wants to know what was decided.
    decide: bool,
    /// The pod had no enrolment when it came.
    fresh: bool,
    came: Instant,
    /// When the rules were in place.
    rules_done: Option<Instant>,
    until: Instant,
}

/// A request whose answer is known. It waits until nothing is left to undo and what is to be remembered is on disk.
#[derive(Debug)]
struct Ending {
    reply: ReplyTo,
    answer: Answer,
    /// It waits no longer than this.
    until: Instant,
}

/// What ADDs have waited for in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::node) enum Late {
    /// The rules.
    Rules,
    /// A ztunnel, or its acknowledgement.
    Ztunnel,
}

impl Waiting {
    /// An ADD waits for the enrolment. `fresh`: its sandbox is new to us.
    pub fn add(&mut self, reply: ReplyTo, decide: bool, fresh: bool, now: Instant, until: Instant) {
        self.adds.push(Add { reply, decide, fresh, came: now, rules_done: None, until });
    }

    /// A CHECK waits for a look at the rules.
    pub fn check(&mut self, reply: ReplyTo) {
        self.checks.push(reply);
    }

    /// A request gets this answer once everything is undone.
    pub fn end(&mut self, reply: ReplyTo, answer: Answer, until: Instant) {
        self.endings.push(Ending { reply, answer, until });
    }

    /// ADDs wait.
    pub fn has_adds(&self) -> bool {
        !self.adds.is_empty()
    }

    /// CHECKs wait.
    pub fn has_checks(&self) -> bool {
        !self.checks.is_empty()
    }

    /// Something waits that a stop should not cut off.
    pub fn is_busy(&self) -> bool {
        !self.adds.is_empty() || !self.endings.is_empty()
    }

    /// The rules are in place.
    pub fn rules_done(&mut self, now: Instant) {
        for add in &mut self.adds {
            add.rules_done.get_or_insert(now);
        }
    }

    /// The pod is enrolled: answers the ADDs. Returns when the first of them came.
    pub fn enrolled(&mut self, now: Instant, out: &mut Vec<Action>) -> Option<Instant> {
        let first = self.adds.iter().map(|add| add.came).min();
        for add in self.adds.drain(..) {
            add.observe(now);
            let reason = "the pod's rules are in place and ztunnel has it".to_owned();
            let decided = AddAnswer { action: Decided::Ambient, reason };
            out.push(Action::Reply(add.reply, if add.decide { Answer::Decided(decided) } else { Answer::Done }));
        }
        first
    }

    /// The enrolment has failed. Returns whether the sandbox is new with one of the ADDs: then they are told so once
    /// everything is undone, else at once.
    pub fn fail(&mut self, failure: &Failure, out: &mut Vec<Action>) -> bool {
        let fresh = self.adds.iter().any(|add| add.fresh);
        for Add { reply, until, .. } in self.adds.drain(..) {
            let answer = Answer::Failed(failure.clone());
            if fresh {
                self.endings.push(Ending { reply, answer, until });
            } else {
                out.push(Action::Reply(reply, answer));
            }
        }
        fresh
    }

    /// The ADDs are of no use any more; whoever takes them answers them.
    pub fn take_adds(&mut self) -> Vec<ReplyTo> {
        self.adds.drain(..).map(|add| add.reply).collect()
    }

    /// The CHECKs; whoever takes them answers them.
    pub fn take_checks(&mut self) -> Vec<ReplyTo> {
        std::mem::take(&mut self.checks)
    }

    /// Everything is undone: answers those who waited for that.
    pub fn undone(&mut self, out: &mut Vec<Action>) {
        out.extend(self.endings.drain(..).map(|ending| Action::Reply(ending.reply, ending.answer)));
        out.extend(self.checks.drain(..).map(|reply| Action::Reply(reply, Answer::Done)));
    }

    /// Whether this request is an ADD that waits.
    pub fn is_asked_by(&self, id: u64) -> bool {
        self.adds.iter().any(|add| add.reply.id == id)
    }

    /// Whoever sent this ADD is gone. Returns whether nobody waits any more for a sandbox that was new with it.
    pub fn requester_gone(&mut self, id: u64) -> bool {
        let fresh = self.adds.extract_if(.., |add| add.reply.id == id).any(|add| add.fresh);
        fresh && self.adds.is_empty()
    }

    /// Answers what has waited for an undoing long enough.
    pub fn expire(&mut self, now: Instant, out: &mut Vec<Action>) {
        let late = self.endings.extract_if(.., |ending| ending.until <= now);
        out.extend(late.map(|ending| Action::Reply(ending.reply, ending.answer)));
    }

    /// When the ADDs have waited long enough, and for what. `connected`: a ztunnel is; else none has been since then.
    pub fn limit(&self, connected: bool, gone_since: Option<Instant>) -> Option<(Instant, Late)> {
        let limits = self.adds.iter().map(|add| {
            let ztunnel = add.rules_done.map(|done| {
                let since = gone_since.map_or(done, |gone| gone.max(done));
                if connected { done + ACK } else { (since + CONNECT).min(done + ACK) }
            });
            ztunnel.map_or(add.until, |ztunnel| ztunnel.min(add.until))
        });
        let rules = self.adds.iter().all(|add| add.rules_done.is_none());
        limits.min().map(|at| (at, if rules { Late::Rules } else { Late::Ztunnel }))
    }

    /// When the first request that waits for an undoing is answered all the same.
    pub fn next_ending(&self) -> Option<Instant> {
        self.endings.iter().map(|ending| ending.until).min()
    }
}

impl Add {
    /// Counts how long it took, now that it is done.
    fn observe(&self, now: Instant) {
        let rules = self.rules_done.unwrap_or(now);
        for (step, from, to) in [("rules", self.came, rules), ("ztunnel", rules, now), ("total", self.came, now)] {
            metrics::ENROLMENT_SECONDS.observe([step], to.saturating_duration_since(from));
        }
    }
}
