//! The socket on which Envoy asks for secrets.
//!
//! A thread for each connection, of which Envoy has one; its streams are state machines. A stream that asks for a secret
//! that is not known yet waits for it: an answer may come late, and what Envoy does after a refusal takes longer. Only
//! when it has waited long does it end, so that Envoy's log says why.

pub use super::connection::Options;

use super::connection::Connection;
use super::store::Store;
use crate::error::{Error, Result};
use crate::sys::file::{self, Mode};
use crate::sys::unix::{Access, Listener, SocketType};
use crate::sys::wakeup::Wakeup;
use crate::sys::{clock, thread};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Connections at a time. Envoy has one.
const CONNECTIONS: usize = 64;
/// The accepting thread looks around this often; nothing depends on it.
const LOOK: Duration = Duration::from_secs(60);
/// Pause after an accept that failed.
const PAUSE: Duration = Duration::from_millis(100);
/// Pauses between tries to bind.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(16);
/// Mode of the socket's directory where it has to be made.
const DIRECTORY: Mode = Mode(0o750);

/// The running server. Dropping it ends it and takes the socket away.
pub struct Server {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

struct Stop {
    now: AtomicBool,
    wakeup: Wakeup,
}

impl Server {
    /// Binds the socket, which everybody may use who reaches its directory, and serves. When it cannot be bound it is
    /// tried again and again, and told once; only where we may make no file at all (the directory is mounted read-only,
    /// or is not ours) that is an error.
    pub fn start(options: Options, store: Arc<Store>) -> Result<Self> {
        let bound = match bind(&options) {
            Err(e) if matches!(e.errno(), Some(libc::EROFS | libc::EACCES)) => return Err(e),
            bound => bound,
        };
        let stop = Arc::new(Stop { now: AtomicBool::new(false), wakeup: Wakeup::new()? });
        let over = stop.clone();
        let thread = thread::spawn("sds-accept", move || {
            if let Some(listener) = bound.map_or_else(|e| bind_again(&options, &e, &over), Some) {
                accept(&listener, &options, &store, &over);
            }
        })?;
        Ok(Server { stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.now.store(true, Ordering::Relaxed);
        self.stop.wakeup.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn bind(options: &Options) -> Result<Listener> {
    if let Some(directory) = options.socket.parent().filter(|directory| !directory.as_os_str().is_empty())
        && let Err(e) = file::create_dir_all(directory, DIRECTORY)
    {
        log::warn!(error:% = e; "the directory of the SDS socket cannot be made");
    }
    Listener::bind_for(&options.socket, SocketType::Stream, Access::Anyone)
}

/// Binds as soon as that works; nothing when the server is to end.
fn bind_again(options: &Options, error: &Error, stop: &Stop) -> Option<Listener> {
    log::error!(error:% = error; "the SDS socket cannot be bound; it is tried again");
    let mut pause = FIRST_PAUSE;
    loop {
        let _ = stop.wakeup.wait(None, pause);
        if stop.now.load(Ordering::Relaxed) {
            return None;
        }
        match bind(options) {
            Ok(listener) => {
                log::info!("the SDS socket is bound now");
                return Some(listener);
            }
            Err(e) => log::debug!(error:% = e; "the SDS socket cannot be bound"),
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn accept(listener: &Listener, options: &Options, store: &Arc<Store>, stop: &Arc<Stop>) {
    let open = Arc::new(AtomicUsize::new(0));
    while !stop.now.load(Ordering::Relaxed) {
        let came = stop.wakeup.wait(Some(listener.as_fd()), LOOK);
        let socket = match came.and_then(|_| listener.accept(Duration::ZERO)) {
            Ok(Some(socket)) => socket,
            Ok(None) => continue,
            Err(e) => {
                log::warn!(error:% = e; "a connection to the SDS socket was not taken");
                clock::sleep(PAUSE);
                continue;
            }
        };
        if open.load(Ordering::Relaxed) >= CONNECTIONS {
            log::warn!("a connection to the SDS socket is closed: {CONNECTIONS} are open");
            continue;
        }
        let connection = Connection::new(socket.into_stream(), store.clone(), options.clone());
        open.fetch_add(1, Ordering::Relaxed);
        let (over, counted) = (stop.clone(), open.clone());
        let started = connection.and_then(|connection| {
            thread::spawn("sds", move || {
                connection.serve(&over.now);
                counted.fetch_sub(1, Ordering::Relaxed);
            })
        });
        if let Err(e) = started {
            open.fetch_sub(1, Ordering::Relaxed);
            log::warn!(error:% = e; "a connection to the SDS socket is closed");
        }
    }
}
