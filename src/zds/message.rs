//! What goes between the server and the agent: requests for a ztunnel one way, notices of what happened the other.

use super::wire::WorkloadInfo;
use crate::error::Result;
use crate::sys::netns::Netns;
use std::sync::Arc;

/// A connection, numbered in order of its hello; the highest is the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A request to one ztunnel.
#[derive(Debug, Clone)]
pub enum Request {
    /// Take this pod's namespace.
    Add {
        /// Pod uid.
        uid: String,
        /// Who it is.
        info: WorkloadInfo,
        /// Its namespace.
        netns: Arc<Netns>,
    },
    /// Keep what you have for this pod (only before `snapshot_sent`).
    Keep {
        /// Pod uid.
        uid: String,
    },
    /// Forget this pod.
    Del {
        /// Pod uid.
        uid: String,
    },
}

/// What happened, in order per connection.
#[derive(Debug)]
pub enum Notice {
    /// A ztunnel said hello and waits for its snapshot: answer with [`Server::snapshot`](super::server::Server::snapshot).
    Connected(ConnectionId),
    /// The snapshot was sent and acknowledged, `snapshot_sent` included.
    SnapshotDone(ConnectionId),
    /// A request was acknowledged (`Ok`) or failed, alone: kind `Refused` with ztunnel's text, or `Invalid` when it
    /// cannot be sent at all (too long for a packet, a `keep` after the snapshot).
    Answered {
        /// Which ztunnel.
        connection: ConnectionId,
        /// Which request.
        request: Request,
        /// The answer.
        result: Result<()>,
    },
    /// The connection is over, and why. Requests that were queued or unanswered get no answer of their own.
    Disconnected(ConnectionId, String),
}
