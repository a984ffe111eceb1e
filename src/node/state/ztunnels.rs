//! Who gets which request: adds go to the newest connection only, deletes to all.

use super::State;
use crate::error::{Error, Result};
use crate::metrics;
use crate::node::event::Action;
use crate::node::pod::{Pod, Rules};
use crate::sys::netns::{Netns, NetnsId};
use crate::zds::server::{ConnectionId, Notice, Request, WorkloadInfo};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

/// Every connected ztunnel and what it was told.
#[derive(Debug, Default)]
pub(super) struct Ztunnels {
    connections: BTreeMap<ConnectionId, Connection>,
    /// Since when there is none.
    gone_since: Option<Instant>,
}

#[derive(Debug, Default)]
struct Connection {
    /// The snapshot was handed over: requests may follow.
    open: bool,
    /// By uid.
    told: HashMap<String, Told>,
}

#[derive(Debug, Default)]
struct Told {
    last: Last,
    /// Requests about this pod without an answer. Only the answer to the last one says how things stand.
    unanswered: u32,
    /// Answer to the last request, if that was an add.
    answer: Option<std::result::Result<(), String>>,
}

/// The last request about a pod.
#[derive(Debug, Default, PartialEq, Eq)]
enum Last {
    #[default]
    Del,
    Keep,
    Add(NetnsId, WorkloadInfo),
}

/// How a pod stands with the ztunnels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    /// Acknowledged by a ztunnel that is connected.
    Acknowledged,
    /// Refused, with ztunnel's words.
    Refused(String),
    /// Told, not answered yet.
    Waiting,
    /// There is no ztunnel to tell.
    NoZtunnel,
}

impl Ztunnels {
    /// The newest connection, once its snapshot is on the way.
    fn newest(&mut self) -> Option<(ConnectionId, &mut Connection)> {
        let (id, connection) = self.connections.iter_mut().next_back()?;
        connection.open.then_some((*id, connection))
    }

    fn count(&self) {
        metrics::ZTUNNEL_CONNECTED.set([], self.connections.len() as i64);
    }

    /// Nobody is connected.
    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Since when none is connected; `None` while one is, or none ever was.
    pub(super) fn gone_since(&self) -> Option<Instant> {
        self.gone_since
    }

    /// Connections that wait for their snapshot.
    pub(super) fn waiting(&self) -> Vec<ConnectionId> {
        self.connections.iter().filter(|(_, connection)| !connection.open).map(|(id, _)| *id).collect()
    }

    /// Every connection: its number, whether it has its snapshot, and how many pods it acknowledged.
    pub(super) fn view(&self) -> impl Iterator<Item = (ConnectionId, bool, usize)> {
        self.connections.iter().map(|(id, connection)| {
            let acknowledged = connection.told.values().filter(|told| told.answer == Some(Ok(()))).count();
            (*id, connection.open, acknowledged)
        })
    }

    /// Tells the newest ztunnel of a pod unless it knows; after a refusal only if `again`. Returns whether it did.
    pub(super) fn offer(
        &mut self,
        uid: &str,
        info: &WorkloadInfo,
        netns: &Arc<Netns>,
        again: bool,
        out: &mut Vec<Action>,
    ) -> bool {
        let Some((id, connection)) = self.newest() else { return false };
        let told = connection.told.entry(uid.to_owned()).or_default();
        match &told.last {
            Last::Add(at, who) if *at == netns.id() && who == info => match told.answer {
                Some(Err(_)) if again => {}
                _ => return false,
            },
            // The same namespace again changes nothing in a ztunnel, not even who the pod is.
            Last::Add(at, _) if *at == netns.id() => told.send(id, Request::Del { uid: uid.to_owned() }, out),
            _ => {}
        }
        told.send(id, add(uid, info, netns), out);
        true
    }

    /// Tells every ztunnel to forget a pod, if any was told of it.
    pub(super) fn withdraw(&mut self, uid: &str, out: &mut Vec<Action>) {
        let known = |told: &Told| told.last != Last::Del;
        if !self.connections.values().any(|connection| connection.told.get(uid).is_some_and(known)) {
            return;
        }
        for (id, connection) in self.connections.iter_mut().filter(|(_, connection)| connection.open) {
            connection.told.entry(uid.to_owned()).or_default().send(*id, Request::Del { uid: uid.to_owned() }, out);
        }
    }

    /// How a pod stands.
    pub(super) fn standing(&self, uid: &str, info: &WorkloadInfo, netns: NetnsId) -> Standing {
        let told = |connection: &Connection| match connection.told.get(uid) {
            Some(Told { last: Last::Add(at, who), answer, .. }) if *at == netns && who == info => Some(answer.clone()),
            _ => None,
        };
        if self.connections.values().any(|connection| matches!(told(connection), Some(Some(Ok(()))))) {
            return Standing::Acknowledged;
        }
        match self.connections.values().next_back() {
            None => Standing::NoZtunnel,
            Some(newest) => match told(newest) {
                Some(Some(Err(text))) => Standing::Refused(text),
                _ => Standing::Waiting,
            },
        }
    }

