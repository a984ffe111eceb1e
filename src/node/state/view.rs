//! What `GET /status` and `GET /explain` show. Their JSON is for scripts, too: keys may be added, those that are there
//! keep their meaning.

use super::verification::BYPASSED;
use super::{Node, State};
use crate::cni::event::{Failure, code};
use crate::node::event::Answer;
use crate::node::pod::{Held, Job, Pod, Rules};
use crate::node::redirection::{ANNOTATION, Redirection};
use crate::node::ztunnels::Standing;
use crate::pod::decision::Step;
use crate::pod::explanation::{Explanation, explain};
use crate::pod::types::{PodName, StringMap};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

pub use crate::node::pod::report::PodState;

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
    /// In words, the processes whose connections to pods count as the kubelet's probes; null where the rules are
    /// iptables', for which any process of the host does.
    #[serde(default)]
    pub probers: Option<String>,
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
    /// What is published about it: what stands on its object, not what is still to be written there.
    pub redirection: Option<Redirection>,
    /// A rule of others that came after its enrolment sees its packets before ours do; the reason says which.
    #[serde(default)]
    pub preceded: bool,
    /// Ztunnel has acknowledged the pod and does not listen in it; the reason says on which ports.
    #[serde(default)]
    pub unheard: bool,
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

impl State {
    /// How many pods are in the mesh, by how they stand: pending, enrolled and lost.
    pub fn enrolments(&self) -> [(&'static str, i64); 3] {
        let (mut pending, mut enrolled, mut lost) = (0, 0, 0);
        for pod in self.pods.iter() {
            match self.node.pod_state(pod).0 {
                PodState::Applying | PodState::Pending => pending += 1,
                PodState::Enrolled => enrolled += 1,
                PodState::Lost => lost += 1,
                PodState::None | PodState::Waiting | PodState::Removing => {}
            }
        }
        [("pending", pending), ("enrolled", enrolled), ("lost", lost)]
    }

    /// The answer to `GET /status`.
    pub(super) fn status(&self) -> String {
        let reasons = self.not_ready();
        let node = &self.node;
        let ztunnels = node.ztunnels.view().map(|(id, snapshot, acknowledged)| ZtunnelStatus {
            connection: id.0,
            snapshot,
            acknowledged,
        });
        let ambient = node.config.policy.ambient_enabled;
        let status = Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ambient,
            source: node.config.source.clone(),
            ready: reasons.is_empty(),
            reasons,
            unread: node.unread.iter().map(|unread| unread.text.clone()).collect(),
            no_ztunnel: (ambient && node.ztunnels.is_empty()).then(|| node.no_ztunnel()),
            probers: node.host.probers().map(|probers| probers.to_string()),
            ztunnels: ztunnels.collect(),
            pods: self.pods.iter().map(|pod| node.pod_status(pod)).collect(),
        };
        serde_json::to_string(&status).unwrap_or_default()
    }

    /// Explains the pod that has this name now, or the last one that had it.
    pub(super) fn explain(&self, name: &PodName) -> Answer {
        if !self.node.synced {
            return Answer::NotReady(self.not_ready());
        }
        let last = || self.pods.iter().find(|pod| pod.name() == name);
        let Some(pod) = self.pods.named(name).or_else(last) else {
            let (source, remedy) = (&self.node.config.source, self.node.remedy_for_unknown());
            let message = format!("pod {name} is not on this node, by what {source} says{remedy}");
            return Answer::Failed(Failure::new(code::AGENT_REFUSED, message));
        };
        let explained = Explained {
            explanation: pod.object().map(|object| {
                let none = StringMap::new();
                let labels = self.node.namespaces.get(&object.name.namespace).unwrap_or(&none);
                let usual = self.node.settings_for(pod).usual();
                explain(&self.node.config.policy, object, labels, usual, self.node.config.native_nftables)
            }),
            pod: Some(self.node.pod_status(pod)),
            steps: self.node.steps(pod),
        };
        Answer::Json(serde_json::to_string(&explained).unwrap_or_default())
    }
}

impl Node {
    /// What makes up an enrolment, as far as it has come.
    fn steps(&self, pod: &Pod) -> Vec<Step> {
        let goal = self.goal(pod);
        let sandbox = pod.sandbox();
        if goal.is_none() && sandbox.held().is_none() && !sandbox.has_rules() && pod.published().is_none() {
            return Vec::new();
        }
        let step =
            |question: &str, (answer, facts): (bool, String)| Step { question: question.to_owned(), answer, facts };
        let mut steps = vec![
            step("Is its network namespace known?", netns_known(pod)),
            step("Are its rules in place?", self.rules_in_place(pod)),
        ];
        if let (Some(goal), Some(netns)) = (&goal, sandbox.netns()) {
            let answer = match self.ztunnels.standing(pod.uid(), &goal.info, netns.id()) {
                Standing::Acknowledged => (true, "for this namespace".to_owned()),
                Standing::Refused(text) => (false, format!("it refused: {text}")),
                Standing::Waiting => (false, "not yet".to_owned()),
                Standing::NoZtunnel => (false, format!("none is connected on {}", self.config.ztunnel_socket)),
            };
            steps.push(step("Has ztunnel acknowledged it?", answer));
        }
        if self.config.host_side {
            let list = |ips: &[IpAddr]| ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
            let facts = pod.entered().map_or_else(|| "not yet; its probes would be captured".to_owned(), list);
            steps.push(step("Are its addresses in the host's probe set?", (pod.entered().is_some(), facts)));
        }
        let published = self.published(pod).map_or("absent", Redirection::value);
        let where_to = if self.config.cluster { "annotation" } else { "state.json:" };
        let enabled = self.published(pod) == Some(Redirection::Enabled);
        let facts = format!("{where_to} {ANNOTATION} is {published}{}", refusal(pod));
        steps.push(step("Is it published as redirected?", (enabled, facts)));
        steps
    }

