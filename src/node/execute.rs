//! The workers: they carry out what takes time, and send back what came of it.
//!
//! A few at a time, more where it is the kernel that takes its time. The state hands out at most one piece of work per
//! pod, so what waits is bounded by the number of pods and no two workers are ever in one namespace. A piece of work
//! ends when it is done in the kernel; nobody here waits for a peer, so a silent ztunnel occupies no worker.
//!
//! Each worker does one piece of work and ends, since it may go to the pod's namespace itself. Its successor is made
//! when nothing more pressing is to be done, and waits ready.

use super::Site;
use super::event::{Event, HostLook, Keep, NetnsPath, Outcome, Remembered, TaskId, Work};
use super::records::{NodeSettings, Record, Records};
use super::walk::{Places, compare, open_netns, walk};
use super::watchdog::{Heartbeat, Watchdog};
use crate::dataplane::branch_eni::Branches;
use crate::dataplane::host::Host;
use crate::dataplane::inpod::{self, Differences, InPod};
use crate::dataplane::procfs::carries_one_of;
use crate::dataplane::procfs::root::CgroupRoots;
use crate::error::{Error, Kind, Result};
use crate::logging::{News, Repeat};
use crate::pod::redirection::Redirection;
use crate::rules::inpod::Settings;
use crate::rules::program::Program;
use crate::rules::sidecar;
use crate::sys::file::HostRoot;
use crate::sys::netns::{Netns, NetnsIdentity};
use crate::sys::{clock, netlink, sync, thread};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// So many pods are worked on at the same time.
const WORKERS: usize = 4;

/// And the rules of so many are taken out, besides. That is waiting more than work: a program that has removed rules of
/// nf_tables ends when the kernel is sure that no packet is on its way through them any more, after some 20 ms.
const REMOVERS: usize = 16;

/// No piece of work takes longer: the programs have deadlines of 10 s each.
const STUCK: Duration = Duration::from_secs(90);

/// Between lines about a trouble that lasts.
const REMIND: Duration = Duration::from_secs(60);

/// What the workers need.
#[derive(Debug)]
pub struct Context {
    /// For the firewall programs.
    pub inpod: inpod::Options,
    /// The host's namespace.
    pub host: Netns,
    /// Where the host's files are.
    pub host_root: HostRoot,
    /// Where the kubelet puts pods.
    pub cgroup_roots: CgroupRoots,
    /// Records of sandboxes.
    pub records: Records,
    /// The host's rule and probe sets, where they are ours to keep.
    pub host_side: Option<Host>,
    /// The rules for pods of AWS with interfaces of their own, where they are ours to make.
    pub branches: Option<Branches>,
    /// Made when first needed: a node that lacks a program must be able to get it while we run.
    programmer: Mutex<Option<Arc<InPod>>>,
    /// Trouble with the records.
    trouble: Mutex<Repeat>,
}

impl Context {
    /// Gathers it for a node.
    pub fn at(site: &Site, records: Records) -> Result<Self> {
        let force_variant = site.force_backend.as_deref().map(str::parse).transpose();
        let inpod = inpod::Options {
            force_variant: force_variant.map_err(|e: Error| e.context("FORCE_IPTABLES_BINARY"))?,
            lock_dir: site.run_dir.xtables_locks(),
            program_dir: None,
            native_nftables: site.native_nftables,
        };
        let host = host_netns(site)?;
        let host_side = site.ambient.then(|| host.try_clone()).transpose()?;
        let host_side =
            host_side.map(|netns| Host::new(netns, site.host_rules.clone(), site.ipv6, site.native_nftables));
        let host_side = host_side.map(|host| host.with_processes(site.host_root.clone()));
        let branches = (site.ambient && site.aws_branch_eni).then(|| host.try_clone()).transpose()?;
        let branches = branches.map(|netns| Branches::recall(netns, &site.run_dir));
        Ok(Context {
            inpod,
            host,
            host_root: site.host_root.clone(),
            cgroup_roots: site.cgroup_roots.clone(),
            records,
            host_side,
            branches,
            programmer: Mutex::new(None),
            trouble: Mutex::new(Repeat::new(REMIND)),
        })
    }

    /// Does beforehand what the first pod would have to wait for: finds the backend, and how the rules of these
    /// settings look in this kernel.
    pub fn warm_up(&self, settings: &Settings) -> Result<()> {
        self.programmer()?.check(&Netns::scratch()?, settings).map(drop)
    }

