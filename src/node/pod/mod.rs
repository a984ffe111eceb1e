//! A pod of this node as one value: what the source says of it, its sandbox, who waits for it, and what is told of it.
//!
//! Each part keeps its fields to itself and changes by named transitions; what must change in several parts at once is
//! a transition of the [`Pod`]. So no order of calls can leave a pod half in one sandbox and half in another.
//!
//! - [`sandbox`]: the namespace that is held, and what is, or may be, in it; [`location`] where it is, [`preceding`]
//!   the rules of others before ours.
//! - [`life`]: what becomes of it as a whole.
//! - [`waiting`]: ADDs, CHECKs and answers that wait.
//! - [`probes`]: the host's probe sets. [`search`]: looking for the namespace. [`report`]: what people are told.

mod life;
mod listeners;
mod location;
mod preceding;
mod probes;
pub mod report;
mod sandbox;
mod search;
mod waiting;

pub(super) use listeners::Hearing;
pub(super) use location::Location;
pub(super) use preceding::Change as Precedence;
pub(super) use probes::Probes;
pub(super) use report::Report;
pub(super) use sandbox::{Held, Rules, Sandbox};
pub(super) use search::Search;
pub(super) use waiting::{ACK, Late, Waiting};

use super::event::{Sought, TaskId};
use super::records::{NodeSettings, Record};
use super::redirection::{ANNOTATION, Redirection};
use crate::pod::overrides;
use crate::pod::types::{Pod as Object, PodName};
use crate::rules::inpod::Settings;
use crate::sys::backoff::Backoff;
use crate::sys::netns::NetnsId;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A pod that is new to the watch, or whose sandbox was torn down, is left to the plugin for this long.
const GRACE: Duration = Duration::from_secs(2);

/// One pod.
#[derive(Debug)]
pub(super) struct Pod {
    uid: String,
    name: PodName,
    /// What the source says; `None` when it knows no such pod (any more, or not yet).
    object: Option<Object>,
    /// Addresses in the object that are of an earlier sandbox, until the source tells others.
    outdated: Vec<IpAddr>,
    sandbox: Sandbox,
    /// The one piece of work in flight.
    job: Option<(TaskId, Job)>,
    waiting: Waiting,
    probes: Probes,
    search: Search,
    report: Report,
    retry: Backoff,
    /// How often in a row rules could not be taken out.
    stuck: u32,
    /// What is on disk about it.
    record: Option<Record>,
    /// What is to be published of it.
    published: Option<Redirection>,
    /// What stands on its object, as far as the source has told or accepted it.
    annotated: Option<Redirection>,
    /// How often in a row it could not be written there, and why.
    refused: Option<(u32, String)>,
    /// It is provably not in the mesh.
    outside: bool,
    /// When something is due without an event.
    wake: Option<Instant>,
}

/// What is being done in a pod's namespace, or about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Job {
    /// Rules of these settings are put into this namespace.
    Applying(NetnsId, Settings),
    /// The rules in this namespace are looked at.
    Checking(NetnsId),
    /// What the rules in this namespace are made of is found out.
    Recognising(NetnsId),
    /// Rules are taken out of this namespace.
    Removing(NetnsId),
    /// It is written down, or forgotten.
    Recording,
    /// These addresses are entered into the probe sets.
    Entering(Vec<IpAddr>),
    /// Its addresses are taken out of them.
    Leaving,
}

/// The settings of a pod's rules on a node with these.
pub(super) fn settings_of(object: &Object, node: &NodeSettings) -> Settings {
    overrides::parse(&object.annotations).over(node.usual())
}

impl Pod {
    /// A pod of which nothing but its name is known.
    pub fn new(uid: &str, name: &PodName) -> Self {
        Pod {
            uid: uid.to_owned(),
            name: name.clone(),
            object: None,
            outdated: Vec::new(),
            sandbox: Sandbox::default(),
            job: None,
            waiting: Waiting::default(),
            probes: Probes::default(),
            search: Search::default(),
            report: Report::default(),
            retry: probes::BACKOFF,
            stuck: 0,
            record: None,
            published: None,
            annotated: None,
            refused: None,
            outside: false,
            wake: None,
        }
    }

    /// Its uid.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Its name.
    pub fn name(&self) -> &PodName {
        &self.name
    }

    /// What the source says.
    pub fn object(&self) -> Option<&Object> {
        self.object.as_ref()
    }

    /// Its sandbox.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// The namespace that is held.
    pub fn held(&self) -> Option<&Held> {
        self.sandbox.held()
    }

    /// The namespace that is held, to note what became of it.
    pub fn held_mut(&mut self) -> Option<&mut Held> {
        self.sandbox.held_mut()
    }