    fn rules_in_place(&self, pod: &Pod) -> (bool, String) {
        let known = |held: &Held| matches!(held.rules(), Rules::Known(_)) && !held.has_strayed();
        let trouble = |otherwise: &str| pod.report().trouble().unwrap_or(otherwise).to_owned();
        if pod.held().is_some_and(known) {
            let interval = self.config.verify_interval;
            let facts = if interval.is_zero() {
                "programmed, and not looked at since".to_owned()
            } else {
                format!("verified every {} s", interval.as_secs())
            };
            (true, facts)
        } else if pod.sandbox().has_rules() {
            (false, trouble("being put in place, or taken out"))
        } else {
            (false, trouble("there are none of ours"))
        }
    }

    fn pod_status(&self, pod: &Pod) -> PodStatus {
        let (state, mut reason) = self.pod_state(pod);
        reason.push_str(&refusal(pod));
        PodStatus {
            uid: pod.uid().to_owned(),
            namespace: pod.name().namespace.clone(),
            name: pod.name().name.clone(),
            state,
            reason,
            seconds: pod.report().age(self.now).as_secs(),
            ips: pod.addresses(),
            host_network: pod.object().is_some_and(|object| object.host_network),
            netns: pod.sandbox().netns().map(|netns| netns.id().ino),
            redirection: self.published(pod),
            preceded: pod.held().is_some_and(|held| held.preceded_by().is_some()),
            unheard: pod.held().is_some_and(|held| held.unheard().is_some()),
        }
    }

    /// What is published of a pod: what stands on its object, where that is the place.
    fn published(&self, pod: &Pod) -> Option<Redirection> {
        if self.config.cluster { pod.annotated() } else { pod.published() }
    }

    /// How a pod stands, and why.
    pub(super) fn pod_state(&self, pod: &Pod) -> (PodState, String) {
        let (sandbox, trouble) = (pod.sandbox(), pod.report().trouble().map(str::to_owned));
        let Some(goal) = self.goal(pod) else {
            let decided = pod.object().map(|object| self.decide(object).reason);
            let reason = decided.unwrap_or_else(|| format!("{} does not know it", self.config.source));
            let removing = matches!(pod.job(), Some((_, Job::Removing(_))));
            let removing = removing || sandbox.held().is_some() || sandbox.has_rules() || sandbox.is_recalled();
            return (if removing { PodState::Removing } else { PodState::None }, trouble.unwrap_or(reason));
        };
        let Some(held) = sandbox.held() else {
            return match trouble {
                _ if sandbox.has_rules() => (PodState::Removing, "its sandbox is given up".to_owned()),
                Some(trouble) if !sandbox.is_torn_down() => (PodState::Lost, trouble),
                _ if sandbox.is_torn_down() => (PodState::Waiting, "its sandbox was torn down".to_owned()),
                _ if pod.ips().is_empty() => (PodState::Waiting, "it has no address yet".to_owned()),
                _ => (PodState::Waiting, "its network namespace is not known yet".to_owned()),
            };
        };
        if held.has_strayed() {
            return (PodState::Lost, trouble.unwrap_or_else(|| "its processes are in another namespace".to_owned()));
        }
        if held.is_bypassed() {
            return (PodState::Lost, trouble.unwrap_or_else(|| BYPASSED.to_owned()));
        }
        if !matches!(held.rules(), Rules::Known(_)) {
            return match trouble {
                Some(trouble) => (PodState::Lost, trouble),
                None => (PodState::Applying, "its rules are being put in place".to_owned()),
            };
        }
        match self.ztunnels.standing(pod.uid(), &goal.info, held.netns().id()) {
            Standing::Acknowledged => {
                let but = held.preceded_by().map(str::to_owned).into_iter().chain(held.unheard());
                let but: String = but.map(|what| format!(", but {what}")).collect();
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

/// Why what is to be published does not stand on the object.
fn refusal(pod: &Pod) -> String {
    let refused = pod.refused();
    refused
        .map_or_else(String::new, |(times, why)| format!("; its annotation cannot be written ({times} tries): {why}"))
}

fn netns_known(pod: &Pod) -> (bool, String) {
    let Some(netns) = pod.sandbox().netns() else {
        return (false, pod.report().trouble().unwrap_or("not yet").to_owned());
    };
    let mut facts = format!("net:[{}]", netns.id().ino);
    if let Some(location) = pod.sandbox().location() {
        for (what, text) in [("told as", &location.path), ("of sandbox", &location.container_id)] {
            if !text.is_empty() {
                facts.push_str(&format!("; {what} {text}"));
            }
        }
    }
    (true, facts)
}
