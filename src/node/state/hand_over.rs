//! What ztunnels say, and the snapshot that a new one gets.

use super::State;
use crate::metrics;
use crate::node::event::Action;
use crate::node::pod::{Pod, Rules};
use crate::node::ztunnels::{add, uid_of};
use crate::zds::server::{ConnectionId, Notice, Request};

impl State {
    pub(super) fn ztunnel(&mut self, notice: Notice) {
        match notice {
            Notice::Connected(id) => {
                log::debug!(connection = id.0; "ztunnel waits for its snapshot");
                self.node.ztunnels.connected(id);
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
                self.node.ztunnels.disconnected(id, self.node.now);
                self.advance_all();
            }
        }
    }

    /// Every pod that is enrolled, with its namespace where that is known: a pod that is not named loses its proxy.
    pub(super) fn send_snapshot(&mut self, id: ConnectionId) {
        let items: Vec<Request> = self.pods.iter().filter_map(|pod| self.snapshot_item(pod)).collect();
        if !self.node.ztunnels.snapshot(id, &items) {
            return;
        }
        for item in &items {
            let acknowledged = |pod: &Pod| pod.held().is_some_and(|held| held.is_acknowledged());
            if matches!(item, Request::Add { uid, .. } if self.pods.get(uid).is_some_and(acknowledged)) {
                metrics::VERIFICATION_REPAIRS.inc(["ztunnel"]);
            }
        }
        log::debug!(connection = id.0, pods = items.len(); "snapshot");
        self.node.out.push(Action::Snapshot(id, items));
    }

    fn snapshot_item(&self, pod: &Pod) -> Option<Request> {
        let sandbox = pod.sandbox();
        if self.node.is_unread(pod) && !sandbox.is_torn_down() {
            return Some(Request::Keep { uid: pod.uid().to_owned() });
        }
        let goal = self.node.goal(pod)?;
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
