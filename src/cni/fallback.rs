//! What an ADD does when the agent did not decide. A failure to decide is never taken for "not in the mesh".

use super::ask;
use super::event::{Failure, code};
use crate::error::Error;
use std::path::Path;

/// Why the agent did not decide.
#[derive(Debug)]
pub(super) enum Undecided {
    /// It cannot be reached, or went away or silent before it answered.
    Unreachable(Error),
    /// It kept saying that it is starting; its last words.
    Starting(String),
    /// What serves the socket is not our agent.
    Foreign {
        /// Status of its answer; 200 is Istio's "enrolled".
        status: u16,
        /// The first line of its answer.
        words: String,
    },
}

/// Decides without the agent. Without another source of truth the runtime is told to come again.
pub(super) fn decide(socket: &Path, undecided: &Undecided) -> Result<(), Failure> {
    let message = match undecided {
        Undecided::Unreachable(e) => not_ready(socket, &ask::cause(e)),
        Undecided::Starting(words) => not_ready(socket, words),
        Undecided::Foreign { status, words } => not_ready(
            socket,
            &format!(
                "answered {status} {words:?}: the agent of another make, which does not know this plugin's question"
            ),
        ),
    };
    Err(Failure {
        details: "the pod is not started without its traffic redirection; the runtime tries again by itself".to_owned(),
        ..Failure::new(code::TRY_AGAIN_LATER, message)
    })
}

/// What a person must know first when the agent is missing.
pub(super) fn not_ready(socket: &Path, why: &str) -> String {
    format!("node agent not ready ({}: {why}); is the istio-cni-node pod running on this node?", socket.display())
}
