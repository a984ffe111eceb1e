//! The sockets of the run directory: plugins ask on `pluginevent.sock`, and hand in their log lines on `log.sock`.
//!
//! [`accept`] serves the connections of a socket, [`request`] says what is asked for, [`answer`] what the peer is told;
//! [`ports`] are those for the kubelet and Prometheus.

mod accept;
mod answer;
pub(super) mod ports;
mod request;

use super::event::{Answer, Event, ReplyTo, Stop};
use crate::error::Result;
use crate::http::server::{self, Response, Unread};
use crate::logging;
use crate::metrics;
use crate::sys::clock;
use crate::sys::exchange::Exchange;
use crate::sys::file::HostRoot;
use crate::sys::run_dir::RunDir;
use crate::sys::unix::Connection;
use accept::Endpoint;
use answer::respond;
use request::parse;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Time for a request to arrive.
const READ: Duration = Duration::from_secs(2);
/// Time for an answer to be taken.
const WRITE: Duration = Duration::from_secs(2);
/// Time for the agent to answer; it has shorter deadlines of its own for everything.
const WAIT: Duration = Duration::from_secs(40);
/// Time between looks whether the peer is still there.
const LOOK: Duration = Duration::from_millis(50);

/// Serves `pluginevent.sock`: requests go to `inbox`.
pub fn plugin_events(run_dir: &RunDir, host_root: HostRoot, inbox: Sender<Event>) -> Result<Endpoint> {
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
    let path = run_dir.plugin_events();
    Endpoint::start("plugin-socket", path.clone(), serve, move || {
        let _ = lost.send(Event::Stop(Stop::TakenOver(path.clone())));
    })
}

/// Serves `log.sock`.
pub fn plugin_logs(run_dir: &RunDir) -> Result<Endpoint> {
    let serve = |connection: &Connection, begun: &dyn Fn()| {
        talk(connection, begun, |request, _| {
            // A line that is odd is printed as it is, and what is no list of lines is nobody's concern.
            for line in serde_json::from_slice::<Vec<String>>(&request.body).unwrap_or_default() {
                logging::relay(&line);
            }
            Some(Response::text(200, ""))
        });
    };
    Endpoint::start("log-socket", run_dir.plugin_logs(), serve, || {})
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
