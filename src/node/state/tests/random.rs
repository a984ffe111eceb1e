//! Random scripts: whatever happens in whatever order, what must never be is not, and in the end everything is settled.
//!
//! This file is long because the world around the state, what may happen in it, and what must hold are one thing.

use super::*;
use crate::node::event::{HostLook, NetnsPath};
use crate::zds::server::Request as Told;
use std::collections::BTreeSet;

/// Pods that come and go.
const PODS: [&str; 4] = ["a", "b", "c", "d"];
/// Namespaces for their sandboxes.
const SPACES: usize = 6;
/// Events in a script, before everything is left to settle.
const STEPS: usize = 250;

/// Numbers that look random and are the same each time (xorshift64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// The node around the state: what workers, ztunnels and runtimes have really done.
struct World {
    state: State,
    chance: Chance,
    now: Instant,
    spaces: Vec<Arc<Netns>>,
    work: Vec<(TaskId, Work)>,
    sent: Vec<(ConnectionId, Told)>,
    connected: Vec<ConnectionId>,
    connections: u64,
    replies: u64,
    /// Replies that are owed: an ADD, a DEL or a CHECK each.
    owed: BTreeSet<u64>,
    /// Who sent them is gone: nobody hears the answer.
    gone: BTreeSet<u64>,
    /// Namespaces that have rules of ours.
    rules: BTreeSet<NetnsId>,
    /// Namespaces whose processes are gone: nobody can tell what is in them.
    dead: BTreeSet<NetnsId>,
    /// Namespaces of pods whose end was told while they had processes: what is in them stays.
    ended: BTreeSet<NetnsId>,
    /// What each connected ztunnel has acknowledged and not given back, by uid.
    acknowledged: BTreeMap<(ConnectionId, String), NetnsId>,
    published: BTreeMap<String, Redirection>,
    /// The sandbox that a pod's processes live in.
    homes: BTreeMap<&'static str, (usize, u64)>,
    sandboxes: u64,
    /// How often in a row work in a namespace has failed.
    failures: BTreeMap<NetnsId, u32>,
    /// Everything works from now on.
    calm: bool,
}

impl World {
    fn new(seed: u64, spaces: &[Arc<Netns>]) -> Self {
        let mut chance = Chance(seed | 1);
        let cluster = chance.one_in(2);
        let config = Config {
            cluster,
            host_side: chance.one_in(2),
            verify_interval: if chance.one_in(4) { Duration::ZERO } else { Duration::from_secs(30) },
            reconcile_on_startup: chance.one_in(2),
            ..config()
        };
        let now = crate::sys::clock::now();
        let (mut homes, mut rules, mut records) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        // An earlier run has left pods in the mesh.
        for (at, name) in PODS.iter().enumerate().filter(|_| chance.one_in(3)).collect::<Vec<_>>() {
            homes.insert(*name, (at, 0));
            rules.insert(spaces[at].id());
            records.push(record(name));
        }
        let jitter = Box::new(|| 0.5);
        let state = State::new(config, records, Published::new(), jitter, now);
        World {
            state,
            chance,
            now,
            spaces: spaces.to_vec(),
            work: Vec::new(),
            sent: Vec::new(),
            connected: Vec::new(),
            connections: 0,
            replies: 0,
            owed: BTreeSet::new(),
            gone: BTreeSet::new(),
            rules,
            dead: BTreeSet::new(),
            ended: BTreeSet::new(),
            acknowledged: BTreeMap::new(),
            published: BTreeMap::new(),
            homes,
            sandboxes: 0,
            failures: BTreeMap::new(),
            calm: false,
        }
    }

    fn step(&mut self, event: Event) {
        let actions = self.state.step(event, self.now);
        if let Some(deadline) = self.state.deadline() {
            assert!(deadline > self.now, "a deadline that has passed would make the loop spin");
        }
        for action in actions {
            match action {
                Action::Work(id, work) => {
                    if let Work::Remove(netns) = &work {
                        self.check_removal(id, netns.id());
                    }
                    self.work.push((id, work));
                }
                Action::Send(connection, request) => self.sent.push((connection, request)),
                Action::Snapshot(connection, items) => {
                    self.sent.extend(items.into_iter().map(|item| (connection, item)));
                }
                Action::Publish(uid, _, redirection) => {
                    if redirection == Some(Redirection::Enabled) {
                        self.check_enabled(&uid);
                    }
                    match redirection {
                        Some(redirection) => self.published.insert(uid, redirection),
                        None => self.published.remove(&uid),
                    };
                }
                Action::Reply(to, answer) => {
                    assert!(self.owed.remove(&to.id), "request {} is answered twice: {answer:?}", to.id);
                }
                Action::LookUp(name) => {
                    let event = Event::Source(Notice::LookedUp(name, None));
                    self.step(event);
                }
                Action::Outside(_) | Action::Announce(_) | Action::Remedy(_) => {}
                Action::Exit => panic!("nobody has asked the agent to stop"),
            }
        }
        self.check_holders();
    }

