//! The socket on which Envoy asks for secrets.
//!
//! A thread for each connection, of which Envoy has one; its streams are state machines. A stream that asks for a secret
//! that is not known yet waits for it: an answer may come late, and what Envoy does after a refusal takes longer. Only
//! when it has waited long does it end, so that Envoy's log says why.

pub use super::connection::Options;

use super::connection::Connection;
use super::store::Store;
use crate::error::Result;
use crate::sys::file::{self, Mode};
use crate::sys::unix::{Access, Listener, SocketType};
use crate::sys::{clock, thread};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Connections at a time. Envoy has one.
const CONNECTIONS: usize = 64;
/// The accepting thread looks this often whether it is to end.
const LOOK: Duration = Duration::from_millis(500);
/// Pause after an accept that failed.
const PAUSE: Duration = Duration::from_millis(100);
/// Mode of the socket's directory where it has to be made.
const DIRECTORY: Mode = Mode(0o750);

/// The running server. Dropping it ends it and takes the socket away.
pub struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Binds the socket, which everybody may use who reaches its directory, and begins to serve.
    pub fn start(options: Options, store: Arc<Store>) -> Result<Self> {
        if let Some(directory) = options.socket.parent().filter(|directory| !directory.as_os_str().is_empty())
            && let Err(e) = file::create_dir_all(directory, DIRECTORY)
        {
            log::warn!(error:% = e; "the directory of the SDS socket cannot be made");
        }
        let listener = Listener::bind_for(&options.socket, SocketType::Stream, Access::Anyone)?;
        let stop = Arc::new(AtomicBool::new(false));
        let over = stop.clone();
        let thread = thread::spawn("sds-accept", move || accept(&listener, &options, &store, &over))?;
        Ok(Server { stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &Listener, options: &Options, store: &Arc<Store>, stop: &Arc<AtomicBool>) {
    let open = Arc::new(AtomicUsize::new(0));
    while !stop.load(Ordering::Relaxed) {
        let socket = match listener.accept(LOOK) {
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
        let (stop, counted) = (stop.clone(), open.clone());
        let started = connection.and_then(|connection| {
            thread::spawn("sds", move || {
                connection.serve(&stop);
                counted.fetch_sub(1, Ordering::Relaxed);
            })
        });
        if let Err(e) = started {
            open.fetch_sub(1, Ordering::Relaxed);
            log::warn!(error:% = e; "a connection to the SDS socket is closed");
        }
    }
}
