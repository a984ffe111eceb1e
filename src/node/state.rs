//! The one owner of all mutable state. Pure: an event and the time go in, actions come out.
//!
//! Per pod there is what *should be* (the decision, from what the source says) and what *is* (the [`Entry`]'s sandbox, rules and
//! acknowledgement). Every event ends in `advance` for the pods it concerns, which compares the two and
//! takes the next step; the outcome of a step is an event again. There is no other path by which a pod is enrolled or
//! taken out, so a restart, a lost message or a repeated event cannot leave one half way.

mod enrolment;
mod host;
mod identity;
mod outside;
mod pods;
mod preceding;
mod repair;
mod requests;
mod search;
mod sidecar;
#[cfg(test)]
mod tests;
pub mod view;
mod withdrawal;
mod ztunnels;

use super::event::{Action, Answer, Event, Notice, Opened, Outcome, ReplyTo, Request, Stop, TaskId, Work};
use super::memory::{NodeSettings, Published, Record};
use crate::cni::event::AttachmentEvent;
use crate::pod::decision::Policy;
use crate::pod::types::{PodName, StringMap};
use crate::repair::controller::Controller;
use crate::sys::netns::{Netns, NetnsId};
use host::HostSide;
use pods::Entry;
use requests::Lookup;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use ztunnels::Ztunnels;

/// What the state is told once.
#[derive(Debug, Clone)]
pub struct Config {
    /// Which pods are in the mesh.
    pub policy: Policy,
    /// Node-wide part of the pods' settings.
    pub settings: NodeSettings,
    /// The host's namespace: never a pod's.
    pub host: NetnsId,
    /// The host's rules and probe sets are ours to keep.
    pub host_side: bool,
    /// Between two verifications of a pod; zero turns them off.
    pub verify_interval: Duration,
    /// Bring pods of an earlier run to today's node settings.
    pub reconcile_on_startup: bool,
    /// The source, for messages: `the directory /etc/pods`.
    pub source: String,
    /// The source is an API server: uids are the runtime's, every pod's namespace has an object, and what is published
    /// stands on the pods. Else a pod is known by its name, and what is published is kept here.
    pub cluster: bool,
    /// What is done about pods that started before the plugin was there.
    pub repair: Option<crate::repair::Options>,
    /// Where ztunnel connects, for messages.
    pub ztunnel_socket: String,
}

/// See the module.
pub struct State {
    config: Config,
    /// By uid.
    pods: BTreeMap<String, Entry>,
    /// The uid of the pod that has this name now.
    names: HashMap<PodName, String>,
    /// Labels by namespace.
    namespaces: HashMap<String, StringMap>,
    ztunnels: Ztunnels,
    host: HostSide,
    /// Pods that started before the plugin was there, where something is done about them.
    broken: Option<Controller>,
    /// When the pods' namespaces are compared with those of their processes.
    compare_at: Option<Instant>,
    /// Requests whose pod the source is being asked for.
    lookups: Vec<Lookup>,
    /// Teardowns that came before we knew what they are about.
    early: Vec<(AttachmentEvent, Opened, ReplyTo)>,
    /// Tasks that belong to no single pod, or to none we know.
    tasks: BTreeMap<TaskId, Task>,
    phase: Phase,
    /// Which pods are outside the mesh is to be told.
    outside_changed: bool,
    /// The source has told everything that it could read at the start.
    told: bool,
    /// And that was everything there is: what it has not told is not there.
    synced: bool,
    conditions: BTreeMap<&'static str, String>,
    /// Files of the source that cannot be read, and why.
    unread: Vec<String>,
    last_task: u64,
    /// Uniform in 0..1: spreads retries and verifications.
    jitter: Box<dyn FnMut() -> f64 + Send>,
    now: Instant,
    out: Vec<Action>,
}

