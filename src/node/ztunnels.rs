//! Who gets which request: adds go to the newest connection only, deletes to all.

use super::event::Action;
use crate::error::{Error, Result};
use crate::metrics;
use crate::sys::netns::{Netns, NetnsId};
use crate::zds::server::{ConnectionId, Request, WorkloadInfo};
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
    /// What it was told of each pod, by uid.
    told: HashMap<String, Told>,
}

#[derive(Debug, Default)]
struct Told {
    last: Last,
    /// Requests about this pod without an answer. Only the answer to the last one says how things stand.
    unanswered: u32,
    /// Answer to the last request, if that was an add.
    answer: Option<std::result::Result<(), String>>,
    /// It is to be told anew, whatever it answered.
    doubted: bool,
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

    /// A ztunnel waits for its snapshot.
    pub(super) fn connected(&mut self, id: ConnectionId) {
        self.gone_since = None;
        self.connections.insert(id, Connection::default());
        self.count();
    }

    /// A ztunnel is gone.
    pub(super) fn disconnected(&mut self, id: ConnectionId, now: Instant) {
        self.connections.remove(&id);
        self.count();
        if self.connections.is_empty() {
            self.gone_since = Some(now);
        }
    }

    /// A ztunnel gets these as its snapshot; returns whether it is still there.
    pub(super) fn snapshot(&mut self, id: ConnectionId, items: &[Request]) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        connection.open = true;
        for item in items {
            connection.told.entry(uid_of(item).to_owned()).or_default().note(item);
        }
        true
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
            Last::Add(at, who) if *at == netns.id() && who == info && !told.doubted => match told.answer {
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

    /// What ztunnel has acknowledged of a pod does not hold any more: with the next offer it is told to forget it, then of
    /// it anew.
    pub(super) fn doubt(&mut self, uid: &str) {
        if let Some(told) = self.connections.values_mut().next_back().and_then(|newest| newest.told.get_mut(uid)) {
            told.doubted = true;
        }
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

    /// Whether every ztunnel that was told to forget a pod has said that it did.
    pub(super) fn have_let_go(&self, uid: &str) -> bool {
        let waits = |told: &Told| told.last == Last::Del && told.unanswered > 0;
        !self.connections.values().any(|connection| connection.told.get(uid).is_some_and(waits))
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

    pub(super) fn answered(&mut self, id: ConnectionId, request: &Request, result: Result<()>) {
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
        self.doubted = false;
        self.last = match request {
            Request::Add { info, netns, .. } => Last::Add(netns.id(), info.clone()),
            Request::Keep { .. } => Last::Keep,
            Request::Del { .. } => Last::Del,
        };
    }
}

pub(super) fn add(uid: &str, info: &WorkloadInfo, netns: &Arc<Netns>) -> Request {
    Request::Add { uid: uid.to_owned(), info: info.clone(), netns: Arc::clone(netns) }
}

pub(super) fn uid_of(request: &Request) -> &str {
    match request {
        Request::Add { uid, .. } | Request::Keep { uid } | Request::Del { uid } => uid,
    }
}
