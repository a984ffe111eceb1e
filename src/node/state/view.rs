//! What `GET /status` and `GET /explain` show. Their JSON is for scripts, too: keys may be added, those that are there
//! keep their meaning.

use super::State;
use super::pods::{Doing, Entry};
use super::ztunnels::Standing;
use crate::cni::event::{Failure, code};
use crate::node::event::{ANNOTATION, Answer, Redirection};
use crate::pod::decision::Step;
use crate::pod::explanation::{Explanation, explain};
use crate::pod::types::{PodName, StringMap};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The answer to `GET /status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the agent.
    pub version: String,
    /// Ambient mode is on: pods need a ztunnel.
    pub ambient: bool,
    /// Where pods come from, in words.
    pub source: String,
    /// Whether the agent is ready.
    pub ready: bool,
    /// Why it is not.
    pub reasons: Vec<String>,
    /// Files of the source that cannot be read, and why.
    #[serde(default)]
    pub unread: Vec<String>,
    /// In words, that there is no ztunnel where one is needed.
    #[serde(default)]
    pub no_ztunnel: Option<String>,
    /// Connected ztunnels, the newest last.
    pub ztunnels: Vec<ZtunnelStatus>,
    /// Pods of this node, by uid.
    pub pods: Vec<PodStatus>,
}

/// A connected ztunnel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZtunnelStatus {
    /// Number of its connection.
    pub connection: u64,
    /// It got its snapshot.
    pub snapshot: bool,
    /// Pods it acknowledged.
    pub acknowledged: usize,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodStatus {
    /// Uid.
    pub uid: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// How it stands.
    pub state: PodState,
    /// Why.
    pub reason: String,
    /// For how many seconds the state has been the same.
    pub seconds: u64,
    /// Its addresses, as far as they are known.
    pub ips: Vec<IpAddr>,
    /// It is on the host's network.
    pub host_network: bool,
    /// Inode of its network namespace while the agent holds it.
    pub netns: Option<u64>,
    /// What is published about it.
    pub redirection: Option<Redirection>,
    /// A rule of others that came after its enrolment sees its packets before ours do; the reason says which.
    #[serde(default)]
    pub preceded: bool,
}

/// The answer to `GET /explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// The decision and what follows from it; none of a pod that the source does not know any more.
    pub explanation: Option<Explanation>,
    /// How it stands; none where nobody but a file was asked.
    pub pod: Option<PodStatus>,
    /// How that is known, in the order of an enrolment; empty of a pod that nothing is done with.
    pub steps: Vec<Step>,
}

/// How a pod stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PodState {
    /// Not in the mesh, as decided.
    None,
    /// Should be in the mesh; has no sandbox that we know of.
    Waiting,
    /// Rules are being put in place.
    Applying,
    /// Rules are in place, ztunnel has not acknowledged.
    Pending,
    /// In the mesh.
    Enrolled,
    /// Being taken out.
    Removing,
    /// Should be in the mesh, and is not.
    Lost,
}

impl State {
    /// How many pods are in the mesh, by how they stand: pending, enrolled and lost.
    pub fn enrolments(&self) -> [(&'static str, i64); 3] {
        let mut counts = [("pending", 0), ("enrolled", 0), ("lost", 0)];
        for entry in self.pods.values() {
            let place = match self.pod_state(entry).0 {
                PodState::Applying | PodState::Pending => 0,
                PodState::Enrolled => 1,
                PodState::Lost => 2,
                PodState::None | PodState::Waiting | PodState::Removing => continue,
            };
            if let Some((_, count)) = counts.get_mut(place) {
                *count += 1;
            }
        }
        counts
    }

    pub(super) fn status(&self) -> String {
        let reasons = self.not_ready();
        let ztunnels = self.ztunnels.view().map(|(id, snapshot, acknowledged)| ZtunnelStatus {
            connection: id.0,
            snapshot,
            acknowledged,
        });
        let status = Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ambient: self.config.policy.ambient_enabled,
            source: self.config.source.clone(),
            ready: reasons.is_empty(),
            reasons,
            unread: self.unread.clone(),
            no_ztunnel: (self.config.policy.ambient_enabled && self.ztunnels.is_empty()).then(|| self.no_ztunnel()),
            ztunnels: ztunnels.collect(),
            pods: self.pods.values().map(|entry| self.pod_status(entry)).collect(),
        };
        serde_json::to_string(&status).unwrap_or_default()
    }