/// Work that is not of one pod.
enum Task {
    /// The namespace of an unknown sandbox is being cleaned; who asked for it is answered then.
    Clean(Arc<Netns>, Option<ReplyTo>),
    /// These pods are being looked for: uid, and the pod's generation when the search began.
    Walk(Vec<(String, u64)>),
    /// The paths of sandboxes that are no longer valid are being looked at.
    Probe(ReplyTo),
    /// The namespaces of these pods are being compared with those of their processes: uid and generation.
    Compare(Vec<(String, u64)>),
    /// The host's side is being looked at.
    Host,
    /// The namespaces of these broken pods are being looked for.
    Seek(Vec<String>),
    /// Whether a namespace is redirected to its sidecar is being looked at, for whoever asked.
    Inspect(ReplyTo),
    /// A namespace is being redirected to a sidecar.
    Redirect(sidecar::Redirecting),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The source has not told everything yet.
    Filling,
    /// The namespaces of the pods of an earlier run are being looked for.
    Recalling(TaskId),
    /// Serving.
    Running,
    /// Leaving, at this time at the latest.
    Stopping(Instant),
}

/// From the stop signal to the exit; the process has 5 s in all.
const STOP: Duration = Duration::from_millis(3500);
/// Teardowns kept while starting.
const MAX_EARLY: usize = 1024;

impl State {
    /// Starts from what an earlier run left on disk.
    pub fn new(
        config: Config,
        records: Vec<Record>,
        published: Published,
        jitter: Box<dyn FnMut() -> f64 + Send>,
        now: Instant,
    ) -> Self {
        let broken = config.repair.clone().and_then(Controller::new);
        let mut state = State {
            config,
            pods: BTreeMap::new(),
            names: HashMap::new(),
            namespaces: HashMap::new(),
            ztunnels: Ztunnels::default(),
            host: HostSide::default(),
            broken,
            compare_at: None,
            lookups: Vec::new(),
            early: Vec::new(),
            tasks: BTreeMap::new(),
            phase: Phase::Filling,
            outside_changed: false,
            told: false,
            synced: false,
            conditions: BTreeMap::new(),
            unread: Vec::new(),
            last_task: 0,
            jitter,
            now,
            out: Vec::new(),
        };
        state.host.at = state.config.host_side.then_some(now);
        for (uid, (name, redirection)) in published {
            state.entry(&uid, &name).published = Some(redirection);
        }
        for record in records {
            state.recall(record);
        }
        state
    }

    /// Takes an event and returns what is to be done, in order.
    pub fn step(&mut self, event: Event, now: Instant) -> Vec<Action> {
        self.now = now;
        match event {
            Event::Source(notice) => self.source(notice),
            Event::Request(request, reply) => self.request(request, reply),
            Event::RequesterGone(id) => self.requester_gone(id),
            Event::Done(task, outcome) => self.done(task, outcome),
            Event::Remedied(uid, end) => self.repaired(&uid, end),
            Event::Ztunnel(notice) => self.ztunnel(notice),
            Event::Condition(what, problem) => self.condition(what, problem),
            Event::Tick => {}
            Event::Stop(why) => self.stop(&why),
        }
        self.wake_up();
        self.start_search();
        self.look_at_host();
        self.repair();
        self.compare();
        self.tell_outside();
        self.leave_when_idle();
        std::mem::take(&mut self.out)
    }

    /// When [`Event::Tick`] is due if nothing else happens.
    pub fn deadline(&self) -> Option<Instant> {
        let stop = match self.phase {
            Phase::Stopping(until) => Some(until),
            _ => None,
        };
        let pods = self.pods.values().filter_map(|pod| pod.wake);
        // Nobody looks any more while we leave.
        let looks =
            self.host.at.into_iter().chain(self.compare_at).chain(self.repairs_due()).filter(|_| !self.is_stopping());
        pods.chain(looks).chain(self.lookups.iter().map(|lookup| lookup.until)).chain(stop).min()
    }

    fn source(&mut self, notice: Notice) {
        match notice {
            Notice::Pod(pod) => self.pod_upserted(*pod),
            Notice::PodGone(uid) => self.pod_gone(&uid),
            Notice::Namespace(namespace) => self.namespace_changed(&namespace.name, Some(namespace.labels)),
            Notice::NamespaceGone(name) => self.namespace_changed(&name, None),
            Notice::Synced => self.told = true,
            Notice::Unread(files) => self.unread = files,
            Notice::LookedUp(name, trouble) => self.looked_up(&name, trouble.as_deref()),
        }
        if self.told && !self.synced && self.missed().is_none() {
            self.synced();
        }
    }