    /// Whether the newest ztunnel refused the pod: it is offered again.
    pub(super) fn refused_by_newest(&self, uid: &str) -> bool {
        let newest = self.connections.values().next_back();
        newest.and_then(|newest| newest.told.get(uid)).is_some_and(|told| matches!(told.answer, Some(Err(_))))
    }

    fn answered(&mut self, id: ConnectionId, request: &Request, result: Result<()>) {
        let uid = uid_of(request);
        let Some(told) = self.connections.get_mut(&id).and_then(|connection| connection.told.get_mut(uid)) else {
            return;
        };
        told.unanswered = told.unanswered.saturating_sub(1);
        if told.unanswered > 0 {
            return;
        }
        match request {
            Request::Add { .. } => told.answer = Some(result.map_err(|e: Error| e.to_string())),
            Request::Del { .. } => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.told.remove(uid);
                }
            }
            Request::Keep { .. } => {}
        }
    }
}

impl Told {
    fn send(&mut self, connection: ConnectionId, request: Request, out: &mut Vec<Action>) {
        self.note(&request);
        out.push(Action::Send(connection, request));
    }

    fn note(&mut self, request: &Request) {
        self.unanswered += 1;
        self.answer = None;
        self.last = match request {
            Request::Add { info, netns, .. } => Last::Add(netns.id(), info.clone()),
            Request::Keep { .. } => Last::Keep,
            Request::Del { .. } => Last::Del,
        };
    }
}

fn add(uid: &str, info: &WorkloadInfo, netns: &Arc<Netns>) -> Request {
    Request::Add { uid: uid.to_owned(), info: info.clone(), netns: Arc::clone(netns) }
}

fn uid_of(request: &Request) -> &str {
    match request {
        Request::Add { uid, .. } | Request::Keep { uid } | Request::Del { uid } => uid,
    }
}

impl State {
    pub(super) fn ztunnel(&mut self, notice: Notice) {
        match notice {
            Notice::Connected(id) => {
                log::debug!(connection = id.0; "ztunnel waits for its snapshot");
                self.node.ztunnels.gone_since = None;
                self.node.ztunnels.connections.insert(id, Connection::default());
                self.node.ztunnels.count();
                if !self.node.is_starting() {
                    self.send_snapshot(id);
                    self.advance_all();
                }
            }
            Notice::SnapshotDone(id) => {
                log::info!(connection = id.0; "ztunnel has its snapshot");
            }
            Notice::Answered { connection, request, result } => {
                let uid = uid_of(&request).to_owned();
                let refused = result.is_err() && matches!(request, Request::Add { .. });
                self.node.ztunnels.answered(connection, &request, result);
                if refused {
                    let jitter = (self.node.jitter)();
                    if let Some(pod) = self.pods.get_mut(&uid) {
                        pod.failed(self.node.now, jitter);
                    }
                }
                self.advance(&uid);
            }
            Notice::Disconnected(id, why) => {
                log::debug!(connection = id.0; "ztunnel is gone: {why}");
                self.node.ztunnels.connections.remove(&id);
                self.node.ztunnels.count();
                if self.node.ztunnels.connections.is_empty() {
                    self.node.ztunnels.gone_since = Some(self.node.now);
                }
                self.advance_all();
            }
        }
    }

    /// Every pod that is enrolled, with its namespace where that is known: a pod that is not named loses its proxy.
    pub(super) fn send_snapshot(&mut self, id: ConnectionId) {
        let items: Vec<Request> = self.pods.iter().filter_map(|pod| self.snapshot_item(pod)).collect();
        let Some(connection) = self.node.ztunnels.connections.get_mut(&id) else { return };
        connection.open = true;
        for item in &items {
            let acknowledged = |pod: &Pod| pod.held().is_some_and(|held| held.is_acknowledged());
            if matches!(item, Request::Add { uid, .. } if self.pods.get(uid).is_some_and(acknowledged)) {
                metrics::VERIFICATION_REPAIRS.inc(["ztunnel"]);
            }
            connection.told.entry(uid_of(item).to_owned()).or_default().note(item);
        }
        log::debug!(connection = id.0, pods = items.len(); "snapshot");
        self.node.out.push(Action::Snapshot(id, items));
    }

    fn snapshot_item(&self, pod: &Pod) -> Option<Request> {
        let goal = self.node.goal(pod)?;
        let sandbox = pod.sandbox();
        match sandbox.held() {
            Some(held) if held.is_established() && *held.rules() != Rules::None => {
                Some(add(pod.uid(), &goal.info, held.netns()))
            }
            None if sandbox.is_recalled() || (pod.published().is_some() && !sandbox.is_torn_down()) => {
                Some(Request::Keep { uid: pod.uid().to_owned() })
            }
            _ => None,
        }
    }
}
