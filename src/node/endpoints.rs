//! The sockets of the run directory: plugins ask on `pluginevent.sock`, and hand in their log lines on `log.sock`.
//!
//! One thread accepts, one thread per connection talks, at most [`MOST`] of them. Each request has to be complete
//! within [`READ`]; when all places are taken, the connection that has been sending its request for the longest time
//! is cut off. So a slow or hostile peer costs a thread for a moment and holds up nobody.

use super::event::{Answer, Event, Opened, ReplyTo, Request, Stop};
use super::execute::open_netns;
use crate::cni::event::{AddEvent, AttachmentEvent, Failure, GcEvent, code};
use crate::error::{Context, Error, Kind, Result};
use crate::http::server::{self, Response, Unread};
use crate::logging::{self, News, Repeat};
use crate::metrics;
use crate::pod::types::PodName;
use crate::sys::exchange::Exchange;
use crate::sys::file::HostRoot;
use crate::sys::netns::Netns;
use crate::sys::unix::{Connection, Listener, SocketType};
use crate::sys::{clock, sync, thread};
use serde::de::DeserializeOwned;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between lines about a trouble that lasts.
const REMIND: Duration = Duration::from_secs(60);
/// Connections at a time, per socket.
const MOST: usize = 128;
/// For a request to arrive.
const READ: Duration = Duration::from_secs(2);
/// For an answer to be taken.
const WRITE: Duration = Duration::from_secs(2);
/// For the agent to answer; it has shorter deadlines of its own for everything.
const WAIT: Duration = Duration::from_secs(40);
/// Between looks whether the peer is still there.
const LOOK: Duration = Duration::from_millis(50);
/// Between looks whether the socket is still ours and whether we are to stop.
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

/// Serves `pluginevent.sock`: requests go to `inbox`.
pub fn plugin_events(run_dir: &Path, host_root: HostRoot, inbox: Sender<Event>) -> Result<Endpoint> {
    let lost = inbox.clone();
    let numbers = AtomicU64::new(1);
    let serve = move |connection: &Connection, begun: &dyn Fn()| {
        talk(connection, begun, |request, descriptors| {
            let id = numbers.fetch_add(1, Ordering::Relaxed);
            let response = ask(id, &request, descriptors, &host_root, connection, &inbox)?;
            if request.method == "POST" {
                metrics::PLUGIN_REQUESTS.inc([&response.status.to_string()]);
            }
            Some(response)
        });
    };
    let path = run_dir.join("pluginevent.sock");
    Endpoint::start("plugin-socket", path.clone(), serve, move || {
        let _ = lost.send(Event::Stop(Stop::TakenOver(path.clone())));
    })
}

/// Serves `log.sock`.
pub fn plugin_logs(run_dir: &Path) -> Result<Endpoint> {
    let serve = |connection: &Connection, begun: &dyn Fn()| {
        talk(connection, begun, |request, _| {
            // A line that is odd is printed as it is, and what is no list of lines is nobody's concern.
            for line in serde_json::from_slice::<Vec<String>>(&request.body).unwrap_or_default() {
                logging::relay(&line);
            }
            Some(Response::text(200, ""))
        });
    };
    Endpoint::start("log-socket", run_dir.join("log.sock"), serve, || {})
}

