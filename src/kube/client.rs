//! Requests to the API server: one thread, one request, one answer, every step with a limit in time.

use super::access::Config;
use super::credentials::{Credentials, Generation};
use super::status::Failure;
use super::tls::TlsConnector;
use super::transport::{Names, Sockets, TcpConnector};
use crate::error::Result;
use crate::metrics;
use crate::sys::backoff::Backoff;
use crate::sys::{clock, random, sync};
use std::io::{Cursor, Read};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use ureq::http::{Method, Request, Response};
use ureq::unversioned::transport::{ConnectProxyConnector, Connector};
use ureq::{BodyReader, RequestExt, SendBody};

/// Time for a connection: TCP, proxy and TLS.
const CONNECT: Duration = Duration::from_secs(10);
/// First and longest delay between two tries of a request.
pub(super) const RETRY: (Duration, Duration) = (Duration::from_millis(800), Duration::from_secs(30));
/// How much of an answer that is no success is read, bytes.
const STATUS_LIMIT: u64 = 64 << 10;
/// Largest single object, bytes. etcd takes at most 1.5 MB, JSON of it may be somewhat longer.
pub(super) const OBJECT_LIMIT: u64 = 16 << 20;
/// Buffers of a connection, bytes. The output must hold the longest header: a token of some KiB.
const BUFFER: usize = 16 << 10;
const USER_AGENT: &str = concat!("ferrule/", env!("CARGO_PKG_VERSION"));

/// How long a caller waits for a request, retries included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Time for one try.
    pub per_try: Duration,
    /// No further try is begun after this long; zero means one try.
    pub total: Duration,
}

impl Patience {
    /// One try.
    pub const fn once(per_try: Duration) -> Self {
        Patience { per_try, total: Duration::ZERO }
    }

    /// Tries until `total` has passed.
    pub const fn within(total: Duration) -> Self {
        Patience { per_try: total, total }
    }
}

/// A client of the API server. Clones share the connections; threads may use it at the same time.
#[derive(Debug, Clone)]
pub struct Client {
    credentials: Arc<Credentials>,
    connections: Arc<Connections>,
}

#[derive(Debug, Default)]
struct Connections {
    sockets: Arc<Sockets>,
    /// Made again when the TLS settings change.
    agent: Mutex<Option<(Generation, ureq::Agent)>>,
}

/// What Kubernetes calls a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Get,
    List,
    Watch,
    Patch,
    Delete,
    Create,
}

impl Verb {
    fn name(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
            Verb::Create => "create",
        }
    }

    fn method(self) -> Method {
        match self {
            Verb::Get | Verb::List | Verb::Watch => Method::GET,
            Verb::Patch => Method::PATCH,
            Verb::Delete => Method::DELETE,
            Verb::Create => Method::POST,
        }
    }
}

/// One request, before it is sent.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) verb: Verb,
    /// Path and query, escaped.
    pub(super) path: String,
    /// What it is about, for messages: `pod team-a/web-0`.
    pub(super) subject: String,
    pub(super) accept: &'static str,
    /// Content type and body.
    pub(super) body: Option<(&'static str, Vec<u8>)>,
    pub(super) limits: Limits,
}

/// Time for one try.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Time until the answer's head.
    pub(super) head: Duration,
    /// Time until the answer's end.
    pub(super) whole: Duration,
    /// Time between two reads.
    pub(super) silence: Duration,
}

impl Limits {
    pub(super) fn all(time: Duration) -> Self {
        Limits { head: time, whole: time, silence: time }
    }
}

impl Call {
    /// Verb and resource, for messages.
    pub(super) fn title(&self) -> String {
        format!("{} {}", self.verb.name(), self.subject)
    }
}

impl Client {
    /// A client; nothing is read or connected yet.
    pub fn new(config: Config) -> Self {
        Client { credentials: Arc::new(Credentials::new(config)), connections: Arc::default() }
    }

    /// A client with the same credentials and connections of its own: closing one leaves the other.
    #[must_use]
    pub fn sibling(&self) -> Self {
        Client { credentials: self.credentials.clone(), connections: Arc::default() }
    }

    /// Ends every request of this client and its clones at once, blocked reads included; later ones fail.
    pub fn close(&self) {
        self.connections.sockets.close();
    }