    /// A pod is only published as enabled when its rules are in and a ztunnel has acknowledged it there.
    fn check_enabled(&self, uid: &str) {
        let pod = self.state.pods.get(uid).expect("a pod that is published is known");
        let here = pod.sandbox().netns().expect("its namespace is held").id();
        assert!(self.rules.contains(&here) || self.dead.contains(&here), "{uid} is published without rules");
        let has = |id: &ConnectionId| self.acknowledged.get(&(*id, uid.to_owned())) == Some(&here);
        assert!(self.connected.iter().any(has), "{uid} is published without an acknowledgement");
    }

    /// Rules are only taken out for a pod that lives, and out of no namespace that another living pod has.
    fn check_removal(&self, task: TaskId, here: NetnsId) {
        let uid = self.state.pods.find(|pod| pod.job().is_some_and(|(job, _)| *job == task)).expect("a pod's work");
        let pod = self.state.pods.get(&uid).expect("it is known");
        let lives = pod.object().is_some_and(|object| object.phase != crate::pod::types::Phase::Finished);
        assert!(lives, "rules are taken out of {uid}, which has ended");
        let other = self.homes.iter().find(|(name, (space, _))| **name != uid && self.spaces[*space].id() == here);
        assert!(other.is_none(), "rules of {uid} are taken out of the namespace of {other:?}");
    }

    /// What is in the namespace of a pod that is said to have ended stays there.
    fn note_end(&mut self, name: &str) {
        if let Some((space, _)) = self.homes.get(name) {
            self.ended.insert(self.spaces[*space].id());
        }
    }

    /// No work goes on in a namespace for two pods at once.
    fn check_holders(&self) {
        let mut busy = BTreeSet::new();
        for (_, work) in &self.work {
            if let Work::Apply(netns, ..) | Work::Remove(netns) | Work::Check(netns, ..) = work {
                assert!(busy.insert(netns.id()), "two workers are in one namespace");
            }
        }
    }

    fn reply(&mut self) -> ReplyTo {
        self.replies += 1;
        self.owed.insert(self.replies);
        ReplyTo { id: self.replies, channel: channel().0 }
    }

    fn upsert(&mut self, name: &str, mesh: bool) {
        self.step(Event::Source(Notice::Pod(Box::new(pod(name, mesh)))));
    }

    fn attachment(&self, name: &'static str, sandbox: u64) -> AttachmentEvent {
        AttachmentEvent {
            pod_name: name.to_owned(),
            pod_namespace: "default".to_owned(),
            container_id: if sandbox == 0 { format!("{name}-old") } else { format!("box-{sandbox}") },
            interface: "eth0".to_owned(),
            ..AttachmentEvent::default()
        }
    }

    /// The runtime makes a sandbox: in a namespace that no living pod has, or once more in the pod's own.
    fn add(&mut self, name: &'static str) {
        let taken: BTreeSet<usize> = self.homes.values().map(|(space, _)| *space).collect();
        let usable = |space: &usize| {
            // The kernel gives a number out again only when nobody has the namespace any more.
            let id = self.spaces[*space].id();
            !(self.dead.contains(&id) && self.state.pods.holder(id).is_some())
        };
        let free: Vec<usize> = (0..SPACES).filter(|space| !taken.contains(space)).filter(usable).collect();
        if free.is_empty() {
            return;
        }
        let again = self.homes.get(name).copied().filter(|_| self.chance.one_in(3));
        let (space, sandbox) = match again {
            Some(home) => home,
            None => {
                self.sandboxes += 1;
                (self.chance.pick(&free), self.sandboxes)
            }
        };
        if let Some((left, _)) = self.homes.get(name).filter(|(left, _)| *left != space) {
            // The old namespace ends with the old sandbox.
            self.dead.insert(self.spaces[*left].id());
        }
        let id = self.spaces[space].id();
        if again.is_none() && self.state.pods.holder(id).is_none() {
            // Nobody has it: it is a new one.
            self.rules.remove(&id);
        }
        self.dead.remove(&id);
        self.homes.insert(name, (space, sandbox));
        let ours = self.chance.one_in(2);
        let interface = if again.is_some() && self.chance.one_in(2) { "net1" } else { "eth0" };
        let AttachmentEvent { container_id, .. } = self.attachment(name, sandbox);
        let event = AddEvent {
            netns: format!("/var/run/netns/{space}"),
            pod_name: name.to_owned(),
            pod_namespace: "default".to_owned(),
            container_id: if ours { container_id } else { String::new() },
            interface: if ours { interface.to_owned() } else { String::new() },
            pod_uid: if ours { name.to_owned() } else { String::new() },
            decide: ours,
            ..AddEvent::default()
        };
        let (netns, reply) = (Arc::clone(&self.spaces[space]), self.reply());
        self.step(Event::Request(Request::Add(event, Ok(netns)), reply));
    }

