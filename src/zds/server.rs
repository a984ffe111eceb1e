//! The server side: accepts ztunnels, speaks the protocol, reports what happened. It decides nothing: who gets which
//! request is the agent's choice. A thread per connection does the I/O; its queue is bounded; no lock is held across
//! I/O; a slow ztunnel stalls nobody else.
//!
//! What ztunnel exits on (and every pod of the node loses its proxy) cannot be sent from here: a second
//! `snapshot_sent`, a `keep` after it, an `add` without workload info. What it closes the connection on neither: a
//! packet that is too long, a missing or surplus descriptor.

pub use super::wire::WorkloadInfo;

use super::session::Session;
use super::wakeup::{Wakeup, Woken};
use super::wire;
use crate::error::{Context, Error, Result};
use crate::logging::{News, Repeat};
use crate::sys::file::{self, Mode};
use crate::sys::netns::Netns;
use crate::sys::unix::{Listener, SocketType};
use crate::sys::{clock, sync, thread};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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

/// Accepts are this far apart: at most five a second, since a ztunnel whose connection is closed right after the accept
/// comes back thousands of times a second.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(200);

/// Connections at a time. There are one or two ztunnels on a node.
const CONNECTION_LIMIT: usize = 16;

/// Mode of the socket's directory: ztunnel may run under another user, and the socket itself is root's.
const DIR_MODE: Mode = Mode(0o755);

/// The accepting thread looks around this often even if nothing happens; nothing depends on it.
const ACCEPT_WAIT: Duration = Duration::from_secs(60);

/// At most this many lines about ztunnels that come and go in [`LOG_WINDOW`].
const LOG_LINES: u32 = 20;
const LOG_WINDOW: Duration = Duration::from_secs(60);

/// The running server. Dropping it stops it.
pub struct Server {
    shared: Arc<Shared>,
    listener: Arc<Listener>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    timeout: Duration,
    notify: Box<dyn Fn(Notice) + Send + Sync>,
    sessions: Mutex<Sessions>,
    /// Rung for the accepting thread: a connection ended, or all shall.
    wakeup: Wakeup,
    stopping: AtomicBool,
}

/// The connections that said hello.
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

impl Server {
    /// Binds the socket and starts to accept; every notice goes to `notify` (which must not block).
    pub fn start(options: Options, notify: impl Fn(Notice) + Send + Sync + 'static) -> Result<Self> {
        let what = || format!("serve ztunnel at {}", options.socket.display());
        if let Some(dir) = options.socket.parent() {
            file::create_dir_all(dir, DIR_MODE).with_context(what)?;
        }
        let listener = Arc::new(Listener::bind(&options.socket, SocketType::SeqPacket).with_context(what)?);
        let shared = Arc::new(Shared {
            timeout: options.timeout,
            notify: Box::new(notify),
            sessions: Mutex::default(),
            wakeup: Wakeup::new()?,
            stopping: AtomicBool::new(false),
        });
        let acceptor = {
            let (listener, shared) = (Arc::clone(&listener), Arc::clone(&shared));
            thread::spawn("zds-accept", move || Acceptor { listener, shared, running: Vec::new() }.run())
                .with_context(what)?
        };
        Ok(Server { shared, listener, acceptor: Some(acceptor) })
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
        self.shared.sessions().open.get(&connection).cloned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.wakeup.ring();
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

impl Shared {
    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        sync::lock(&self.sessions)
    }

    fn stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// A connection from its hello to its end.
    fn serve(&self, session: &Arc<Session>) {
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
        self.wakeup.ring();
    }

    fn register(&self, session: &Arc<Session>) -> ConnectionId {
        let mut sessions = self.sessions();
        sessions.last += 1;
        let id = ConnectionId(sessions.last);
        sessions.open.insert(id, Arc::clone(session));
        id
    }
}

/// The accepting thread: owns the connections' threads.
struct Acceptor {
    listener: Arc<Listener>,
    shared: Arc<Shared>,
    running: Vec<(Weak<Session>, JoinHandle<()>)>,
}

impl Acceptor {
    fn run(mut self) {
        let mut trouble = Repeat::new(LOG_WINDOW);
        while !self.shared.stopping() {
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
        let woken = self.shared.wakeup.wait(Some(self.listener.as_fd()), ACCEPT_WAIT)?;
        self.running.retain(|(_, thread)| !thread.is_finished());
        if woken != Woken::Socket {
            return Ok(false);
        }
        let Some(socket) = self.listener.accept(Duration::ZERO)? else { return Ok(false) };
        if self.running.len() >= CONNECTION_LIMIT {
            return Err(Error::new(format_args!("{CONNECTION_LIMIT} connections are open, another one is refused")));
        }
        let session = Arc::new(Session::new(socket, self.shared.timeout)?);
        let weak = Arc::downgrade(&session);
        let shared = Arc::clone(&self.shared);
        let thread = thread::spawn("zds-connection", move || shared.serve(&session))?;
        self.running.push((weak, thread));
        Ok(true)
    }

    /// Lets the accept interval pass, unless all shall end.
    fn pause(&self) {
        let until = clock::now() + ACCEPT_INTERVAL;
        while !self.shared.stopping() {
            let left = until.saturating_duration_since(clock::now());
            if left.is_zero() {
                return;
            }
            // A failing poll must not turn this into a busy loop.
            if self.shared.wakeup.wait(None, left).is_err() {
                clock::sleep(left);
            }
        }
    }
}
