//! The TCP ports: `/healthz` and `/readyz` for the kubelet, `/metrics` for Prometheus.
//!
//! A port that another program has is asked for again every few seconds; meanwhile the agent does its work and says
//! that it is not ready. A slow client costs a thread for a few seconds, and there are only so many.

use crate::error::{Context, Result};
use crate::http::server::{self, Response, Unread};
use crate::logging::Repeat;
use crate::metrics;
use crate::node::event::{Answer, Event, ReplyTo, Request};
use crate::node::watchdog::Watchdog;
use crate::sys::{clock, sync, thread};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Pause between tries to get a port.
const RETRY: Duration = Duration::from_secs(5);
/// Connections at a time, per port; for another one, the oldest is cut: a peer that only keeps its place must not keep
/// the kubelet out.
const MOST: usize = 16;
/// Time for a request to come and its answer to be taken.
const TALK: Duration = Duration::from_secs(5);
/// Time for the agent to say whether it is ready.
const WAIT: Duration = Duration::from_secs(2);

/// Serves `/healthz` and `/readyz`; the thread ends with the process. Port 0 is off.
pub fn health(port: u16, watchdog: Watchdog, inbox: Sender<Event>) -> Result<()> {
    let asks = inbox.clone();
    serve("health port", "--health-port", port, inbox, move |path| match path {
        "/healthz" => {
            let stuck = watchdog.stuck();
            let ok = stuck.is_empty();
            Some(if ok { Response::text(200, "ok\n") } else { Response::text(503, lines(&stuck)) })
        }
        "/readyz" => Some(readiness(&asks)),
        _ => None,
    })
}

/// Serves `/metrics`; the thread ends with the process. Port 0 is off.
pub fn monitoring(port: u16, inbox: Sender<Event>) -> Result<()> {
    serve("monitoring port", "--monitoring-port", port, inbox, |path| {
        (path == "/metrics").then(|| Response {
            status: 200,
            content_type: "text/plain; version=0.0.4; charset=utf-8",
            body: metrics::render().into_bytes(),
        })
    })
}

fn readiness(inbox: &Sender<Event>) -> Response {
    let (channel, answers) = channel();
    // Nobody is told when this peer goes, so the number does not matter.
    let asked = inbox.send(Event::Request(Request::Ready, ReplyTo { id: 0, channel }));
    let answer = asked.ok().and_then(|()| answers.recv_timeout(WAIT).ok());
    match answer {
        Some(Answer::Done) => Response::text(200, "ok\n"),
        Some(Answer::NotReady(reasons)) => Response::text(503, lines(&reasons)),
        _ => Response::text(503, "the agent is starting, stopping or stuck\n"),
    }
}

/// One a line, whatever is in them.
fn lines(reasons: &[String]) -> String {
    reasons.iter().map(|reason| reason.replace('\n', " ") + "\n").collect()
}

fn serve(
    what: &'static str,
    option: &'static str,
    port: u16,
    inbox: Sender<Event>,
    answer: impl Fn(&str) -> Option<Response> + Send + Sync + 'static,
) -> Result<()> {
    if port == 0 {
        return Ok(());
    }
    let answer = Arc::new(answer);
    thread::spawn(what, move || {
        let listener = bind_at_last(what, option, port, &inbox);
        let open = Arc::new(Open::default());
        for stream in listener.incoming() {
            match stream {
                Ok(stream) => start(stream, &open, &answer),
                // No descriptor left, say: it must not be tried in a loop.
                Err(_) => clock::sleep(Duration::from_millis(100)),
            }
        }
    })
    .map(drop)
}

/// Gets the port, however long that takes.
fn bind_at_last(what: &'static str, option: &str, port: u16, inbox: &Sender<Event>) -> TcpListener {
    let mut trouble = Repeat::once();
    loop {
        let error = match bind(port).with_context(|| format!("listen on TCP port {port} ({option})")) {
            Ok(listener) => {
                // Nobody asks for readiness any more when this is not heard.
                let _ = inbox.send(Event::Condition(what, None));
                return listener;
            }
            Err(error) => error.to_string(),
        };
        if trouble.failed(&error, clock::now()).is_some() {
            log::error!("{error}; trying again every {} s", RETRY.as_secs());
            let _ = inbox.send(Event::Condition(what, Some(error)));
        }
        clock::sleep(RETRY);
    }
}

/// Both families at once; IPv4 alone where there is no IPv6.
fn bind(port: u16) -> std::io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)) {
        Err(e) if e.kind() != ErrorKind::AddrInUse => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
        bound => bound,
    }
}

/// The connections that are being served, the oldest first.
#[derive(Default)]
struct Open {
    all: Mutex<Vec<Arc<TcpStream>>>,
    left: Condvar,
}

fn start(stream: TcpStream, open: &Arc<Open>, answer: &Arc<impl Fn(&str) -> Option<Response> + Send + Sync + 'static>) {
    let stream = Arc::new(stream);
    // Those that were cut are still leaving, which takes them as long as the machine is busy.
    let full = |all: &mut Vec<_>| all.len() >= 2 * MOST;
    let mut all = sync::wait_while(&open.left, sync::lock(&open.all), TALK, full);
    let n = all.len();
    if n >= 2 * MOST {
        return;
    }
    if n >= MOST {
        // Its thread reads the end, and goes.
        let _ = all.get(n - MOST).map(|oldest| oldest.shutdown(Shutdown::Both));
    }
    all.push(Arc::clone(&stream));
    drop(all);
    let (serving, answer) = (Leave(Arc::clone(open), stream), Arc::clone(answer));
    // Without a thread the value is dropped, and its place is free again.
    let _ = thread::spawn("http", move || talk(&serving.1, &*answer));
}

/// Gives the place of a connection back.
struct Leave(Arc<Open>, Arc<TcpStream>);

impl Drop for Leave {
    fn drop(&mut self) {
        sync::lock(&self.0.all).retain(|other| !Arc::ptr_eq(other, &self.1));
        self.0.left.notify_one();
    }
}

fn talk(stream: &TcpStream, answer: &impl Fn(&str) -> Option<Response>) {
    let mut stream = Timed { stream, until: clock::now() + TALK };
    let response = match server::read_request(&mut stream) {
        Ok(request) if request.method != "GET" => Response::text(405, "use GET\n"),
        Ok(request) => answer(&request.path).unwrap_or_else(|| Response::text(404, "no such path\n")),
        Err(Unread::Refused(response)) => response,
        Err(Unread::Gone) => return,
    };
    // A peer that does not want its answer any more is no trouble of ours.
    let _ = server::write_response(&mut stream, &response);
}

/// A stream with one deadline for all that is read and written.
struct Timed<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Timed<'_> {
    fn left(&self) -> std::io::Result<Option<Duration>> {
        let left = clock::until(self.until);
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}