    /// The work in flight.
    pub fn job(&self) -> Option<&(TaskId, Job)> {
        self.job.as_ref()
    }

    /// Whether a worker is in this namespace for it.
    pub fn works_in(&self, id: NetnsId) -> bool {
        let place = self.job.as_ref().and_then(|(_, job)| match job {
            Job::Applying(id, _) | Job::Checking(id) | Job::Recognising(id) | Job::Removing(id) => Some(*id),
            Job::Recording | Job::Entering(_) | Job::Leaving => None,
        });
        place == Some(id)
    }

    /// Who waits.
    pub fn waiting(&mut self) -> &mut Waiting {
        &mut self.waiting
    }

    /// Who waits, to look at.
    pub fn waits(&self) -> &Waiting {
        &self.waiting
    }

    /// How it stands with the probe sets.
    pub fn probes(&mut self) -> &mut Probes {
        &mut self.probes
    }

    /// The addresses that are in the probe sets.
    pub fn entered(&self) -> Option<&[IpAddr]> {
        self.probes.entered()
    }

    /// How the search for it stands.
    pub fn search(&mut self) -> &mut Search {
        &mut self.search
    }

    /// What people were told.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// What is on disk about it.
    pub fn recorded(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// What stands on its object.
    pub fn annotated(&self) -> Option<Redirection> {
        self.annotated
    }

    /// How often in a row what is to be published could not be written, and why.
    pub fn refused(&self) -> Option<(u32, &str)> {
        self.refused.as_ref().map(|(times, why)| (*times, why.as_str()))
    }

    /// This was written on its object.
    pub fn accepted(&mut self, redirection: Option<Redirection>) {
        self.annotated = redirection;
        self.refused = None;
        self.report.tell_no_more(report::NOT_PUBLISHED);
    }

    /// What is to be published could not be written, for this reason; people are told at this time if it still cannot.
    pub fn not_accepted(&mut self, why: String, at: Instant) {
        let times = self.refused.take().map_or(0, |(times, _)| times);
        self.report.tell(report::NOT_PUBLISHED, format!("annotation {ANNOTATION} cannot be written: {why}"), at);
        self.refused = Some((times.saturating_add(1), why));
    }

    /// What is to be published.
    pub fn published(&self) -> Option<Redirection> {
        self.published
    }

    /// It is provably not in the mesh.
    pub fn is_outside(&self) -> bool {
        self.outside
    }

    /// When something is due without an event.
    pub fn wake(&self) -> Option<Instant> {
        self.wake
    }

    /// Something is running or waiting that a stop should not cut off.
    pub fn is_busy(&self) -> bool {
        self.job.is_some() || self.waiting.is_busy()
    }

    /// Nothing is left of it.
    pub fn is_over(&self) -> bool {
        let known = self.object.is_some() || self.record.is_some() || self.published.is_some();
        !(known || self.sandbox.is_in_use() || self.is_busy() || self.waiting.has_checks())
    }

    /// Addresses that prove a namespace to be its own.
    pub fn ips(&self) -> Vec<IpAddr> {
        let located = self.sandbox.location().into_iter().flat_map(|location| &location.ips);
        let mut ips: Vec<IpAddr> = self.observed_ips().iter().chain(located).copied().collect();
        ips.sort_unstable();
        ips.dedup();
        ips
    }

    /// What the source says are the addresses of its sandbox; empty while it does not know them.
    pub fn observed_ips(&self) -> &[IpAddr] {
        let ips = self.object.as_ref().map_or(&[][..], |object| &object.ips);
        if self.outdated == ips { &[] } else { ips }
    }

    /// Its addresses: what the source says, once it knows; before, what the plugin said of all attachments.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let observed = self.observed_ips();
        if !observed.is_empty() {
            return observed.to_vec();
        }
        let Some(location) = self.sandbox.location() else { return Vec::new() };
        if location.told.is_empty() { location.ips.clone() } else { location.told() }
    }

    /// What should be on disk about its sandbox; `None` when nothing could be made of it.
    pub fn to_record(&self, enrolled: bool) -> Option<Record> {
        let location = self.sandbox.location()?;
        Some(Record {
            uid: self.uid.clone(),
            alias: location.alias.clone(),
            namespace: self.name.namespace.clone(),
            name: self.name.name.clone(),
            container_id: location.container_id.clone(),
            interface: location.interface.clone(),
            path: location.path.clone(),
            netns: location.netns,
            ips: self.addresses(),
            settings: location.settings,
            enrolled,
        })
    }

    /// The record of the sandbox, if it is not on disk as it is.
    pub fn unwritten(&self) -> Option<Record> {
        self.to_record(true).filter(|record| self.record.as_ref() != Some(record))
    }