    /// Whether [`Client::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.connections.sockets.is_closed()
    }

    /// The server's address, for messages.
    pub fn server(&self) -> &str {
        self.credentials.config().server()
    }

    /// Waits between two requests, or less when closed; returns whether it was closed.
    pub(super) fn wait(&self, time: Duration) -> bool {
        self.connections.sockets.wait(time)
    }

    /// Sends a request, again where that is harmless and may help, and returns the text of the answer.
    pub(super) fn ask(&self, mut call: Call, patience: Patience) -> Result<String> {
        let (started, mut backoff) = (clock::now(), Backoff::new(RETRY.0, RETRY.1));
        call.limits = Limits::all(patience.per_try);
        loop {
            let failure = match self.send(&call).and_then(|body| text(&call, body)) {
                Ok(text) => return Ok(text),
                Err(failure) => failure,
            };
            let again = match call.verb {
                Verb::Get | Verb::List | Verb::Watch => failure.may_pass(),
                // A merge patch sets what it sets, however often it is sent.
                Verb::Patch => failure.may_pass() || failure.status == Some(409),
                Verb::Delete | Verb::Create => failure.was_turned_away(),
            };
            let now = clock::now();
            let delay = failure.retry_after.unwrap_or_default().max(backoff.failed(now, random::fraction()) - now);
            let left = patience.total.saturating_sub(now.duration_since(started));
            if !again || delay >= left || self.wait(delay) {
                return Err(failure.into());
            }
            log::debug!(error:% = failure; "asking the API server again");
            call.limits = Limits::all(patience.per_try.min(left - delay));
        }
    }

    /// Sends a request once (twice if the token was refused) and returns the body of the answer, if that is a success.
    pub(super) fn send(&self, call: &Call) -> std::result::Result<BodyReader<'static>, Failure> {
        match self.send_with(call, false) {
            Err(refused) if refused.status == Some(401) && self.credentials.config().token.is_some() => {
                self.send_with(call, true)
            }
            other => other,
        }
    }

    fn send_with(&self, call: &Call, fresh_token: bool) -> std::result::Result<BodyReader<'static>, Failure> {
        let title = call.title();
        let local = |e: crate::error::Error| Failure::transport(&title, e);
        let authorization = self.credentials.authorization(fresh_token).map_err(local)?;
        let agent = self.agent().map_err(local)?;
        let started = clock::now();
        let answer = self.exchange(&agent, call, authorization).map_err(|e| Failure::transport(&title, e))?;
        // Until the head of the answer: how long a watch lasts says nothing about the server.
        metrics::API_REQUEST_SECONDS.observe([call.verb.name()], clock::now().duration_since(started));
        let (status, retry_after) = (answer.status(), retry_after(&answer));
        let body = answer.into_body().into_with_config();
        if status.is_success() {
            return Ok(body.limit(u64::MAX).reader());
        }
        let mut text = Vec::new();
        // What could be read of the reason is better than none.
        let _ = body.limit(u64::MAX).reader().take(STATUS_LIMIT).read_to_end(&mut text);
        let mut failure = Failure::status(&title, status.as_u16(), &String::from_utf8_lossy(&text));
        failure.status = Some(status.as_u16());
        failure.retry_after = retry_after.or(failure.retry_after);
        Err(failure)
    }

    fn exchange(
        &self,
        agent: &ureq::Agent,
        call: &Call,
        authorization: Option<String>,
    ) -> std::result::Result<Response<ureq::Body>, ureq::Error> {
        let uri = format!("{}{}", self.credentials.config().server, call.path);
        let mut request = Request::builder().method(call.verb.method()).uri(uri).header("accept", call.accept);
        if let Some(value) = authorization {
            request = request.header("authorization", value);
        }
        let body = match &call.body {
            None => SendBody::none(),
            Some((content_type, bytes)) => {
                request = request.header("content-type", *content_type).header("content-length", bytes.len());
                SendBody::from_owned_reader(Cursor::new(bytes.clone()))
            }
        };
        let Limits { head, whole, silence } = call.limits;
        let request = request.body(body)?;
        let request = request.with_agent(agent).configure();
        let request = request
            .timeout_global(Some(whole))
            .timeout_connect(Some(CONNECT.min(whole)))
            .timeout_recv_response(Some(head))
            .timeout_per_read(Some(silence))
            .timeout_per_write(Some(silence));
        request.build().run()
    }

    /// The HTTP agent for today's TLS settings. One for older settings ends with its last request.
    fn agent(&self) -> Result<ureq::Agent> {
        let (generation, tls) = self.credentials.tls()?;
        let mut slot = sync::lock(&self.connections.agent);
        if let Some((made_for, agent)) = &*slot
            && *made_for == generation
        {
            return Ok(agent.clone());
        }
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(self.credentials.config().proxy.clone())
            .user_agent(USER_AGENT)
            .input_buffer_size(BUFFER)
            .output_buffer_size(BUFFER)
            .max_idle_connections(2)
            .max_idle_connections_per_host(2)
            .max_idle_age(Duration::from_secs(60))
            .build();
        let sockets = &self.connections.sockets;
        let connector =
            ().chain(ConnectProxyConnector::default()).chain(TcpConnector(sockets.clone())).chain(TlsConnector(tls));
        let agent = ureq::Agent::with_parts(config, connector, Names(sockets.clone()));
        *slot = Some((generation, agent.clone()));
        Ok(agent)
    }
}

/// The whole of an answer, read to its end or the connection could not be used again.
fn text(call: &Call, body: BodyReader<'static>) -> std::result::Result<String, Failure> {
    let mut text = String::new();
    match body.take(OBJECT_LIMIT).read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(e) => Err(Failure::transport(&call.title(), e)),
    }
}

/// An answer that broke off is a matter of the transport; one that is whole and makes no sense is not.
pub(super) fn broken_answer(title: &str, error: &serde_json::Error) -> Failure {
    if error.is_io() || error.is_eof() { Failure::transport(title, error) } else { Failure::decode(title, error) }
}

/// `Retry-After` in seconds; a date, which no API server sends, is ignored.
fn retry_after(answer: &Response<ureq::Body>) -> Option<Duration> {
    let value = answer.headers().get("retry-after")?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}
