//! What can happen to the agent, and what it can do about it: the vocabulary between the pure state and the machine.

use super::publish::event_recorder::PodEvent;
use super::records::{NodeSettings, Record};
use super::redirection::Redirection;
use crate::cni::event::{AddAnswer, AddEvent, AttachmentEvent, Failure, GcEvent};
use crate::cni::outside::Outside;
use crate::dataplane::inpod::Differences;
use crate::dataplane::kubelet::Probers;
use crate::error::Result;
use crate::pod::redirection::Redirection as SidecarRedirection;
use crate::pod::types::{Namespace, Pod, PodName};
use crate::repair::order::{End, Order};
use crate::rules::inpod::Settings;
use crate::rules::preceding::Preceding;
use crate::sys::netns::{Netns, NetnsId, NetnsIdentity};
use crate::zds::server::{self as zds, ConnectionId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Everything that can happen.
#[derive(Debug)]
pub enum Event {
    /// The pod source has news.
    Source(Notice),
    /// Somebody asks over the plugin socket.
    Request(Request, ReplyTo),
    /// Whoever sent this request has closed the connection.
    RequesterGone(u64),
    /// A worker finished.
    Done(TaskId, Outcome),
    /// What came of a try to publish this of the pod of this uid on its object: it stands there, or why not.
    Published(String, Option<Redirection>, std::result::Result<(), String>),
    /// What came of an [`Action::Remedy`] for the pod of this uid.
    Remedied(String, End),
    /// A ztunnel came, answered or went.
    Ztunnel(zds::Notice),
    /// A part of the agent outside the state is not (`Some`: why) or again (`None`) as it should be. Named by its
    /// first field; shown by `/readyz`.
    Condition(&'static str, Option<String>),
    /// Time has passed; nothing else happened.
    Tick,
    /// Finish what is running, take nothing new, leave.
    Stop(Stop),
}

/// Why the agent leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// It was told to, by this signal.
    Signal(&'static str),
    /// Another agent serves this socket now.
    TakenOver(std::path::PathBuf),
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Stop::Signal(name) => f.write_str(name),
            Stop::TakenOver(socket) => write!(f, "another agent serves {} now", socket.display()),
        }
    }
}

/// News from the pod source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A pod is new or different.
    Pod(Box<Pod>),
    /// The pod of this uid is gone.
    PodGone(String),
    /// A namespace is new or different.
    Namespace(Namespace),
    /// The namespace of this name is gone.
    NamespaceGone(String),
    /// Everything there was at the start has been told.
    Synced,
    /// These, and no others, cannot be read now. One that can be read again, or is gone, is told of before.
    Unread(Vec<Unread>),
    /// This pod was looked up as asked; if there is one it has been told before this. With what went wrong, if the
    /// question could not be answered.
    LookedUp(PodName, Option<String>),
}

/// What the pod source has and cannot read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// What it is about.
    pub subject: Subject,
    /// Which it is, and why it cannot be read.
    pub text: String,
}

/// What is not known of the node's pods because something cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A file, which may be about anything.
    File,
    /// The pod of this uid.
    Pod(String),
    /// The labels of the namespace of this name.
    Namespace(String),
}

/// A request on the plugin socket.
#[derive(Debug)]
pub enum Request {
    /// A pod's sandbox is being made.
    Add(AddEvent, Opened),
    /// A pod's sandbox is being torn down.
    Del(AttachmentEvent, Opened),
    /// Is the pod's network as it should be?
    Check(AttachmentEvent, Opened),
    /// These attachments are valid, others are not.
    Gc(GcEvent),
    /// Ready to serve?
    Ready,
    /// What is the state of everything?
    Status,
    /// Why is this pod in the mesh or not, and where does it stand?
    Explain(PodName),
}

/// The namespace that came with a request, opened by whoever received it, or why it could not be opened.
pub type Opened = Result<Arc<Netns>>;

/// Where an answer goes.
#[derive(Debug)]
pub struct ReplyTo {
    /// Number of the request.
    pub id: u64,
    /// The waiting connection; it may be gone.
    pub channel: Sender<Answer>,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Done, nothing to say.
    Done,
    /// What was decided and done.
    Decided(AddAnswer),
    /// It failed.
    Failed(Failure),
    /// Not now, for these reasons: starting or stopping.
    NotReady(Vec<String>),
    /// A JSON document.
    Json(String),
}

/// Everything that can be done.
#[derive(Debug)]
pub enum Action {
    /// A worker does this and reports with [`Event::Done`].
    Work(TaskId, Work),
    /// The source looks a pod up and reports with [`Notice::LookedUp`].
    LookUp(PodName),
    /// The pod's redirection annotation becomes this.
    Publish(String, PodName, Option<Redirection>),
    /// These pods are outside the mesh, and no others: plugins are told in case they find us gone.
    Outside(Outside),
    /// People are told what is wrong with a pod.
    Announce(PodEvent),
    /// The API server is asked to change a broken pod; reported with [`Event::Remedied`].
    Remedy(Order),
    /// A connection gets its snapshot.
    Snapshot(ConnectionId, Vec<zds::Request>),
    /// A connection gets a request.
    Send(ConnectionId, zds::Request),
    /// A request is answered.
    Reply(ReplyTo, Answer),
    /// All that was running has ended: leave.
    Exit,
}