    /// What a search needs to know.
    pub fn sought(&self) -> Sought {
        let location = self.sandbox.location();
        let runtime_uid = self.object.as_ref().map(|object| object.runtime_uid()).filter(|alias| *alias != self.uid);
        Sought {
            uid: self.uid.clone(),
            alias: location.and_then(|place| place.alias.clone()).or_else(|| runtime_uid.map(str::to_owned)),
            ips: self.ips(),
            own_users: self.object.as_ref().is_some_and(|object| !object.host_users),
            path: location.map(|place| place.path.clone()).filter(|path| !path.is_empty()),
            identity: location.and_then(|place| place.netns),
        }
    }

    // What is told.

    /// Says what is wrong, also to people who look at the pod if it is still so at this time.
    pub fn announce(&mut self, trouble: String, at: Instant) {
        self.report.announce(&self.uid, &self.name, trouble, at);
    }

    /// People who look at the pod are told this at this time, unless it is over by then.
    pub fn tell(&mut self, reason: &'static str, text: String, at: Instant) {
        self.report.tell(reason, text, at);
    }

    /// What people are, or were to be, told with this reason is over.
    pub fn tell_no_more(&mut self, reason: &'static str) {
        self.report.tell_no_more(reason);
    }

    /// Says what is wrong, in the log and in the status.
    pub fn warn(&mut self, trouble: String) {
        self.report.log(&self.uid, &self.name, trouble);
    }

    /// Reason and text of an Event that is due; it then counts as written.
    pub fn take_event(&mut self, now: Instant) -> Option<(&'static str, String)> {
        self.report.take_event(now)
    }

    /// Notes how it stands.
    pub fn stands(&mut self, state: report::PodState, now: Instant) {
        self.report.stands(state, now);
    }

    /// What was wrong is over, unless its processes are elsewhere or its packets pass by; returns what it was.
    pub fn trouble_over(&mut self) -> Option<String> {
        let stays = self.held().is_some_and(|held| held.has_strayed() || held.is_bypassed());
        if stays { None } else { self.report.over() }
    }

    /// Publishes this; returns whether that is news.
    pub fn publish(&mut self, redirection: Option<Redirection>) -> bool {
        std::mem::replace(&mut self.published, redirection) != redirection
    }

    /// Notes whether it is provably not in the mesh; returns whether that is news.
    pub fn set_outside(&mut self, outside: bool) -> bool {
        std::mem::replace(&mut self.outside, outside) != outside
    }

    // When it is looked at.

    /// Asks to be looked at again at this time, or before.
    pub fn wake_at(&mut self, at: Instant) {
        self.wake = Some(self.wake.map_or(at, |earlier| earlier.min(at)));
    }

    /// It is being looked at.
    pub fn woken(&mut self) {
        self.wake = None;
    }

    /// Whether work may be tried; else it asks to be looked at when that time has come.
    pub fn may_try(&mut self, now: Instant) -> bool {
        let blocked = self.retry.blocked(now);
        if let Some(at) = blocked {
            self.wake_at(at);
        }
        blocked.is_none()
    }

    /// When work that failed may be tried again, if that time has not come.
    pub fn blocked(&self, now: Instant) -> Option<Instant> {
        self.retry.blocked(now)
    }

    /// Work has failed.
    pub fn failed(&mut self, now: Instant, jitter: f64) {
        self.retry.failed(now, jitter);
    }

    /// Rules could not be taken out; returns how often in a row.
    pub fn not_cleaned(&mut self, now: Instant, jitter: f64) -> u32 {
        self.retry.failed(now, jitter);
        self.stuck += 1;
        self.stuck
    }

    /// Work has succeeded.
    pub fn succeeded(&mut self) {
        self.retry.reset();
    }

    /// It is to be in the mesh. One that was outside until now has had its ADD: nothing more comes from the plugin.
    pub fn is_wanted(&mut self) {
        if self.outside {
            self.search.hurry();
        }
    }

    // What is done.

    /// A piece of work begins.
    pub fn begin(&mut self, task: TaskId, job: Job) {
        self.job = Some((task, job));
    }

    /// The piece of work is over.
    pub fn finish(&mut self) -> Option<Job> {
        self.job.take().map(|(_, job)| job)
    }

    /// This is on disk, if it was written with other work.
    pub fn written(&mut self, record: Option<Record>) {
        if let Some(record) = record {
            self.sandbox.remember(&record);
            self.record = Some(record);
        }
    }

    /// This, or nothing, is on disk.
    pub fn recorded_as(&mut self, record: Option<Record>) {
        if let Some(record) = &record {
            self.sandbox.remember(record);
        }
        self.record = record;
    }
}