    /// The programmer of pod namespaces; the firewall backend is found on the first call that succeeds.
    pub fn programmer(&self) -> Result<Arc<InPod>> {
        let mut programmer = sync::lock(&self.programmer);
        if let Some(known) = programmer.as_ref() {
            return Ok(Arc::clone(known));
        }
        let found = Arc::new(InPod::detect(self.inpod.clone(), &self.host)?);
        *programmer = Some(Arc::clone(&found));
        Ok(found)
    }
}

/// Without ambient pods nothing of the host is touched, and a container may have no way to it: then our own stands for
/// it, and the plugin, which is on the host, refuses the host's namespace as a pod's.
fn host_netns(site: &Site) -> Result<Netns> {
    if !site.switch_to_host_ns {
        return Netns::own();
    }
    let path = site.host_root.join("/proc/1/ns/net");
    match Netns::open(&path) {
        Err(e) if e.kind() == Kind::NotFound && !site.ambient => {
            log::info!("{} is not mounted; sidecar pods do not need it", path.display());
            Netns::own()
        }
        netns => netns.map_err(|e| e.context("the host's network namespace (ALLOW_SWITCH_TO_HOST_NS)")),
    }
}

/// The workers, and what waits for one.
#[derive(Debug)]
pub struct Workers {
    context: Arc<Context>,
    inbox: Sender<Event>,
    removers: Crew,
    others: Crew,
    trouble: Repeat,
}

/// Those for one kind of work.
#[derive(Debug)]
struct Crew {
    places: Vec<Place>,
    waiting: VecDeque<(TaskId, Work)>,
}

/// What one worker after the other takes.
#[derive(Debug)]
struct Place {
    name: String,
    heartbeat: Arc<Heartbeat>,
    worker: Worker,
}

#[derive(Debug)]
enum Worker {
    /// Waits for work. Ends without any when this is dropped.
    Ready(Sender<(TaskId, Work)>),
    Busy(TaskId),
    /// Has ended.
    Gone,
}

impl Workers {
    /// Starts them; outcomes go to `inbox`.
    pub fn start(context: &Arc<Context>, watchdog: &Watchdog, inbox: &Sender<Event>) -> Result<Self> {
        let mut workers = Workers {
            context: Arc::clone(context),
            inbox: inbox.clone(),
            removers: Crew::new("remover", REMOVERS, watchdog),
            others: Crew::new("worker", WORKERS, watchdog),
            trouble: Repeat::new(REMIND),
        };
        workers.fill()?;
        Ok(workers)
    }

    /// Hands work out, or keeps it until a worker is ready; never blocks.
    pub fn push(&mut self, id: TaskId, work: Work) {
        let crew = if matches!(work, Work::Remove(_)) { &mut self.removers } else { &mut self.others };
        crew.waiting.push_back((id, work));
        self.hand_out();
    }

    /// A worker has ended with its work.
    pub fn ended(&mut self, id: TaskId) {
        for place in self.places() {
            if matches!(place.worker, Worker::Busy(task) if task == id) {
                place.worker = Worker::Gone;
            }
        }
    }

    /// Makes successors of those that have ended. To be called now and then: there may be no thread to be had.
    pub fn renew(&mut self) {
        let filled = self.fill();
        match self.trouble.note(&filled, clock::now()) {
            News::Failing(e, times) => log::error!(times = times; "work on pods waits for a thread; trying again: {e}"),
            News::Over(past) => log::warn!(tries = past.times; "there are threads for work on pods again"),
            News::Nothing => {}
        }
        self.hand_out();
    }

    /// Of those first for which pods wait.
    fn places(&mut self) -> impl Iterator<Item = &mut Place> {
        self.others.places.iter_mut().chain(&mut self.removers.places)
    }

    fn hand_out(&mut self) {
        self.others.hand_out();
        self.removers.hand_out();
    }

    fn fill(&mut self) -> Result<()> {
        let (context, inbox) = (Arc::clone(&self.context), self.inbox.clone());
        for place in self.places().filter(|place| matches!(place.worker, Worker::Gone)) {
            let (sender, work) = channel();
            let (context, inbox, heartbeat) = (Arc::clone(&context), inbox.clone(), Arc::clone(&place.heartbeat));
            thread::spawn_for_one(&place.name, move || {
                let Ok((id, work)) = work.recv() else { return };
                heartbeat.begin();
                let outcome = perform(&context, work);
                heartbeat.end();
                // Nobody listens any more when the agent ends.
                let _ = inbox.send(Event::Done(id, outcome));
            })?;
            place.worker = Worker::Ready(sender);
        }
        Ok(())
    }
}