    /// The runtime takes a sandbox down: the pod's, or, late, an older one of it.
    fn del(&mut self, name: &'static str) {
        let home = self.homes.get(name).copied();
        let late = self.chance.one_in(4);
        let Some((space, sandbox)) = home else { return };
        let mut event = self.attachment(name, if late { self.sandboxes + 1000 } else { sandbox });
        let netns = Arc::clone(&self.spaces[space]);
        if self.chance.one_in(6) {
            return self.detach(name, event, netns);
        }
        if !late {
            // Its namespace ends with it.
            self.homes.remove(name);
            self.dead.insert(netns.id());
        }
        let reply = self.reply();
        let opened = match late {
            false => Ok(netns),
            // Its path leads nowhere, or to the namespace of another pod.
            true => {
                let others: Vec<usize> =
                    self.homes.iter().filter(|(n, _)| **n != name).map(|(_, home)| home.0).collect();
                if others.is_empty() || self.chance.one_in(2) {
                    Err(Error::of(Kind::NotFound, "gone"))
                } else {
                    event.container_id = String::new();
                    Ok(Arc::clone(&self.spaces[self.chance.pick(&others)]))
                }
            }
        };
        self.step(Event::Request(Request::Del(event, opened), reply));
    }

    /// An attachment that nobody told of is taken away: whatever the pod has it keeps.
    fn detach(&mut self, name: &str, event: AttachmentEvent, netns: Arc<Netns>) {
        let held = |world: &Self| world.state.pods.get(name).and_then(|pod| Some(pod.sandbox().netns()?.id()));
        let (before, reply) = (held(self), self.reply());
        let event = AttachmentEvent { interface: "net2".to_owned(), ..event };
        self.step(Event::Request(Request::Del(event, Ok(netns)), reply));
        assert_eq!(held(self), before, "the DEL of another attachment has ended the enrolment of {name}");
    }

    fn check(&mut self, name: &'static str) {
        let Some((space, sandbox)) = self.homes.get(name).copied() else { return };
        let (event, netns, reply) = (self.attachment(name, sandbox), Arc::clone(&self.spaces[space]), self.reply());
        self.step(Event::Request(Request::Check(event, Ok(netns)), reply));
    }