    fn request(&mut self, request: Request, reply: ReplyTo) {
        match request {
            Request::Ready => {
                let reasons = self.not_ready();
                let answer = if reasons.is_empty() { Answer::Done } else { Answer::NotReady(reasons) };
                self.out.push(Action::Reply(reply, answer));
            }
            Request::Status => {
                let status = self.status();
                self.out.push(Action::Reply(reply, Answer::Json(status)));
            }
            Request::Explain(name) => {
                let answer = self.explain(&name);
                self.out.push(Action::Reply(reply, answer));
            }
            // Not refused, since nobody repeats it: done as soon as it is known what it is about.
            Request::Del(event, netns) if self.is_starting() && self.early.len() < MAX_EARLY => {
                self.early.push((event, netns, reply));
            }
            Request::Del(event, netns) => self.del(&event, netns, reply),
            _ if self.is_starting() || matches!(self.phase, Phase::Stopping(_)) => {
                self.out.push(Action::Reply(reply, Answer::NotReady(self.not_ready())));
            }
            Request::Add(event, netns) => self.add(event, netns, reply),
            Request::Check(event, netns) => self.check(&event, netns, reply),
            Request::Gc(event) => self.gc(&event, reply),
        }
    }

    fn done(&mut self, id: TaskId, outcome: Outcome) {
        match self.tasks.remove(&id) {
            Some(Task::Clean(_, reply)) => {
                if let Outcome::Removed(Err(e)) = outcome {
                    log::warn!("cleaning the namespace of an unknown sandbox failed: {e}");
                }
                self.out.extend(reply.map(|reply| Action::Reply(reply, Answer::Done)));
            }
            Some(Task::Walk(sought)) => {
                if let Outcome::Walked(found) = outcome {
                    self.walked(&sought, found);
                }
                if self.phase == Phase::Recalling(id) {
                    self.serve();
                }
            }
            Some(Task::Probe(reply)) => {
                if let Outcome::Probed(gone) = outcome {
                    self.probed(&gone);
                }
                self.out.push(Action::Reply(reply, Answer::Done));
            }
            Some(Task::Redirect(task)) => match outcome {
                Outcome::Redirected(result) => self.redirected(task, result),
                outcome => log::error!("{outcome:?} does not answer a redirection"),
            },
            Some(Task::Seek(uids)) => {
                if let Outcome::Walked(found) = outcome {
                    self.sought(uids, found);
                }
            }
            Some(Task::Inspect(reply)) => {
                if let Outcome::Inspected(result) = outcome {
                    self.inspected(reply, result);
                }
            }
            Some(Task::Compare(asked)) => {
                if let Outcome::Compared(moved) = outcome {
                    self.compared(&asked, moved);
                }
            }
            Some(Task::Host) => {
                if let Outcome::Hosted(result) = outcome {
                    self.host_done(result);
                }
            }
            None => self.pod_done(id, outcome),
        }
    }

    /// Gives a task its number and hands it out.
    fn start(&mut self, work: Work) -> TaskId {
        self.last_task += 1;
        let id = TaskId(self.last_task);
        self.out.push(Action::Work(id, work));
        id
    }

    /// Whoever found the trouble has logged it.
    fn condition(&mut self, what: &'static str, problem: Option<String>) {
        match problem {
            Some(problem) => self.conditions.insert(what, problem),
            None => self.conditions.remove(what),
        };
    }

    /// Why the agent is not ready; empty when it is.
    fn not_ready(&self) -> Vec<String> {
        let phase = match self.phase {
            Phase::Filling => Some(match self.missed().filter(|_| self.told) {
                Some(name) => {
                    let (source, remedy) = (&self.config.source, self.remedy_for_unknown());
                    format!("starting: pod {name} was in the mesh, and is not by what {source} says{remedy}")
                }
                None => format!("starting: {} has not been read yet", self.config.source),
            }),
            Phase::Recalling(_) => Some("starting: pods enrolled by an earlier run are being looked for".to_owned()),
            Phase::Running => None,
            Phase::Stopping(_) => Some("the agent is stopping".to_owned()),
        };
        let conditions = self.conditions.iter().map(|(what, problem)| format!("{what}: {problem}"));
        phase.into_iter().chain(self.host_not_ready()).chain(conditions).collect()
    }

