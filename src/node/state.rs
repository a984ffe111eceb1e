//! The one owner of all mutable state. Pure: an event and the time go in, actions come out.
//!
//! Per pod there is what *should be* (the decision, from what the source says) and what *is* (the [`Pod`](super::pod::Pod)'s sandbox). Every event ends in `advance` for the pods it concerns, which compares the two and
//! takes the next step; the outcome of a step is an event again. There is no other path by which a pod is enrolled or
//! taken out, so a restart, a lost message or a repeated event cannot leave one half way.

mod broken;
mod enrolment;
mod hand_over;
mod hearing;
mod host;
mod identity;
mod lifecycle;
mod lookup;
mod node;
mod outcomes;
mod outside;
mod readiness;
mod reconcile;
mod repair;
mod requests;
mod search;
mod seeking;
mod sidecar;
mod source;
mod step;
mod telling;
#[cfg(test)]
mod tests;
mod verification;
pub mod view;
mod withdrawal;

use super::event::{Action, Opened, ReplyTo, TaskId, Unread};
use super::host_side::HostSide;
use super::pods::Pods;
use super::records::NodeSettings;
use super::tasks::Task;
use super::ztunnels::Ztunnels;
use crate::cni::event::{AddEvent, AttachmentEvent};
use crate::pod::decision::Policy;
use crate::pod::types::{PodName, StringMap};
use crate::repair::controller::Controller;
use crate::sys::netns::NetnsId;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

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
    /// New rules go into tables of nf_tables of our own.
    pub native_nftables: bool,
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
    /// What the source has and cannot read.
    unread: Vec<Unread>,
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

/// An ADD whose pod is being looked up.
struct Lookup {
    name: PodName,
    event: AddEvent,
    netns: Opened,
    reply: ReplyTo,
    until: Instant,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("phase", &self.node.phase).field("pods", &self.pods.len()).finish_non_exhaustive()
    }
}
