//! From an event to the flow that it concerns, and from there to actions.

use super::{Config, Node, Phase, State};
use crate::node::event::{Action, Answer, Event, Notice, ReplyTo, Request};
use crate::node::host_side::HostSide;
use crate::node::pod::Pod;
use crate::node::pods::Pods;
use crate::node::records::{Published, Record};
use crate::node::ztunnels::Ztunnels;
use crate::repair::controller::Controller;
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

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
        state.node.tell_ipv6_stays(&records);
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
            Event::Published(uid, redirection, result) => self.published(&uid, redirection, result),
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
            Notice::Unread(unread) => {
                self.node.unread = unread;
                self.advance_all();
            }
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