impl Crew {
    fn new(name: &str, size: usize, watchdog: &Watchdog) -> Self {
        let place = |number| {
            let name = format!("{name}-{number}");
            let heartbeat = Arc::new(watchdog.watch(&name, STUCK));
            Place { name, heartbeat, worker: Worker::Gone }
        };
        Crew { places: (0..size).map(place).collect(), waiting: VecDeque::new() }
    }

    fn hand_out(&mut self) {
        for place in &mut self.places {
            let Worker::Ready(worker) = &place.worker else { continue };
            let Some((id, work)) = self.waiting.pop_front() else { return };
            // It listens until it gets something.
            let _ = worker.send((id, work));
            place.worker = Worker::Busy(id);
        }
    }
}

fn perform(context: &Context, work: Work) -> Outcome {
    match work {
        Work::Apply(netns, settings, record) => {
            let remembered = remember(context, &netns, record);
            let preceding = context.programmer().and_then(|programmer| programmer.bring(&netns, &settings));
            Outcome::Applied(preceding, remembered)
        }
        Work::Check(netns, settings, ips, record) => {
            let remembered = remember(context, &netns, record);
            Outcome::Checked(check(context, &netns, &settings, &ips), remembered)
        }
        Work::Recognise(netns, candidates) => Outcome::Recognised(recognise(context, &netns, candidates)),
        Work::Redirect(netns, wanted, ips) => Outcome::Redirected(redirect(context, &netns, &wanted, ips)),
        Work::Inspect(netns, wanted, ips) => Outcome::Inspected(inspect(context, &netns, &wanted, ips)),
        Work::Remove(netns) => Outcome::Removed(context.programmer().and_then(|programmer| programmer.remove(&netns))),
        Work::Note(uid, mut record, netns) => {
            if let (Some(record), Some(netns)) = (&mut record, netns) {
                record.netns = identity(&netns);
            }
            Outcome::Noted(note(context, &uid, record))
        }
        Work::Enter { uid, addresses, inside, alone } => {
            Outcome::Entered(enter(context, &uid, addresses, inside.as_deref(), alone))
        }
        Work::Leave(uid) => Outcome::Left(leave(context, &uid)),
        Work::Host { keep } => Outcome::Hosted(look_after_host(context, keep.as_ref())),
        Work::Walk(sought, claimed) => Outcome::Walked(walk(&context.places(), &sought, claimed)),
        Work::Compare(pods) => Outcome::Compared(compare(&context.places(), &pods)),
        Work::Probe(paths) => Outcome::Probed(probe(context, paths)),
    }
}

/// Whether the rules are right, and see the packets of the pod with these addresses.
fn check(context: &Context, netns: &Netns, settings: &Settings, ips: &[IpAddr]) -> Result<Differences> {
    let mut differences = context.programmer()?.compare(netns, settings)?;
    differences.bypassed = !ips.is_empty() && !carries_one_of(netns, ips)?;
    Ok(differences)
}

fn redirect(context: &Context, netns: &Netns, wanted: &Redirection, ips: Vec<IpAddr>) -> Result<()> {
    let programmer = context.programmer()?;
    programmer.apply(netns, sidecar_program(&programmer, netns, wanted, ips)?).map(drop)
}

fn inspect(context: &Context, netns: &Netns, wanted: &Redirection, ips: Vec<IpAddr>) -> Result<Vec<String>> {
    let programmer = context.programmer()?;
    programmer.check(netns, sidecar_program(&programmer, netns, wanted, ips)?)
}

fn sidecar_program(programmer: &InPod, netns: &Netns, wanted: &Redirection, mut ips: Vec<IpAddr>) -> Result<Program> {
    if ips.is_empty() {
        ips = pod_addresses(netns)?;
    }
    Ok(sidecar::program(&wanted.settings, wanted.ipv6(&ips, programmer.is_native())))
}

/// The settings that the namespace's rules are exactly made of.
fn recognise(
    context: &Context,
    netns: &Netns,
    candidates: Vec<(NodeSettings, Settings)>,
) -> Result<Option<NodeSettings>> {
    let programmer = context.programmer()?;
    for (node, settings) in candidates {
        if programmer.compare(netns, &settings)?.is_empty() {
            return Ok(Some(node));
        }
    }
    Ok(None)
}