    /// Notes since when a pod stands as it does.
    pub(super) fn note_state(&self, entry: &mut Entry) {
        let (state, _) = self.pod_state(entry);
        if entry.stands.is_none_or(|(before, _)| before != state) {
            entry.stands = Some((state, self.now));
        }
    }

    /// Explains the pod that has this name now, or the last one that had it.
    pub(super) fn explain(&self, name: &PodName) -> Answer {
        if !self.synced {
            return Answer::NotReady(self.not_ready());
        }
        let current = self.names.get(name).and_then(|uid| self.pods.get(uid));
        let Some(entry) = current.or_else(|| self.pods.values().find(|entry| entry.name == *name)) else {
            let (source, remedy) = (&self.config.source, self.remedy_for_unknown());
            let message = format!("pod {name} is not on this node, by what {source} says{remedy}");
            return Answer::Failed(Failure::new(code::AGENT_REFUSED, message));
        };
        let none = StringMap::new();
        let explanation = entry.object.as_ref().map(|object| {
            let labels = self.namespaces.get(&object.name.namespace).unwrap_or(&none);
            let node = entry.place.as_ref().map_or(self.config.settings, |place| place.settings);
            explain(&self.config.policy, object, labels, node.usual())
        });
        let explained = Explained { explanation, pod: Some(self.pod_status(entry)), steps: self.steps(entry) };
        Answer::Json(serde_json::to_string(&explained).unwrap_or_default())
    }

    /// What makes up an enrolment, as far as it has come.
    fn steps(&self, entry: &Entry) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut ask = |question: &str, answer: bool, facts: String| {
            steps.push(Step { question: question.to_owned(), answer, facts });
        };
        let goal = self.goal(entry);
        if goal.is_none() && entry.netns.is_none() && entry.rules.is_none() && entry.published.is_none() {
            return steps;
        }
        let trouble = || entry.trouble.clone();
        let place = entry.place.as_ref().map(|place| (place.path.as_str(), place.container_id.as_str()));
        let (path, sandbox) = place.unwrap_or_default();
        let told = |what: &str, text: &str| if text.is_empty() { String::new() } else { format!("; {what} {text}") };
        let found = entry
            .netns
            .as_ref()
            .map(|netns| format!("net:[{}]{}{}", netns.id().ino, told("told as", path), told("of sandbox", sandbox)));
        let is_found = found.is_some();
        let missing = || trouble().unwrap_or_else(|| "not yet".to_owned());
        ask("Is its network namespace known?", is_found, found.unwrap_or_else(missing));

        let programmed = entry.rules.as_ref().is_some_and(|rules| rules.settings.is_some()) && !entry.strayed;
        let facts = match (programmed, &entry.rules) {
            (true, _) if self.config.verify_interval.is_zero() => "programmed, and not looked at since".to_owned(),
            (true, _) => format!("verified every {} s", self.config.verify_interval.as_secs()),
            (false, None) => trouble().unwrap_or_else(|| "there are none of ours".to_owned()),
            (false, Some(_)) => trouble().unwrap_or_else(|| "being put in place, or taken out".to_owned()),
        };
        ask("Are its rules in place?", programmed, facts);