    /// A pod of an earlier run that would be taken out, while that may be because of a file that could not be read: it
    /// is no proof that the pod has gone, or its namespace left the mesh.
    fn missed(&self) -> Option<&PodName> {
        let was_in = |entry: &&Entry| entry.recalled || entry.published.is_some();
        let missed = |entry: &Entry| self.goal(entry).is_none();
        let mut earlier = self.pods.values().filter(was_in);
        earlier.find(|entry| missed(entry)).map(|entry| &entry.name).filter(|_| !self.unread.is_empty())
    }

    /// What helps a pod that the source does not know.
    fn remedy_for_unknown(&self) -> String {
        match self.unread.as_slice() {
            _ if self.config.cluster => String::new(),
            [] => "; write a Pod file for it there".to_owned(),
            [first] => format!("; a file there cannot be read: {first}"),
            [first, rest @ ..] => format!("; {} files there cannot be read: {first}; …", rest.len() + 1),
        }
    }

    /// Said where a pod needs a ztunnel and there is none.
    fn no_ztunnel(&self) -> String {
        let socket = &self.config.ztunnel_socket;
        let remedy = if self.config.cluster {
            "the ztunnel pod running on this node"
        } else {
            "ztunnel running, with this socket"
        };
        format!("no ztunnel is connected on {socket}; is {remedy}?")
    }

    /// Everything the source had has been told: pods of an earlier run are looked for, all in one walk.
    fn synced(&mut self) {
        self.synced = true;
        // Also when there are none: an earlier run may have known others.
        self.outside_changed = true;
        if self.phase != Phase::Filling {
            return;
        }
        self.phase = Phase::Running;
        self.seek_recalled();
        match self.start_search() {
            Some(task) => self.phase = Phase::Recalling(task),
            None => self.serve(),
        }
        self.advance_all();
    }

    /// What was looked for has been found, or not: ztunnels that wait for their snapshot get it.
    fn serve(&mut self) {
        self.phase = Phase::Running;
        log::info!(pods = self.pods.len(); "ready: {} has been read", self.config.source);
        for connection in self.ztunnels.waiting() {
            self.send_snapshot(connection);
        }
        for (event, netns, reply) in std::mem::take(&mut self.early) {
            self.del(&event, netns, reply);
        }
        self.advance_all();
    }

    fn is_starting(&self) -> bool {
        matches!(self.phase, Phase::Filling | Phase::Recalling(_))
    }

    fn stop(&mut self, why: &Stop) {
        if !matches!(self.phase, Phase::Stopping(_)) {
            log::info!("stopping: {why}");
            self.phase = Phase::Stopping(self.now + STOP);
            for lookup in std::mem::take(&mut self.lookups) {
                self.out.push(Action::Reply(lookup.reply, Answer::NotReady(self.not_ready())));
            }
        }
    }

    fn leave_when_idle(&mut self) {
        let Phase::Stopping(until) = self.phase else { return };
        let walk = |task: &Task| matches!(task, Task::Walk(_) | Task::Compare(_) | Task::Seek(_));
        let idle = self.tasks.values().all(walk) && self.pods.values().all(|pod| !pod.is_busy());
        if idle || self.now >= until {
            self.out.push(Action::Exit);
        }
    }

    fn uids(&self) -> Vec<String> {
        self.pods.keys().cloned().collect()
    }

    fn advance_all(&mut self) {
        for uid in self.uids() {
            self.advance(&uid);
        }
    }

    /// Advances the pods whose time has come.
    fn wake_up(&mut self) {
        let due = |pod: &Entry| pod.wake.is_some_and(|at| at <= self.now);
        let uids: Vec<String> = self.pods.iter().filter(|(_, pod)| due(pod)).map(|(uid, _)| uid.clone()).collect();
        for uid in uids {
            self.advance(&uid);
        }
        self.expire_lookups();
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("phase", &self.phase).field("pods", &self.pods.len()).finish_non_exhaustive()
    }
}
