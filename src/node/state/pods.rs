//! What is known of each pod: what the source says, and what was done.

use super::State;
use super::host::Entered;
use super::preceding::PrecedingRules;
use super::requests::Add;
use super::view::PodState;
use crate::metrics;
use crate::node::event::{Action, Answer, Redirection, ReplyTo, Sought, TaskId};
use crate::node::memory::{NodeSettings, Record};
use crate::node::publish::event_recorder::PodEvent;
use crate::pod::decision::{Action as Decided, Decision, decide};
use crate::pod::overrides;
use crate::pod::types::{Pod as Object, PodName, StringMap};
use crate::rules::inpod::Settings;
use crate::sys::netns::{Netns, NetnsId};
use crate::zds::server::WorkloadInfo;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A pod that is new to the watch is left to the plugin for this long.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// One pod.
#[derive(Default)]
pub(super) struct Entry {
    pub uid: String,
    pub name: PodName,
    /// What the source says; `None` when it knows no such pod (any more, or not yet).
    pub object: Option<Object>,
    /// Where its sandbox was last seen.
    pub place: Option<Place>,
    /// What is on disk about it.
    pub remembered: Option<Record>,
    /// The sandbox's namespace, held open from the first step of an enrolment to the last of its removal.
    pub netns: Option<Arc<Netns>>,
    /// What is, or may be, in a namespace.
    pub rules: Option<Rules>,
    /// The rules were complete in `netns` at some time: ztunnel may have it.
    pub established: bool,
    /// An earlier run put rules into a namespace that has not been found again yet.
    pub recalled: bool,
    /// What its rules are made of is not known: nobody remembers, and they are to stay as they are.
    pub unrecognised: bool,
    /// A ztunnel has acknowledged it in this sandbox.
    pub acknowledged: bool,
    /// The runtime took the sandbox down, or throws it away because its ADD failed.
    pub torn_down: bool,
    /// Namespaces of older sandboxes that may still hold rules of ours.
    pub leftovers: Vec<Arc<Netns>>,
    /// The one piece of work in flight.
    pub task: Option<(TaskId, Doing)>,
    /// Changes whenever an answer about the namespace that is still on its way no longer counts.
    pub generation: u64,
    /// ADDs that wait for the enrolment.
    pub adds: Vec<Add>,
    /// Requests that are answered once nothing is left to undo and what is to be remembered is on disk.
    pub ending: Vec<Ending>,
    /// CHECKs.
    pub checks: Vec<ReplyTo>,
    pub published: Option<Redirection>,
    /// It is provably not in the mesh.
    pub outside: bool,
    /// In the host's probe sets.
    pub entered: Entered,
    /// The namespace is to be looked for.
    pub sought: bool,
    /// It is being looked for.
    pub searching: bool,
    /// Not before this time.
    pub seek_at: Option<Instant>,
    /// Searches without result.
    pub searches: u32,
    pub retry: Retry,
    /// What is wrong, as last logged.
    pub trouble: Option<String>,
    /// People who look at the pod are to be told of the trouble.
    pub event_due: bool,
    /// Its processes are in another namespace, which is not provably the pod's.
    pub strayed: bool,
    pub preceded: PrecedingRules,
    pub verify_at: Option<Instant>,
    /// When something is due without an event.
    pub wake: Option<Instant>,
    /// How it stands, for people, and since when.
    pub stands: Option<(PodState, Instant)>,
}

/// A request whose answer is known, and waits.
pub(super) struct Ending {
    pub reply: ReplyTo,
    pub answer: Answer,
    /// It waits no longer than this.
    pub until: Instant,
}

/// Where a pod's sandbox is: enough to find it again without holding it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Sandbox id; empty when unknown.
    pub container_id: String,
    /// Path of the namespace on the host; empty when unknown.
    pub path: String,
    /// The uid the runtime uses, where it differs.
    pub alias: Option<String>,
    /// Addresses that were ever said to be the sandbox's, or were found inside.
    pub ips: Vec<IpAddr>,
    /// Those the plugin gave for this very sandbox.
    pub told: Vec<IpAddr>,
    /// The node-wide settings of its rules.
    pub settings: NodeSettings,
}

/// Rules that are, or may be, in a namespace.
pub(super) struct Rules {
    pub netns: Arc<Netns>,
    /// What they were last known to be; `None` while that is not certain.
    pub settings: Option<Settings>,
}

/// What is being done in the pod's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Doing {
    Applying(Settings),
    Checking,
    /// Finding out what its rules are made of.
    Recognising,
    Removing,
    /// Remembering or forgetting.
    Noting,
    /// Its addresses into the probe sets.
    Entering(Vec<IpAddr>),
    /// And out of them.
    Leaving,
    /// Of the namespace of an older sandbox.
    Sweeping(NetnsId),
}

/// What a pod should be, if it should be in the mesh.
pub(super) struct Goal {
    pub settings: Settings,
    pub info: WorkloadInfo,
}

/// Exponential back-off.
#[derive(Debug, Default)]
pub(super) struct Retry {
    pub failures: u32,
    pub at: Option<Instant>,
}

