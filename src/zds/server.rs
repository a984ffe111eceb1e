//! The server side: accepts ztunnels, speaks the protocol, reports what happened. It decides nothing: who gets which
//! request is the agent's choice. A thread per connection does the I/O; its queue is bounded; no lock is held across
//! I/O; a slow ztunnel stalls nobody else.

pub use super::wire::WorkloadInfo;
use crate::error::Result;
use crate::sys::netns::Netns;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

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
    /// A ztunnel said hello and waits for its snapshot: answer with [`Server::snapshot`].
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

/// What the server is told once.
#[derive(Debug, Clone)]
pub struct Options {
    /// `--ztunnel-uds-address`.
    pub socket: PathBuf,
    /// Time for the hello and for each ack (5 s).
    pub timeout: Duration,
}

/// The running server.
#[derive(Debug)]
pub struct Server {
    _private: (),
}

impl Server {
    /// Binds the socket and starts to accept; every notice goes to `notify` (which must not block).
    pub fn start(_options: Options, _notify: impl Fn(Notice) + Send + Sync + 'static) -> Result<Self> {
        todo!()
    }

    /// Sends the snapshot to a connection that said hello; requests sent later follow it.
    pub fn snapshot(&self, _connection: ConnectionId, _items: Vec<Request>) {
        todo!()
    }

    /// Queues a request; never blocks. A connection whose queue is full is closed.
    pub fn send(&self, _connection: ConnectionId, _request: Request) {
        todo!()
    }

    /// Whether the socket's path still leads to us (another agent may have taken it over).
    pub fn still_ours(&self) -> bool {
        todo!()
    }

    /// Closes every connection and joins the threads, within a second; dropping does the same.
    pub fn stop(self) {
        todo!()
    }
}