    /// A worker finishes one of the pieces of work in hand, in any order.
    fn finish(&mut self, at: usize) {
        let (id, work) = self.work.remove(at);
        let fails = |world: &mut Self, netns: NetnsId| {
            let failures = world.failures.entry(netns).or_default();
            // Never for so long that we give a namespace up.
            let fails = !world.calm && *failures < 2 && world.chance.one_in(8);
            *failures = if fails { *failures + 1 } else { 0 };
            fails
        };
        let failed = || Error::new("the worker failed");
        let outcome = match work {
            Work::Apply(netns, _, record) => {
                // A failed try may have put some of the rules in.
                self.rules.insert(netns.id());
                let of = self.state.pods.iter().find(|pod| pod.job().is_some_and(|(job, _)| *job == id));
                if of.is_some_and(|pod| pod.sandbox().holds(netns.id()) && !self.state.node.has_ended(pod)) {
                    self.ended.remove(&netns.id());
                }
                let result = if fails(self, netns.id()) { Err(failed()) } else { Ok(Vec::new()) };
                Outcome::Applied(result, record)
            }
            Work::Check(netns, _, _, record) => {
                let whole = self.rules.contains(&netns.id());
                let differences = if whole { Differences::default() } else { different("chain X is missing") };
                Outcome::Checked(if fails(self, netns.id()) { Err(failed()) } else { Ok(differences) }, record)
            }
            Work::Recognise(_, candidates) => {
                Outcome::Recognised(Ok(candidates.first().map(|(node, _)| *node).filter(|_| self.chance.one_in(2))))
            }
            Work::Remove(netns) => {
                let fails = fails(self, netns.id());
                if !fails {
                    self.rules.remove(&netns.id());
                }
                Outcome::Removed(if fails { Err(failed()) } else { Ok(()) })
            }
            Work::Note(_, record, _) => Outcome::Noted(Ok(record)),
            Work::Walk(sought, claimed) => {
                let mut found = BTreeMap::new();
                for pod in sought {
                    let home = PODS.iter().find(|name| **name == pod.uid).and_then(|name| self.homes.get(name));
                    let netns = home.map(|(space, _)| Arc::clone(&self.spaces[*space]));
                    found.extend(netns.filter(|netns| !claimed.contains(&netns.id())).map(|netns| (pod.uid, netns)));
                }
                Outcome::Walked(Ok(Walked { found, ..Walked::default() }))
            }
            Work::Compare(pods) => {
                let moved = pods.into_iter().filter_map(|(pod, held)| {
                    let home = PODS.iter().find(|name| **name == pod.uid).and_then(|name| self.homes.get(name))?;
                    let netns = Arc::clone(&self.spaces[home.0]);
                    (netns.id() != held).then_some((pod.uid, Some(netns)))
                });
                Outcome::Compared(Ok(moved.collect()))
            }
            Work::Probe(paths) => {
                let homes: BTreeSet<NetnsId> = self.homes.values().map(|(at, _)| self.spaces[*at].id()).collect();
                Outcome::Probed(paths.into_iter().filter(|path: &NetnsPath| !homes.contains(&path.id)).collect())
            }
            Work::Enter { .. } => Outcome::Entered(if self.chance.one_in(8) { Err(failed()) } else { Ok(()) }),
            Work::Leave(_) => Outcome::Left(Ok(())),
            Work::Host { .. } => Outcome::Hosted(Ok(HostLook::default())),
            Work::Redirect(..) => Outcome::Redirected(Ok(())),
            Work::Inspect(..) => Outcome::Inspected(Ok(Vec::new())),
        };
        self.step(Event::Done(id, outcome));
    }

    /// A ztunnel answers the oldest request it was sent.
    fn answer(&mut self) {
        if self.sent.is_empty() {
            return;
        }
        let (connection, request) = self.sent.remove(0);
        if !self.connected.contains(&connection) {
            return;
        }
        let refuses = !self.calm && self.chance.one_in(8) && matches!(request, Told::Add { .. });
        match &request {
            Told::Add { uid, netns, .. } if !refuses => {
                self.acknowledged.insert((connection, uid.clone()), netns.id());
            }
            Told::Del { uid } => {
                self.acknowledged.remove(&(connection, uid.clone()));
            }
            _ => {}
        }
        let result = if refuses { Err(Error::new("ztunnel has no room")) } else { Ok(()) };
        self.step(Event::Ztunnel(Zds::Answered { connection, request, result }));
    }

    fn connect(&mut self) {
        self.connections += 1;
        let id = ConnectionId(self.connections);
        self.connected.push(id);
        self.step(Event::Ztunnel(Zds::Connected(id)));
    }

    fn disconnect(&mut self) {
        if self.connected.is_empty() {
            return;
        }
        let at = self.chance.below(self.connected.len());
        let id = self.connected.remove(at);
        self.acknowledged.retain(|(connection, _), _| *connection != id);
        self.step(Event::Ztunnel(Zds::Disconnected(id, "gone".to_owned())));
    }

    fn pass(&mut self, longest: Duration) {
        let limit = self.now + longest;
        self.now = self.state.deadline().map_or(limit, |deadline| deadline.min(limit));
        self.step(Event::Tick);
    }

