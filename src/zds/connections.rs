//! The connections that said hello, from their hello to their end, and what the log says about them.

use super::message::{ConnectionId, Notice};
use super::session::Session;
use super::wire;
use crate::error::Result;
use crate::sys::wakeup::{Wakeup, Woken};
use crate::sys::{clock, sync};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// At most this many lines about ztunnels that come and go in [`LOG_WINDOW`].
const LOG_LINES: u32 = 20;
const LOG_WINDOW: Duration = Duration::from_secs(60);

/// What the threads of all connections share.
pub(super) struct Connections {
    notify: Box<dyn Fn(Notice) + Send + Sync>,
    sessions: Mutex<Sessions>,
    /// Wakes the accepting thread: a connection ended, or all shall.
    wakeup: Wakeup,
    stopping: AtomicBool,
}

#[derive(Default)]
struct Sessions {
    last: u64,
    open: BTreeMap<ConnectionId, Arc<Session>>,
    /// When the current minute of log lines began, and how many there were in it.
    lines: Option<(Instant, u32)>,
}

impl Sessions {
    /// The level of a line about a ztunnel that came or went: `level`, but debug for one that does so all the time.
    fn level(&mut self, level: log::Level) -> log::Level {
        let now = clock::now();
        match &mut self.lines {
            Some((begin, lines)) if now.saturating_duration_since(*begin) < LOG_WINDOW => {
                *lines = lines.saturating_add(1);
                if *lines > LOG_LINES { log::Level::Debug } else { level }
            }
            window => {
                *window = Some((now, 1));
                level
            }
        }
    }
}

impl Connections {
    /// None yet; every notice goes to `notify`.
    pub(super) fn new(notify: Box<dyn Fn(Notice) + Send + Sync>) -> Result<Self> {
        let (sessions, stopping) = (Mutex::default(), AtomicBool::new(false));
        Ok(Connections { notify, sessions, wakeup: Wakeup::new()?, stopping })
    }

    /// A connection that said hello and is not over.
    pub(super) fn get(&self, id: ConnectionId) -> Option<Arc<Session>> {
        self.sessions().open.get(&id).cloned()
    }

    /// Tells the accepting thread to end, which ends the connections.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wakeup.wake();
    }

    /// Waits as [`Wakeup::wait`] does, for the accepting thread.
    pub(super) fn wait(&self, socket: Option<BorrowedFd<'_>>, timeout: Duration) -> Result<Woken> {
        self.wakeup.wait(socket, timeout)
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        sync::lock(&self.sessions)
    }

    /// Whether [`Connections::stop`] was called.
    pub(super) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Serves a connection from its hello to its end.
    pub(super) fn serve(&self, session: &Arc<Session>) {
        match session.hello() {
            Ok(version) => {
                let id = self.register(session);
                let level = self.sessions().level(log::Level::Info);
                log::log!(level, connection = id.0, version = version; "ztunnel connected");
                if version != wire::Version::V1 as i32 {
                    let level = self.sessions().level(log::Level::Warn);
                    log::log!(level, version = version; "ztunnel announces a protocol version other than 1");
                }
                (self.notify)(Notice::Connected(id));
                let end = session.serve(id, &self.notify).to_string();
                let level = {
                    let mut sessions = self.sessions();
                    sessions.open.remove(&id);
                    sessions.level(if self.stopping() { log::Level::Info } else { log::Level::Warn })
                };
                log::log!(level, connection = id.0; "ztunnel disconnected: {end}");
                (self.notify)(Notice::Disconnected(id, end));
            }
            // Not a warning: whoever cannot even say hello comes back five times a second.
            Err(e) => log::debug!("connection to the ztunnel socket ended before its hello: {e}"),
        }
        session.close("over");
        self.wakeup.wake();
    }

    fn register(&self, session: &Arc<Session>) -> ConnectionId {
        let mut sessions = self.sessions();
        sessions.last += 1;
        let id = ConnectionId(sessions.last);
        sessions.open.insert(id, Arc::clone(session));
        id
    }
}
