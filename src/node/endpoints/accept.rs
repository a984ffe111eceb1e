//! The accepting thread of a socket: one thread accepts, one thread per connection talks, at most [`MOST`] of them. When
//! all places are taken, the connection that has been sending its request for the longest time is cut off. So a slow or
//! hostile peer costs a thread for a moment and holds up nobody.

use crate::error::Result;
use crate::logging::{News, Repeat};
use crate::sys::unix::{Connection, Listener, SocketType};
use crate::sys::{clock, sync, thread};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between lines about a trouble that lasts.
const REMIND: Duration = Duration::from_secs(60);
/// Connections at a time, per socket.
const MOST: usize = 128;
/// Time between looks whether the socket is still ours and whether we are to stop.
const TURN: Duration = Duration::from_millis(200);

/// A socket that is served; dropped, it stops and is removed if it is still ours.
#[derive(Debug)]
pub struct Endpoint {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Endpoint {
    /// Binds the socket and starts to accept. `serve` talks with one connection and calls its second argument once the
    /// request has arrived; `lost` is called when another agent has taken the socket over.
    pub(super) fn start(
        name: &'static str,
        path: PathBuf,
        serve: impl Fn(&Connection, &dyn Fn()) + Send + Sync + 'static,
        lost: impl Fn() + Send + 'static,
    ) -> Result<Self> {
        let listener = Listener::bind(&path, SocketType::Stream)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(name, move || accept(name, listener, &stopped, &Arc::new(serve), lost))?;
        Ok(Endpoint { stop, thread: Some(thread) })
    }
}

fn accept(
    name: &'static str,
    mut listener: Listener,
    stop: &AtomicBool,
    serve: &Arc<impl Fn(&Connection, &dyn Fn()) + Send + Sync + 'static>,
    lost: impl Fn(),
) {
    let places = Arc::new(Places::default());
    // A thread that waits for the next connection, so that this one need not wait for a thread.
    let mut ready = None;
    let mut trouble = Repeat::new(REMIND);
    let mut lost = Some(lost);
    let mut looked = clock::now();
    while !stop.load(Ordering::Relaxed) {
        if clock::now().saturating_duration_since(looked) >= TURN {
            looked = clock::now();
            if !listener.still_ours() && lost.is_some() {
                if listener.path().exists() {
                    if let Some(lost) = lost.take() {
                        lost();
                    }
                } else {
                    // Swept away by somebody who tidies up.
                    match Listener::bind(listener.path(), SocketType::Stream) {
                        Ok(again) => listener = again,
                        Err(e) => report(&mut trouble, name, &Err(e)),
                    }
                }
            }
        }
        if !places.make_room(TURN) {
            continue;
        }
        if ready.is_none() {
            match server(serve) {
                Ok(server) => ready = Some(server),
                Err(e) => report(&mut trouble, name, &Err(e)),
            }
        }
        let served = match listener.accept(TURN) {
            Ok(None) => continue,
            Ok(Some(connection)) => match ready.take().map_or_else(|| server(serve), Ok) {
                Ok(server) => {
                    let connection = Arc::new(connection);
                    let place = places.take(&connection);
                    // It listens until it gets something.
                    let _ = server.send((connection, place));
                    Ok(())
                }
                Err(e) => Err(e),
            },
            Err(e) => Err(e),
        };
        report(&mut trouble, name, &served);
    }
}

/// Starts a thread that serves one connection, once it is given one.
fn server(
    serve: &Arc<impl Fn(&Connection, &dyn Fn()) + Send + Sync + 'static>,
) -> Result<Sender<(Arc<Connection>, Place)>> {
    let (sender, given) = channel::<(Arc<Connection>, Place)>();
    let serve = Arc::clone(serve);
    thread::spawn("plugin-conn", move || {
        if let Ok((connection, place)) = given.recv() {
            serve(&connection, &|| place.complete());
        }
    })?;
    Ok(sender)
}

/// Says a trouble of the socket once while it lasts.
fn report(trouble: &mut Repeat, name: &str, result: &Result<()>) {
    if let News::Failing(e, times) = trouble.note(result, clock::now()) {
        log::warn!(times = times; "{name}: {e}");
    }
}

/// The connections that are served.
#[derive(Debug, Default)]
struct Places {
    taken: Mutex<Taken>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct Taken {
    last: u64,
    /// In the order they came: number, connection, and whether the request is still arriving.
    connections: Vec<(u64, Arc<Connection>, bool)>,
}

/// A connection's place, given back when dropped.
struct Place {
    places: Arc<Places>,
    number: u64,
}

impl Places {
    /// Waits until there is room, at most `timeout`; cuts off the slowest sender if there is none.
    fn make_room(&self, timeout: Duration) -> bool {
        let taken = sync::lock(&self.taken);
        if taken.connections.len() < MOST {
            return true;
        }
        if let Some((_, slowest, _)) = taken.connections.iter().find(|(_, _, arriving)| *arriving) {
            slowest.shutdown();
        }
        let full = |taken: &mut Taken| taken.connections.len() >= MOST;
        sync::wait_while(&self.freed, taken, timeout, full).connections.len() < MOST
    }

    fn take(self: &Arc<Self>, connection: &Arc<Connection>) -> Place {
        let mut taken = sync::lock(&self.taken);
        taken.last += 1;
        let number = taken.last;
        taken.connections.push((number, Arc::clone(connection), true));
        Place { places: Arc::clone(self), number }
    }
}

impl Place {
    /// The request has arrived: the connection now waits for us.
    fn complete(&self) {
        let mut taken = sync::lock(&self.places.taken);
        if let Some(connection) = taken.connections.iter_mut().find(|(number, ..)| *number == self.number) {
            connection.2 = false;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        sync::lock(&self.places.taken).connections.retain(|(number, ..)| *number != self.number);
        self.places.freed.notify_one();
    }
}