impl Endpoint {
    fn start(
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

/// Reads a request, has it answered, writes the answer.
fn talk(
    connection: &Connection,
    begun: &dyn Fn(),
    answer: impl FnOnce(server::Request, Result<Vec<OwnedFd>>) -> Option<Response>,
) {
    let mut exchange = Exchange::new(connection, clock::now() + READ);
    let (response, rest) = match server::read_request(&mut exchange) {
        Ok(request) => {
            begun();
            let descriptors = exchange.take_descriptors();
            (answer(request, descriptors), false)
        }
        Err(Unread::Refused(response)) => (Some(response), true),
        Err(Unread::Gone) => (None, false),
    };
    let Some(response) = response else { return };
    let mut exchange = Exchange::new(connection, clock::now() + WRITE);
    // A peer that does not want its answer any more is no trouble of ours.
    if server::write_response(&mut exchange, &response).is_ok() && rest {
        drain(&mut exchange);
    }
}

/// Reads what a refused peer is still sending: closing a socket with unread bytes takes the answer away from it.
fn drain(exchange: &mut Exchange<'_>) {
    /// More than the largest request anyone sends by mistake.
    const LIMIT: u64 = 16 << 20;
    let _ = std::io::copy(&mut exchange.take(LIMIT), &mut std::io::sink());
}

/// Turns a request into an event, and waits for the answer as long as the peer does.
fn ask(
    id: u64,
    request: &server::Request,
    descriptors: Result<Vec<OwnedFd>>,
    host_root: &HostRoot,
    connection: &Connection,
    inbox: &Sender<Event>,
) -> Option<Response> {
    let (parsed, form) = match parse(request, descriptors, host_root) {
        Ok(parsed) => parsed,
        Err(response) => return Some(response),
    };
    let (channel, answers) = channel();
    // An answer that can come no more shows below as a channel without sender.
    let _ = inbox.send(Event::Request(parsed, ReplyTo { id, channel }));
    let until = clock::now() + WAIT;
    loop {
        match answers.recv_timeout(LOOK) {
            Ok(answer) => return Some(respond(answer, form)),
            Err(RecvTimeoutError::Disconnected) => {
                let reason = "the agent is starting or stopping".to_owned();
                return Some(respond(Answer::NotReady(vec![reason]), form));
            }
            Err(RecvTimeoutError::Timeout) if connection.peer_gone() || past(until) => {
                let _ = inbox.send(Event::RequesterGone(id));
                return None;
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

fn past(until: Instant) -> bool {
    clock::now() >= until
}

/// Whose answers the peer understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Istio's plugin: 200 with an empty body, or a status and text.
    Istio,
    /// Our plugin and tools: JSON.
    Ours,
}

fn parse(
    request: &server::Request,
    descriptors: Result<Vec<OwnedFd>>,
    host_root: &HostRoot,
) -> std::result::Result<(Request, Form), Response> {
    let open = |path: &str| open(descriptors, path, host_root);
    match (request.method.as_str(), request.path.as_str()) {
        ("POST", "/cmdadd") => {
            let event: AddEvent = decode(&request.body)?;
            let form = if event.decide { Form::Ours } else { Form::Istio };
            let netns = open(&event.netns);
            Ok((Request::Add(event, netns), form))
        }
        ("POST", "/cmddel") => {
            let event: AttachmentEvent = decode(&request.body)?;
            let netns = open(&event.netns);
            Ok((Request::Del(event, netns), Form::Ours))
        }
        ("POST", "/cmdcheck") => {
            let event: AttachmentEvent = decode(&request.body)?;
            let netns = open(&event.netns);
            Ok((Request::Check(event, netns), Form::Ours))
        }
        ("POST", "/gc") => Ok((Request::Gc(decode::<GcEvent>(&request.body)?), Form::Ours)),
        ("GET", "/readyz") => Ok((Request::Ready, Form::Ours)),
        ("GET", "/status") => Ok((Request::Status, Form::Ours)),
        ("GET", "/explain") => Ok((Request::Explain(named(&request.query)?), Form::Ours)),
        (_, "/cmdadd" | "/cmddel" | "/cmdcheck" | "/gc") => Err(Response::text(405, "use POST\n")),
        (_, "/readyz" | "/status" | "/explain") => Err(Response::text(405, "use GET\n")),
        (_, path) => Err(Response::text(404, format!("no such path: {path:?}\n"))),
    }
}

/// The pod that `namespace=…&name=…` names. Names of pods have no character that would have to be escaped there.
fn named(query: &str) -> std::result::Result<PodName, Response> {
    let value = |wanted: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, value)| *key == wanted && !value.is_empty()).map(|(_, value)| value.to_owned())
    };
    match (value("namespace"), value("name")) {
        (Some(namespace), Some(name)) => Ok(PodName { namespace, name }),
        _ => Err(Response::text(400, "ask for /explain?namespace=NAMESPACE&name=NAME\n")),
    }
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> std::result::Result<T, Response> {
    serde_json::from_slice(body).map_err(|e| Response::text(400, format!("the body is not what is asked for: {e}\n")))
}

/// The namespace of a request: the descriptor that came along, else the path.
fn open(descriptors: Result<Vec<OwnedFd>>, path: &str, host_root: &HostRoot) -> Opened {
    let mut descriptors = descriptors?;
    if descriptors.len() > 1 {
        return Err(Error::of(Kind::Invalid, "more than one descriptor came with the request"));
    }
    match descriptors.pop() {
        Some(descriptor) => Netns::from_fd(descriptor).context("the descriptor that came with the request"),
        None => open_netns(host_root, path),
    }
    .map(Arc::new)
}

fn respond(answer: Answer, form: Form) -> Response {
    match (answer, form) {
        (Answer::Done, Form::Istio) => Response::text(200, ""),
        (Answer::Done, Form::Ours) => Response::json(200, "{}"),
        (Answer::Decided(answer), _) => json(200, &answer),
        (Answer::Failed(failure), Form::Istio) => Response::text(500, failure.message),
        (Answer::Failed(failure), Form::Ours) => json(500, &failure),
        (Answer::NotReady(reasons), Form::Istio) => Response::text(503, reasons.join("\n")),
        (Answer::NotReady(reasons), Form::Ours) => {
            let mut reasons = reasons.into_iter();
            let message = reasons.next().unwrap_or_default();
            let details = reasons.collect::<Vec<_>>().join("\n");
            json(503, &Failure { code: code::TRY_AGAIN_LATER, message, details })
        }
        (Answer::Json(text), _) => Response::json(200, text),
    }
}

fn json(status: u16, value: &impl serde::Serialize) -> Response {
    Response::json(status, serde_json::to_vec(value).unwrap_or_default())
}