impl Retry {
    const FIRST: Duration = Duration::from_millis(5);
    const LAST: Duration = Duration::from_secs(5);

    /// Notes a failure: the next try is due 5 ms later, then twice that, up to 5 s, each cut by up to a half.
    pub(super) fn failed(&mut self, now: Instant, jitter: f64) {
        let delay = Self::FIRST.saturating_mul(1 << self.failures.min(16)).min(Self::LAST);
        self.failures = self.failures.saturating_add(1);
        self.at = Some(now + delay.mul_f64(1.0 - jitter.clamp(0.0, 1.0) / 2.0));
    }

    pub(super) fn reset(&mut self) {
        *self = Retry::default();
    }

    /// The time to wait for, if it has not come.
    pub(super) fn blocked(&self, now: Instant) -> Option<Instant> {
        self.at.filter(|at| *at > now)
    }
}

impl Entry {
    /// Asks to be looked at again at this time, or before.
    pub(super) fn wake_at(&mut self, at: Instant) {
        self.wake = Some(self.wake.map_or(at, |earlier| earlier.min(at)));
    }

    /// Something is running or waiting that a stop should not cut off.
    pub(super) fn is_busy(&self) -> bool {
        self.task.is_some() || !self.adds.is_empty() || !self.ending.is_empty()
    }

    /// Nothing is left of it.
    pub(super) fn is_over(&self) -> bool {
        let known = self.object.is_some() || self.remembered.is_some() || self.published.is_some();
        let held = self.netns.is_some() || self.rules.is_some() || !self.leftovers.is_empty();
        !(known || held || self.is_busy() || !self.checks.is_empty())
    }

    /// Whether it has, or may have something in, this namespace.
    pub(super) fn holds(&self, id: NetnsId) -> bool {
        let rules = self.rules.iter().map(|rules| &rules.netns);
        self.netns.iter().chain(rules).chain(&self.leftovers).any(|netns| netns.id() == id)
    }

    /// What should be on disk about its sandbox; `None` when nothing could be made of it.
    pub(super) fn record(&self, enrolled: bool) -> Option<Record> {
        let place = self.place.as_ref()?;
        Some(Record {
            uid: self.uid.clone(),
            alias: place.alias.clone(),
            namespace: self.name.namespace.clone(),
            name: self.name.name.clone(),
            container_id: place.container_id.clone(),
            path: place.path.clone(),
            ips: self.ips(),
            settings: place.settings,
            enrolled,
        })
    }

    /// Addresses that prove a namespace to be its own.
    pub(super) fn ips(&self) -> Vec<IpAddr> {
        let object = self.object.iter().flat_map(|object| &object.ips);
        let mut ips: Vec<IpAddr> = object.chain(self.place.iter().flat_map(|place| &place.ips)).copied().collect();
        ips.sort_unstable();
        ips.dedup();
        ips
    }

    /// Lets go of the sandbox: it is to be undone, and a new one will come with a new ADD.
    pub(super) fn drop_sandbox(&mut self, now: Instant) {
        self.netns = None;
        self.place = None;
        self.torn_down = true;
        self.sought = false;
        self.seek_at = Some(now + GRACE);
        self.entered.outdated();
        self.generation += 1;
        self.retry.reset();
    }

    /// What a search needs to know.
    pub(super) fn sought(&self) -> Sought {
        let place = self.place.as_ref();
        let runtime_uid = self.object.as_ref().map(|object| object.runtime_uid()).filter(|alias| *alias != self.uid);
        Sought {
            uid: self.uid.clone(),
            alias: place.and_then(|place| place.alias.clone()).or_else(|| runtime_uid.map(str::to_owned)),
            ips: self.ips(),
            own_users: self.object.as_ref().is_some_and(|object| !object.host_users),
            path: place.map(|place| place.path.clone()).filter(|path| !path.is_empty()),
        }
    }

    /// Says what is wrong and stays so, also to people who look at the pod.
    pub(super) fn pod_event(&mut self, trouble: String) {
        self.event_due |= self.trouble.as_ref() != Some(&trouble);
        self.report(trouble);
    }

    /// Says what is wrong: loudly once, quietly as often as it repeats.
    pub(super) fn report(&mut self, trouble: String) {
        if self.trouble.as_ref() == Some(&trouble) {
            log::debug!(uid = self.uid.as_str(), pod:% = self.name; "{trouble}");
        } else {
            log::warn!(uid = self.uid.as_str(), pod:% = self.name; "{trouble}");
            self.trouble = Some(trouble);
        }
    }
}

/// Of a pod, on a node with these.
pub(super) fn settings_of(object: &Object, node: &NodeSettings) -> Settings {
    overrides::parse(&object.annotations).over(node.usual())
}

impl State {
    /// The entry of a uid, made if there is none.
    pub(super) fn entry(&mut self, uid: &str, name: &PodName) -> &mut Entry {
        self.pods.entry(uid.to_owned()).or_insert_with(|| Entry {
            uid: uid.to_owned(),
            name: name.clone(),
            ..Entry::default()
        })
    }

