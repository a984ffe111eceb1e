//! The one owner of all mutable state. Pure: an event and the time go in, actions come out.
//!
//! Per pod there is what *should be* (the decision, from what the source says) and what *is* (the [`Pod`]'s sandbox). Every event ends in `advance` for the pods it concerns, which compares the two and
//! takes the next step; the outcome of a step is an event again. There is no other path by which a pod is enrolled or
//! taken out, so a restart, a lost message or a repeated event cannot leave one half way.

mod enrolment;
mod host;
mod identity;
mod lifecycle;
mod lookup;
mod node;
mod outside;
mod pods;
mod repair;
mod requests;
mod search;
mod sidecar;
mod tasks;
#[cfg(test)]
mod tests;
mod verification;
pub mod view;
mod withdrawal;
mod ztunnels;

use super::event::{Action, Answer, Event, Notice, Opened, ReplyTo, Request, TaskId};
use super::pod::Pod;
use super::records::{NodeSettings, Published, Record};
use crate::cni::event::AttachmentEvent;
use crate::pod::decision::Policy;
use crate::pod::types::StringMap;
use crate::repair::controller::Controller;
use crate::sys::netns::NetnsId;
use host::HostSide;
use lookup::Lookup;
use pods::Pods;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use tasks::Task;
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
    node: Node,
    pods: Pods,
    /// Pods that started before the plugin was there, where something is done about them.
    broken: Option<Controller>,
    /// When the pods' namespaces are compared with those of their processes.
    compare_at: Option<Instant>,
    /// Requests whose pod the source is being asked for.
    lookups: Vec<Lookup>,
    /// Teardowns that came before we knew what they are about.
    early: Vec<(AttachmentEvent, Opened, ReplyTo)>,
}

/// Everything that belongs to no single pod.
struct Node {
    config: Config,
    /// Labels by namespace.
    namespaces: HashMap<String, StringMap>,
    ztunnels: Ztunnels,
    host: HostSide,
    /// Tasks that belong to no single pod, or to none we know.
    tasks: BTreeMap<TaskId, Task>,
    last_task: u64,
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
    /// Uniform in 0..1: spreads retries and verifications.
    jitter: Box<dyn FnMut() -> f64 + Send>,
    now: Instant,
    out: Vec<Action>,
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
        let host = HostSide::new(config.host_side.then_some(now));
        let node = Node {
            config,
            namespaces: HashMap::new(),
            ztunnels: Ztunnels::default(),
            host,
            tasks: BTreeMap::new(),
            last_task: 0,
            phase: Phase::Filling,
            outside_changed: false,
            told: false,
            synced: false,
            conditions: BTreeMap::new(),
            unread: Vec::new(),
            jitter,
            now,
            out: Vec::new(),
        };
        let pods = Pods::default();
        let mut state = State { node, pods, broken, compare_at: None, lookups: Vec::new(), early: Vec::new() };
        for (uid, (name, redirection)) in published {
            state.pods.entry(&uid, &name).recall_published(redirection);
        }
        for record in records {
            state.recall(record);
        }
        state
    }

    /// Takes an event and returns what is to be done, in order.
    pub fn step(&mut self, event: Event, now: Instant) -> Vec<Action> {
        self.node.now = now;
        match event {
            Event::Source(notice) => self.source(notice),
            Event::Request(request, reply) => self.request(request, reply),
            Event::RequesterGone(id) => self.requester_gone(id),
            Event::Done(task, outcome) => self.done(task, outcome),
            Event::Remedied(uid, end) => self.repaired(&uid, end),
            Event::Ztunnel(notice) => self.ztunnel(notice),
            Event::Condition(what, problem) => self.node.condition(what, problem),
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
        std::mem::take(&mut self.node.out)
    }

    /// When [`Event::Tick`] is due if nothing else happens.
    pub fn deadline(&self) -> Option<Instant> {
        let stop = match self.node.phase {
            Phase::Stopping(until) => Some(until),
            _ => None,
        };
        let pods = self.pods.iter().filter_map(Pod::wake);
        // Nobody looks any more while we leave.
        let looks = self.node.host.due().into_iter().chain(self.compare_at).chain(self.repairs_due());
        let looks = looks.filter(|_| !self.node.is_stopping());
        pods.chain(looks).chain(self.lookups_due()).chain(stop).min()
    }

    fn source(&mut self, notice: Notice) {
        match notice {
            Notice::Pod(pod) => self.pod_upserted(*pod),
            Notice::PodGone(uid) => self.pod_gone(&uid),
            Notice::Namespace(namespace) => self.namespace_changed(&namespace.name, Some(namespace.labels)),
            Notice::NamespaceGone(name) => self.namespace_changed(&name, None),
            Notice::Synced => self.node.told = true,
            Notice::Unread(files) => self.node.unread = files,
            Notice::LookedUp(name, trouble) => self.looked_up(&name, trouble.as_deref()),
        }
        if self.node.told && !self.node.synced && self.missed().is_none() {
            self.synced();
        }
    }

    fn request(&mut self, request: Request, reply: ReplyTo) {
        match request {
            Request::Ready => {
                let reasons = self.not_ready();
                let answer = if reasons.is_empty() { Answer::Done } else { Answer::NotReady(reasons) };
                self.node.out.push(Action::Reply(reply, answer));
            }
            Request::Status => {
                let status = self.status();
                self.node.out.push(Action::Reply(reply, Answer::Json(status)));
            }
            Request::Explain(name) => {
                let answer = self.explain(&name);
                self.node.out.push(Action::Reply(reply, answer));
            }
            // Not refused, since nobody repeats it: done as soon as it is known what it is about.
            Request::Del(event, netns) if self.node.is_starting() && self.early.len() < MAX_EARLY => {
                self.early.push((event, netns, reply));
            }
            Request::Del(event, netns) => self.del(&event, netns, reply),
            _ if self.node.is_starting() || self.node.is_stopping() => {
                self.node.out.push(Action::Reply(reply, Answer::NotReady(self.not_ready())));
            }
            Request::Add(event, netns) => self.add(event, netns, reply),
            Request::Check(event, netns) => self.check(&event, netns, reply),
            Request::Gc(event) => self.gc(&event, reply),
        }
    }

    /// Advances the pods whose time has come.
    fn wake_up(&mut self) {
        let now = self.node.now;
        for uid in self.pods.uids(|pod| pod.wake().is_some_and(|at| at <= now)) {
            self.advance(&uid);
        }
        self.expire_lookups();
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("phase", &self.node.phase).field("pods", &self.pods.len()).finish_non_exhaustive()
    }
}
