//! The server side: accepts ztunnels, speaks the protocol, reports what happened. It decides nothing: who gets which
//! request is the agent's choice. A thread per connection does the I/O; its queue is bounded; no lock is held across
//! I/O; a slow ztunnel stalls nobody else.
//!
//! What ztunnel exits on (and every pod of the node loses its proxy) cannot be sent from here: a second
//! `snapshot_sent`, a `keep` after it, an `add` without workload info. What it closes the connection on neither: a
//! packet that is too long, a missing or surplus descriptor.

pub use super::message::{ConnectionId, Notice, Request};
pub use super::wire::WorkloadInfo;

use super::accept::Acceptor;
use super::connections::Connections;
use super::session::Session;
use crate::error::{Context, Result};
use crate::sys::file::{self, Mode};
use crate::sys::thread;
use crate::sys::unix::{Listener, SocketType};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// What the server is told once.
#[derive(Debug, Clone)]
pub struct Options {
    /// `--ztunnel-uds-address`.
    pub socket: PathBuf,
    /// Time for the hello and for each ack (5 s).
    pub timeout: Duration,
}

/// Mode of the socket's directory: ztunnel may run under another user, and the socket itself is root's.
const DIR_MODE: Mode = Mode(0o755);

/// The running server. Dropping it stops it.
pub struct Server {
    connections: Arc<Connections>,
    listener: Arc<Listener>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Binds the socket and starts to accept; every notice goes to `notify` (which must not block).
    pub fn start(options: Options, notify: impl Fn(Notice) + Send + Sync + 'static) -> Result<Self> {
        let what = || format!("serve ztunnel at {}", options.socket.display());
        if let Some(dir) = options.socket.parent() {
            file::create_dir_all(dir, DIR_MODE).with_context(what)?;
        }
        let listener = Arc::new(Listener::bind(&options.socket, SocketType::SeqPacket).with_context(what)?);
        let connections = Arc::new(Connections::new(Box::new(notify))?);
        let acceptor = Acceptor::new(Arc::clone(&listener), Arc::clone(&connections), options.timeout);
        let acceptor = thread::spawn("zds-accept", move || acceptor.run()).with_context(what)?;
        Ok(Server { connections, listener, acceptor: Some(acceptor) })
    }

    /// Sends the snapshot to a connection that said hello; requests sent later follow it. Only the first snapshot of a
    /// connection counts.
    pub fn snapshot(&self, connection: ConnectionId, items: Vec<Request>) {
        if let Some(session) = self.session(connection) {
            session.give_snapshot(items);
        }
    }

    /// Queues a request; never blocks. A connection whose queue is full is closed.
    pub fn send(&self, connection: ConnectionId, request: Request) {
        if let Some(session) = self.session(connection) {
            session.enqueue(request);
        }
    }

    /// Whether the socket's path still leads to us (another agent may have taken it over).
    pub fn still_ours(&self) -> bool {
        self.listener.still_ours()
    }

    /// Closes every connection and joins the threads, within a second; dropping does the same.
    pub fn stop(self) {}

    /// A connection that is over is no error: its [`Notice::Disconnected`] is on its way to the caller.
    fn session(&self, connection: ConnectionId) -> Option<Arc<Session>> {
        self.connections.get(connection)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.connections.stop();
        if let Some(acceptor) = self.acceptor.take() {
            // A panic in it was reported where it happened.
            let _ = acceptor.join();
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("listener", &self.listener).finish_non_exhaustive()
    }
}