/// Writes the record. A pod must be able to start although the disk is full: then it is written later.
fn remember(context: &Context, netns: &Netns, record: Option<Record>) -> Remembered {
    let mut record = record?;
    record.netns = identity(netns);
    if record.ips.is_empty() {
        // Without an address nothing could prove later that a namespace is this pod's.
        record.ips = pod_addresses(netns).unwrap_or_default();
    }
    let uid = record.uid.clone();
    note(context, &uid, Some(record)).ok().flatten()
}

/// What a namespace is known by later. Without, its pod is found by its processes only.
fn identity(netns: &Netns) -> Option<NetnsIdentity> {
    netns.identity().inspect_err(|e| log::debug!(netns = netns.id().ino; "its identity is not known: {e}")).ok()
}

/// Remembers or forgets; a failure is said once while it lasts.
fn note(context: &Context, uid: &str, record: Option<Record>) -> Result<Option<Record>> {
    let done = match &record {
        Some(record) => context.records.remember(record),
        None => context.records.forget(uid),
    };
    let now = clock::now();
    let mut trouble = sync::lock(&context.trouble);
    match &done {
        Ok(()) => {
            if let Some(past) = trouble.worked(now) {
                log::warn!(tries = past.times; "sandboxes can be remembered again");
            }
        }
        Err(e) => {
            if let Some(times) = trouble.failed(&format!("{:?}", e.kind()), now) {
                log::error!(uid = uid, times = times;
                    "sandboxes cannot be remembered; after a restart they would be looked for in /proc only: {e}");
            }
        }
    }
    done.map(|()| record)
}

/// Addresses in a namespace that may identify it.
fn pod_addresses(netns: &Netns) -> Result<Vec<IpAddr>> {
    let mut addresses = netns.enter(netlink::addresses)??;
    addresses.retain(|address| match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    });
    Ok(addresses)
}

/// The entries of a pod in the host's probe sets.
fn entries(host: &Host, uid: &str) -> Result<Vec<IpAddr>> {
    let all = host.in_kernel()?.into_iter();
    Ok(all.filter(|(_, owner)| owner == uid).map(|(address, _)| address).collect())
}

fn enter(context: &Context, uid: &str, mut addresses: Vec<IpAddr>, inside: Option<&Netns>, alone: bool) -> Result<()> {
    let Some(host) = &context.host_side else { return Ok(()) };
    if let Some(netns) = inside {
        let inside = netns.enter(netlink::addresses)??;
        addresses.retain(|address| inside.contains(&address.to_canonical()));
    }
    host.add(uid, &addresses)?;
    if let Some(branches) = &context.branches {
        branches.enter(uid, &addresses).map_err(|e| e.context("the rules for the probes of a branch-ENI pod"))?;
    }
    if alone {
        return Ok(());
    }
    let mut old = entries(host, uid)?;
    old.retain(|address| !addresses.contains(address));
    host.remove(uid, &old)
}

fn leave(context: &Context, uid: &str) -> Result<()> {
    let Some(host) = &context.host_side else { return Ok(()) };
    let routed = context.branches.as_ref().map_or(Ok(()), |branches| branches.leave(uid));
    host.remove(uid, &entries(host, uid)?).and(routed)
}

fn look_after_host(context: &Context, keep: Option<&Keep>) -> Result<HostLook> {
    let Some(host) = &context.host_side else { return Ok(HostLook::default()) };
    let mut differences = host.ensure(context.programmer()?.engine())?;
    if let Some(keep) = keep {
        let stays = |address: IpAddr, uid: &str| keep.uids.contains(uid) || keep.addresses.contains(&address);
        differences.extend(host.prune(stays)?);
    }
    if let Some(branches) = &context.branches {
        let known = keep.map(|_| host.in_kernel()).transpose()?.map(|all| all.into_values().collect());
        differences.extend(branches.ensure(known.as_ref())?);
    }
    Ok(HostLook { differences, probers: host.probers() })
}

impl Context {
    /// Where pods' namespaces are looked for.
    pub fn places(&self) -> Places<'_> {
        Places { host_root: &self.host_root, cgroup_roots: &self.cgroup_roots, host: self.host.id() }
    }
}

/// The paths that do not lead to their namespace any more.
fn probe(context: &Context, paths: Vec<NetnsPath>) -> Vec<NetnsPath> {
    let leads_there = |path: &NetnsPath| match open_netns(&context.host_root, &path.path) {
        Ok(netns) => netns.id() == path.id,
        // Only what is certainly gone counts: the lack of a descriptor does not end an enrolment.
        Err(e) => !matches!(e.kind(), Kind::NotFound | Kind::Invalid),
    };
    paths.into_iter().filter(|path| !leads_there(path)).collect()
}
