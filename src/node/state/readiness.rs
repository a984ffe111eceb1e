//! Why the agent is not ready.

use super::{Phase, State};
use crate::node::event::Subject;
use crate::node::pod::Pod;
use crate::pod::types::PodName;

impl State {
    /// Why the agent is not ready; empty when it is.
    pub(super) fn not_ready(&self) -> Vec<String> {
        let node = &self.node;
        let phase = match node.phase {
            Phase::Filling => Some(match self.missed().filter(|_| node.told) {
                Some(name) => {
                    let (source, remedy) = (&node.config.source, node.remedy_for_unknown());
                    format!("starting: pod {name} was in the mesh, and is not by what {source} says{remedy}")
                }
                None => format!("starting: {} has not been read yet", node.config.source),
            }),
            Phase::Recalling(_) => Some("starting: pods enrolled by an earlier run are being looked for".to_owned()),
            Phase::Running => None,
            Phase::Stopping(_) => Some("the agent is stopping".to_owned()),
        };
        let conditions = node.conditions.iter().map(|(what, problem)| format!("{what}: {problem}"));
        phase.into_iter().chain(node.host_not_ready()).chain(conditions).collect()
    }

    /// A pod of an earlier run that would be taken out, while that may be because of a file that could not be read: it
    /// is no proof that the pod has gone, or its namespace left the mesh.
    pub(super) fn missed(&self) -> Option<&PodName> {
        if !self.node.unread.iter().any(|unread| unread.subject == Subject::File) {
            return None;
        }
        let was_in = |pod: &&Pod| pod.sandbox().is_recalled() || pod.published().is_some();
        self.pods.iter().filter(was_in).find(|pod| self.node.goal(pod).is_none()).map(Pod::name)
    }
}