    /// One thing that may happen at any time.
    fn happen(&mut self) {
        let name = self.chance.pick(&PODS);
        match self.chance.below(24) {
            0..=2 => {
                let mesh = !self.chance.one_in(4);
                self.upsert(name, mesh);
            }
            3 if self.chance.one_in(3) => {
                self.note_end(name);
                let mut pod = pod(name, true);
                pod.phase = crate::pod::types::Phase::Finished;
                self.step(Event::Source(Notice::Pod(Box::new(pod))));
            }
            3 => {
                self.note_end(name);
                self.step(Event::Source(Notice::PodGone(name.to_owned())));
            }
            4..=6 => self.add(name),
            7 => self.del(name),
            8 => self.check(name),
            9 => {
                let id = self.chance.next() % (self.replies + 1);
                self.gone.insert(id);
                // Whoever is gone gets no answer, and needs none.
                self.step(Event::RequesterGone(id));
            }
            10 if self.connected.len() < 2 => self.connect(),
            11 if self.chance.one_in(4) => self.disconnect(),
            12 => {
                let sandboxes = self.homes.values().map(|(_, sandbox)| format!("box-{sandbox}")).collect();
                let reply = self.reply();
                self.step(Event::Request(Request::Gc(GcEvent { container_ids: sandboxes }), reply));
            }
            13..=15 => self.answer(),
            16..=20 if !self.work.is_empty() => {
                let at = self.chance.below(self.work.len());
                self.finish(at);
            }
            _ => {
                let longest = self.chance.pick(&[1, 20, 500, 3000, 31_000]);
                self.pass(Duration::from_millis(longest));
            }
        }
    }

    /// Everything works, nothing new happens, and time goes on.
    fn settle(&mut self) {
        self.calm = true;
        if self.connected.is_empty() {
            self.connect();
        }
        for _ in 0..400 {
            while !self.work.is_empty() {
                self.finish(0);
            }
            while !self.sent.is_empty() {
                self.answer();
            }
            self.pass(Duration::from_secs(5));
        }
        while !self.work.is_empty() || !self.sent.is_empty() {
            if !self.work.is_empty() {
                self.finish(0);
            }
            self.answer();
        }
    }

    fn check_settled(&self) {
        let late: Vec<&u64> = self.owed.difference(&self.gone).collect();
        assert!(late.is_empty(), "requests {late:?} are never answered");
        let mut right = BTreeSet::new();
        for pod in self.state.pods.iter() {
            assert!(!pod.is_busy() && !pod.waits().has_checks(), "{} is still busy", pod.uid());
            let goal = self.state.node.goal(pod).is_some();
            match pod.sandbox().netns() {
                Some(netns) => {
                    assert!(goal, "{} is held and should not be in the mesh", pod.uid());
                    assert!(right.insert(netns.id()), "two pods have one namespace");
                    assert!(self.rules.contains(&netns.id()), "{} has no rules", pod.uid());
                    assert_eq!(self.published.get(pod.uid()), Some(&Redirection::Enabled), "{}", pod.uid());
                }
                None => {
                    let home = PODS.iter().find(|name| **name == pod.uid()).and_then(|name| self.homes.get(name));
                    assert!(!goal || home.is_none(), "{} runs, should be in the mesh, and is not", pod.uid());
                }
            }
        }
        for (name, (space, _)) in &self.homes {
            let lives = self.state.pods.get(name).is_some_and(|pod| !self.state.node.has_ended(pod));
            let id = self.spaces[*space].id();
            let stray = lives && self.rules.contains(&id) && !right.contains(&id) && !self.ended.contains(&id);
            assert!(!stray, "{name} runs, is not in the mesh, and has rules");
        }
    }
}

/// `FERRULE_SCRIPTS` says how many scripts are played, beginning with the seed `FERRULE_SEED`.
#[test]
fn whatever_happens_no_pod_is_published_without_its_redirection_and_everything_settles() {
    let number = |name: &str, usual: u64| {
        #[expect(clippy::disallowed_methods, reason = "a test is told by its environment how long to go on")]
        let told = std::env::var(name).ok();
        told.map_or(usual, |told| told.parse().expect("a number"))
    };
    let (scripts, first) = (number("FERRULE_SCRIPTS", 100), number("FERRULE_SEED", 1));
    let spaces: Vec<_> = (0..SPACES).map(|_| Arc::new(Netns::scratch().unwrap())).collect();
    for seed in first..first + scripts {
        let play = || {
            let mut world = World::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), &spaces);
            for name in PODS.iter().filter(|_| world.chance.one_in(2)).collect::<Vec<_>>() {
                world.upsert(name, true);
            }
            world.step(Event::Source(Notice::Synced));
            for _ in 0..STEPS {
                world.happen();
            }
            world.settle();
            world.check_settled();
        };
        if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(play)) {
            #[expect(clippy::print_stderr, reason = "the seed is what the failure is found again with")]
            {
                eprintln!("FERRULE_SEED={seed} FERRULE_SCRIPTS=1 plays the script that failed");
            }
            std::panic::resume_unwind(panic);
        }
    }
}
