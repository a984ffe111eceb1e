//! The accepting thread: at most five connections a second, each on a thread of its own.

use super::connections::Connections;
use super::session::Session;
use crate::error::{Error, Result};
use crate::logging::{News, Repeat};
use crate::sys::unix::Listener;
use crate::sys::wakeup::Woken;
use crate::sys::{clock, thread};
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Accepts are this far apart: at most five a second, since a ztunnel whose connection is closed right after the accept
/// comes back thousands of times a second.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(200);

/// Connections at a time. There are one or two ztunnels on a node.
const CONNECTION_LIMIT: usize = 16;

/// The accepting thread looks around this often even if nothing happens; nothing depends on it.
const ACCEPT_WAIT: Duration = Duration::from_secs(60);

/// Between two lines about a trouble that lasts.
const REMIND: Duration = Duration::from_secs(60);

/// The accepting thread; it owns the connections' threads.
pub(super) struct Acceptor {
    listener: Arc<Listener>,
    connections: Arc<Connections>,
    /// Time for the hello and for each acknowledgement of a ztunnel.
    timeout: Duration,
    running: Vec<(Weak<Session>, JoinHandle<()>)>,
}

impl Acceptor {
    pub(super) fn new(listener: Arc<Listener>, connections: Arc<Connections>, timeout: Duration) -> Self {
        Acceptor { listener, connections, timeout, running: Vec::new() }
    }

    /// Accepts until all shall end, then ends every connection and waits for its thread.
    pub(super) fn run(mut self) {
        let mut trouble = Repeat::new(REMIND);
        while !self.connections.stopping() {
            let accepted = self.accept();
            if matches!(accepted, Ok(false)) {
                continue;
            }
            match trouble.note(&accepted, clock::now()) {
                News::Failing(e, times) => log::warn!(times = times; "ztunnel socket: {e}"),
                News::Over(_) => log::info!("the ztunnel socket accepts connections again"),
                News::Nothing => {}
            }
            self.pause();
        }
        for (session, _) in &self.running {
            if let Some(session) = session.upgrade() {
                session.close("the agent stops");
            }
        }
        for (_, thread) in self.running {
            let _ = thread.join();
        }
    }

    /// Waits for one connection and starts its thread; `false` when there was none. Fails when it could not be had:
    /// no descriptor or thread left (the next try may find one), a peer that is not root.
    fn accept(&mut self) -> Result<bool> {
        let woken = self.connections.wait(Some(self.listener.as_fd()), ACCEPT_WAIT)?;
        self.running.retain(|(_, thread)| !thread.is_finished());
        if woken != Woken::Socket {
            return Ok(false);
        }
        let Some(socket) = self.listener.accept(Duration::ZERO)? else { return Ok(false) };
        if self.running.len() >= CONNECTION_LIMIT {
            return Err(Error::new(format_args!("{CONNECTION_LIMIT} connections are open, another one is refused")));
        }
        let session = Arc::new(Session::new(socket, self.timeout)?);
        let weak = Arc::downgrade(&session);
        let connections = Arc::clone(&self.connections);
        let thread = thread::spawn("zds-connection", move || connections.serve(&session))?;
        self.running.push((weak, thread));
        Ok(true)
    }

    /// Lets the accept interval pass, unless all shall end.
    fn pause(&self) {
        let until = clock::now() + ACCEPT_INTERVAL;
        while !self.connections.stopping() {
            let left = until.saturating_duration_since(clock::now());
            if left.is_zero() {
                return;
            }
            // A failing poll must not turn this into a busy loop.
            if self.connections.wait(None, left).is_err() {
                clock::sleep(left);
            }
        }
    }
}
