//! What `GET /status` shows.

use super::State;
use super::pods::{Doing, Entry};
use super::ztunnels::Standing;
use crate::agent::event::Redirection;
use serde::{Deserialize, Serialize};

/// The answer to `GET /status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Whether the agent is ready.
    pub ready: bool,
    /// Why it is not.
    pub reasons: Vec<String>,
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
    /// Inode of its network namespace while the agent holds it.
    pub netns: Option<u64>,
    /// What is published about it.
    pub redirection: Option<Redirection>,
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
            ready: reasons.is_empty(),
            reasons,
            ztunnels: ztunnels.collect(),
            pods: self.pods.values().map(|entry| self.pod_status(entry)).collect(),
        };
        serde_json::to_string(&status).unwrap_or_default()
    }

    fn pod_status(&self, entry: &Entry) -> PodStatus {
        let (state, reason) = self.pod_state(entry);
        PodStatus {
            uid: entry.uid.clone(),
            namespace: entry.name.namespace.clone(),
            name: entry.name.name.clone(),
            state,
            reason,
            netns: entry.netns.as_ref().map(|netns| netns.id().ino),
            redirection: entry.published,
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
            Standing::Acknowledged => (PodState::Enrolled, "rules are in place and ztunnel has it".to_owned()),
            Standing::Refused(text) => (PodState::Pending, format!("ztunnel refused it: {text}")),
            Standing::Waiting => (PodState::Pending, "ztunnel has not acknowledged it yet".to_owned()),
            Standing::NoZtunnel => {
                (PodState::Pending, format!("no ztunnel is connected on {}", self.config.ztunnel_socket))
            }
        }
    }
}