    pub(super) fn pod_upserted(&mut self, object: Object) {
        let known = self.pods.get(&object.uid).is_some_and(|entry| entry.object.is_some());
        metrics::RECONCILE_EVENTS.inc([if known { "update" } else { "add" }]);
        let (seek_at, cluster) = (self.now + GRACE, self.config.cluster);
        let uid = object.uid.clone();
        self.names.insert(object.name.clone(), uid.clone());
        let entry = self.entry(&uid, &object.name);
        let old = entry.object.as_ref();
        if old.is_none() {
            entry.seek_at = Some(seek_at);
            if cluster {
                // From here on we know better: what the watch tells may be older than what was written.
                entry.published = Redirection::of(&object.annotations);
                // Without a record of ours: an agent of another make, or a run directory that was emptied.
                entry.recalled |= entry.published.is_some() && entry.netns.is_none();
                entry.entered.maybe |= entry.recalled;
            }
        }
        if old.is_none_or(|old| old.annotations != object.annotations) {
            for warning in overrides::parse(&object.annotations).warnings {
                log::warn!(uid = uid.as_str(), pod:% = object.name; "{warning}");
            }
        }
        if old.is_some_and(|old| old.ips != object.ips) {
            entry.searches = 0;
        }
        let name = object.name.clone();
        entry.name = name.clone();
        entry.object = Some(object);
        self.examine(&uid);
        self.advance(&uid);
        self.told_of(&name);
    }

    pub(super) fn pod_gone(&mut self, uid: &str) {
        metrics::RECONCILE_EVENTS.inc(["delete"]);
        let Some(entry) = self.pods.get_mut(uid) else { return };
        entry.object = None;
        if self.names.get(&entry.name).is_some_and(|current| current == uid) {
            self.names.remove(&entry.name);
        }
        self.examine(uid);
        self.advance(uid);
    }

    pub(super) fn namespace_changed(&mut self, name: &str, labels: Option<StringMap>) {
        // A cluster has thousands, with labels for everybody but us.
        let labels = labels.map(|labels| self.config.policy.selectors.relevant(labels));
        if self.namespaces.get(name) == labels.as_ref() {
            return;
        }
        match labels {
            Some(labels) => self.namespaces.insert(name.to_owned(), labels),
            None => self.namespaces.remove(name),
        };
        let inside = self.pods.iter().filter(|(_, entry)| entry.name.namespace == name);
        let uids: Vec<String> = inside.map(|(uid, _)| uid.clone()).collect();
        for uid in uids {
            self.advance(&uid);
        }
    }

    /// The decision about a pod of the source.
    pub(super) fn decide(&self, object: &Object) -> Decision {
        let none = StringMap::new();
        decide(&self.config.policy, object, self.namespaces.get(&object.name.namespace).unwrap_or(&none))
    }

    /// What the pod should be in the mesh; `None` when it should not be there.
    pub(super) fn goal(&self, entry: &Entry) -> Option<Goal> {
        let object = entry.object.as_ref()?;
        if self.decide(object).action != Decided::Ambient {
            return None;
        }
        let node = entry.place.as_ref().map_or(self.config.settings, |place| place.settings);
        let settings = settings_of(object, &node);
        let info = WorkloadInfo {
            name: object.name.name.clone(),
            namespace: object.name.namespace.clone(),
            service_account: object.service_account.clone(),
        };
        Some(Goal { settings, info })
    }

    /// Whether another pod has, or may have something in, this namespace.
    pub(super) fn holder(&self, id: NetnsId) -> Option<String> {
        self.pods.iter().find(|(_, entry)| entry.holds(id)).map(|(uid, _)| uid.clone())
    }

    /// Compares what should be with what is, and takes the next step.
    pub(super) fn advance(&mut self, uid: &str) {
        if !self.synced {
            // What the source has not told yet is not gone.
            return;
        }
        let Some(mut entry) = self.pods.remove(uid) else { return };
        entry.wake = None;
        self.expire(&mut entry);
        if entry.task.is_none() {
            match self.goal(&entry) {
                Some(goal) if entry.netns.is_some() => self.enrol(&mut entry, &goal),
                goal => {
                    let out = goal.is_none() || entry.torn_down;
                    if entry.recalled || !out || self.withdraw(&mut entry) {
                        self.seek(&mut entry, goal.is_some());
                    }
                }
            }
        }
        if std::mem::take(&mut entry.event_due)
            && let (true, Some(message)) = (self.config.cluster && entry.object.is_some(), entry.trouble.clone())
        {
            self.out.push(Action::Announce(PodEvent {
                uid: uid.to_owned(),
                pod: entry.name.clone(),
                warning: true,
                reason: "RedirectionFailed",
                component: "cni-agent",
                message,
            }));
        }
        self.note_outside(&mut entry);
        self.note_state(&mut entry);
        if !entry.is_over() {
            self.pods.insert(uid.to_owned(), entry);
        }
    }
}