/// Numbers a piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

/// Work for a worker: it may take time and may fail.
#[derive(Debug)]
pub enum Work {
    /// Bring the namespace to the settings; remember the sandbox on disk before anything is changed in it.
    Apply(Arc<Netns>, Settings, Option<Record>),
    /// Compare the namespace with the settings; remember the sandbox if an earlier attempt to do so failed.
    Check(Arc<Netns>, Settings, Vec<IpAddr>, Option<Record>),
    /// Which of these settings are the rules in the namespace made of?
    Recognise(Arc<Netns>, Vec<(NodeSettings, Settings)>),
    /// Redirect the namespace to its sidecar. The addresses are the pod's, if they are known.
    Redirect(Arc<Netns>, Box<SidecarRedirection>, Vec<IpAddr>),
    /// Compare the namespace with that redirection. The addresses are the pod's, if they are known.
    Inspect(Arc<Netns>, Box<SidecarRedirection>, Vec<IpAddr>),
    /// Take everything of ours out of the namespace.
    Remove(Arc<Netns>),
    /// Remember this of the pod with this uid, with the identity of the namespace if one is given, or forget it.
    Note(String, Option<Record>, Option<Arc<Netns>>),
    /// Find the namespaces of these pods, in remembered places and in one walk over `/proc`, leaving out those that
    /// belong to others.
    Walk(Vec<Sought>, BTreeSet<NetnsId>),
    /// Enter addresses of a pod into the host's probe sets, in place of those it had there.
    Enter {
        /// The pod.
        uid: String,
        /// The addresses.
        addresses: Vec<IpAddr>,
        /// Only those that are on an interface in here.
        inside: Option<Arc<Netns>>,
        /// It had none there, so that none need to be looked for.
        alone: bool,
    },
    /// Take whatever the host's probe sets have of this uid out.
    Leave(String),
    /// Bring the host's rule and sets to what they should be, and throw entries out that nobody entered.
    Host {
        /// What to keep of these; `None`: everything.
        keep: Option<Keep>,
    },
    /// Which of these pods have all their processes in another namespace than this one of theirs?
    Compare(Vec<(Sought, NetnsId)>),
    /// Do these paths still lead to these namespaces?
    Probe(Vec<NetnsPath>),
}

/// Entries of the host's probe sets that stay although nobody has entered them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Keep {
    /// Those of these pods.
    pub uids: BTreeSet<String>,
    /// Those of these addresses.
    pub addresses: BTreeSet<IpAddr>,
}

/// A pod whose namespace is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sought {
    /// Its uid.
    pub uid: String,
    /// The uid its cgroup carries if that differs.
    pub alias: Option<String>,
    /// Its addresses.
    pub ips: Vec<IpAddr>,
    /// It may have a user namespace of its own.
    pub own_users: bool,
    /// Where its namespace was seen earlier, as a path on the host.
    pub path: Option<String>,
    /// Which namespace that was.
    pub identity: Option<NetnsIdentity>,
}

/// A remembered path of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetnsPath {
    /// The pod.
    pub uid: String,
    /// The path on the host.
    pub path: String,
    /// What it led to.
    pub id: NetnsId,
}

/// What came of a piece of work.
#[derive(Debug)]
pub enum Outcome {
    /// Of [`Work::Apply`]: the rules of others that stand before ours.
    Applied(Result<Vec<Preceding>>, Remembered),
    /// Of [`Work::Check`]: what differs.
    Checked(Result<Differences>, Remembered),
    /// Of [`Work::Recognise`].
    Recognised(Result<Option<NodeSettings>>),
    /// Of [`Work::Redirect`].
    Redirected(Result<()>),
    /// Of [`Work::Inspect`]: what differs.
    Inspected(Result<Vec<String>>),
    /// Of [`Work::Remove`].
    Removed(Result<()>),
    /// Of [`Work::Note`].
    Noted(Result<Option<Record>>),
    /// Of [`Work::Enter`].
    Entered(Result<()>),
    /// Of [`Work::Leave`].
    Left(Result<()>),
    /// Of [`Work::Host`].
    Hosted(Result<HostLook>),
    /// Of [`Work::Walk`].
    Walked(Result<Walked>),
    /// Of [`Work::Compare`]: those pods, with the namespace that has one of their addresses, if one has.
    Compared(Result<BTreeMap<String, Option<Arc<Netns>>>>),
    /// Of [`Work::Probe`]: the pods whose path leads elsewhere or nowhere.
    Probed(Vec<NetnsPath>),
}

/// What a look at the host's side brought up.
#[derive(Debug, Default)]
pub struct HostLook {
    /// What was not as it should be, one clause each.
    pub differences: Vec<String>,
    /// The processes whose connections to pods count as the kubelet's probes, where native rules say which.
    pub probers: Option<Probers>,
}

/// What a search for namespaces brought up.
#[derive(Debug, Default)]
pub struct Walked {
    /// The namespaces that were found, by uid.
    pub found: BTreeMap<String, Arc<Netns>>,
    /// What was taken for a pod's and is none of its, by uid, one clause each.
    pub refused: BTreeMap<String, Vec<String>>,
    /// Those whose processes are in a namespace without any address.
    pub bypassed: BTreeSet<String>,
}

/// The record as it was written; `None` when none was asked for or it could not be written.
pub type Remembered = Option<Record>;