        if let (Some(goal), Some(netns)) = (&goal, &entry.netns) {
            let (acknowledged, facts) = match self.ztunnels.standing(&entry.uid, &goal.info, netns.id()) {
                Standing::Acknowledged => (true, "for this namespace".to_owned()),
                Standing::Refused(text) => (false, format!("it refused: {text}")),
                Standing::Waiting => (false, "not yet".to_owned()),
                Standing::NoZtunnel => (false, format!("none is connected on {}", self.config.ztunnel_socket)),
            };
            ask("Has ztunnel acknowledged it?", acknowledged, facts);
        }
        if self.config.host_side {
            let entered = entry.entered.of();
            let list = |ips: &[IpAddr]| ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
            let facts = entered.map_or_else(|| "not yet; its probes would be captured".to_owned(), list);
            ask("Are its addresses in the host's probe set?", entered.is_some(), facts);
        }
        let published = entry.published.map_or("absent", Redirection::value);
        let where_to = if self.config.cluster { "annotation" } else { "state.json:" };
        let enabled = entry.published == Some(Redirection::Enabled);
        ask("Is it published as redirected?", enabled, format!("{where_to} {ANNOTATION} is {published}"));
        steps
    }

    fn pod_status(&self, entry: &Entry) -> PodStatus {
        let (state, reason) = self.pod_state(entry);
        PodStatus {
            uid: entry.uid.clone(),
            namespace: entry.name.namespace.clone(),
            name: entry.name.name.clone(),
            state,
            reason,
            seconds: entry.stands.map_or(0, |(_, since)| self.now.saturating_duration_since(since).as_secs()),
            ips: entry.ips(),
            host_network: entry.object.as_ref().is_some_and(|object| object.host_network),
            netns: entry.netns.as_ref().map(|netns| netns.id().ino),
            redirection: entry.published,
            preceded: entry.preceded.by.is_some(),
        }
    }

    fn pod_state(&self, entry: &Entry) -> (PodState, String) {
        let trouble = || entry.trouble.clone();
        let Some(goal) = self.goal(entry) else {
            let decided = entry.object.as_ref().map(|object| self.decide(object).reason);
            let reason = decided.unwrap_or_else(|| format!("{} does not know it", self.config.source));
            let removing = entry.netns.is_some() || entry.rules.is_some() || entry.recalled;
            let removing = removing || matches!(entry.task, Some((_, Doing::Removing | Doing::Sweeping(_))));
            return (if removing { PodState::Removing } else { PodState::None }, trouble().unwrap_or(reason));
        };
        let Some(netns) = &entry.netns else {
            return match trouble() {
                _ if entry.rules.is_some() => (PodState::Removing, "its sandbox is given up".to_owned()),
                Some(trouble) if !entry.torn_down => (PodState::Lost, trouble),
                _ if entry.torn_down => (PodState::Waiting, "its sandbox was torn down".to_owned()),
                _ if entry.ips().is_empty() => (PodState::Waiting, "it has no address yet".to_owned()),
                _ => (PodState::Waiting, "its network namespace is not known yet".to_owned()),
            };
        };
        if entry.strayed {
            return (PodState::Lost, trouble().unwrap_or_else(|| "its processes are in another namespace".to_owned()));
        }
        if entry.rules.as_ref().is_none_or(|rules| rules.settings.is_none()) {
            return match trouble() {
                Some(trouble) => (PodState::Lost, trouble),
                None => (PodState::Applying, "its rules are being put in place".to_owned()),
            };
        }
        match self.ztunnels.standing(&entry.uid, &goal.info, netns.id()) {
            Standing::Acknowledged => {
                let but = entry.preceded.by.as_ref().map_or_else(String::new, |by| format!(", but {by}"));
                (PodState::Enrolled, format!("rules are in place and ztunnel has it{but}"))
            }
            Standing::Refused(text) => (PodState::Pending, format!("ztunnel refused it: {text}")),
            Standing::Waiting => (PodState::Pending, "ztunnel has not acknowledged it yet".to_owned()),
            Standing::NoZtunnel => {
                (PodState::Pending, format!("no ztunnel is connected on {}", self.config.ztunnel_socket))
            }
        }
    }
}
