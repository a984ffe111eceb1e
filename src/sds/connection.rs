//! One connection of a client to the SDS socket.

use super::resource::Resource;
use super::store::{Encoded, Inbox, Store};
use super::watch::{Asked, Watch};
use super::wire::{self, Any, DiscoveryResponse, SECRET_TYPE};
use crate::error::{Error, Kind, Result};
use crate::grpc::{self, Code, Incoming, Received, Request, Status};
use crate::h2::{self, Deadlines, Endpoint, Event, StreamId};
use crate::sys::clock;
use prost::Message;
use std::collections::{BTreeMap, HashMap};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How the socket is served.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where it is; relative to the working directory, as Envoy's configuration names it.
    pub socket: PathBuf,
    /// How long a stream waits for a secret of an authority before it ends with the reason.
    pub patience: Duration,
    /// How long it waits for a secret in files.
    pub file_patience: Duration,
}

impl Options {
    /// With the times that are usual.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Options { socket: socket.into(), patience: Duration::from_secs(30), file_patience: Duration::from_secs(10) }
    }
}

/// Largest request, bytes; an Envoy describes itself in the first one.
const LIMIT: usize = 4 << 20;
/// A look whether to end.
const LOOK: Duration = Duration::from_secs(10);

/// The shortest pause while a stream has waited long enough.
const SHORTEST: Duration = Duration::from_millis(10);

/// Number of answers of this process.
static ANSWERS: AtomicU64 = AtomicU64::new(0);

pub(super) struct Connection {
    endpoint: Endpoint,
    store: Arc<Store>,
    inbox: Inbox,
    options: Options,
    streams: HashMap<StreamId, Stream>,
}

struct Stream {
    incoming: Incoming,
    watch: Watch,
    /// Names to answer, each since when.
    pending: BTreeMap<String, Pending>,
    /// What was sent last of each name.
    sent: HashMap<String, Encoded>,
}

#[derive(Clone, Copy)]
struct Pending {
    since: Instant,
    /// The client asked: it gets an answer even if it has this one.
    asked: bool,
}

impl Connection {
    pub(super) fn new(socket: UnixStream, store: Arc<Store>, options: Options) -> Result<Self> {
        let endpoint = Endpoint::server(socket, &h2::Options::default(), Deadlines::default())?;
        let inbox = store.connection()?;
        Ok(Connection { endpoint, store, inbox, options, streams: HashMap::new() })
    }

    /// Serves until the client is gone.
    pub(super) fn serve(mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let wait = self.next_deadline().map_or(LOOK, |due| clock::until(due).min(LOOK));
            let rang = match h2::wait(&mut [&mut self.endpoint], Some(self.inbox.wakeup()), wait) {
                Ok(rang) => rang,
                Err(e) => {
                    log::warn!(error:% = e; "an SDS connection ends");
                    break;
                }
            };
            while let Some(event) = self.endpoint.event() {
                self.handle(event);
            }
            if rang {
                self.changed();
            }
            self.answer_all();
            if let Some(failure) = self.endpoint.failure() {
                if failure.kind() != Kind::PeerGone {
                    log::warn!(error:% = failure; "an SDS connection ends");
                }
                break;
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Headers(id, headers) => {
                match Request::read(headers) {
                    Ok(request) => self.begin(id, &request.path),
                    Err(answer) => self.endpoint.answer(id, &answer, true),
                }
                self.receive(id);
            }
            Event::Readable(id) => self.receive(id),
            Event::Reset(id, _) => self.forget(id),
            Event::Writable(_) | Event::GoAway(..) | Event::Pong(_) => {}
        }
    }

    fn begin(&mut self, id: StreamId, path: &str) {
        let refusal = match path {
            wire::STREAM_SECRETS => {
                let incoming = Incoming::requests(id, LIMIT);
                let (watch, pending, sent) = Default::default();
                self.streams.insert(id, Stream { incoming, watch, pending, sent });
                return;
            }
            wire::DELTA_SECRETS => "DeltaSecrets not implemented".to_owned(),
            wire::FETCH_SECRETS => "FetchSecrets not implemented".to_owned(),
            path => format!("unknown method {path}"),
        };
        grpc::finish(&mut self.endpoint, id, &Status::new(Code::Unimplemented, refusal));
    }

    fn receive(&mut self, id: StreamId) {
        while let Some(stream) = self.streams.get_mut(&id) {
            match stream.incoming.receive(&mut self.endpoint) {
                Received::Nothing => return,
                Received::End(status) => return self.finish(id, &status),
                Received::Message(message) => {
                    let asked = wire::decode_request(&message.to_vec()).and_then(|request| self.ask(id, request));
                    if let Err(e) = asked {
                        return self.finish(id, &Status::new(Code::InvalidArgument, e));
                    }
                }
            }
        }
    }

    /// Takes a request of a stream.
    fn ask(&mut self, id: StreamId, request: wire::DiscoveryRequest) -> Result<()> {
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        let before = stream.watch.names().to_vec();
        match stream.watch.ask(request)? {
            Asked::Answer(names) => {
                let pending = Pending { since: clock::now(), asked: true };
                stream.pending.extend(names.into_iter().map(|name| (name, pending)));
            }
            Asked::Refused { code, message } => {
                log::warn!(code, message, names = before.join(" "); "Envoy does not accept a secret");
            }
            Asked::Skipped => log::warn!("a health report came on the SDS socket; it is passed over"),
            Asked::Nothing => {}
        }
        let after = stream.watch.names();
        stream.pending.retain(|name, _| after.contains(name));
        stream.sent.retain(|name, _| after.contains(name));
        after.iter().filter(|name| !before.contains(name)).for_each(|name| self.store.want(name));
        before.iter().filter(|name| !after.contains(name)).for_each(|name| unwant(&self.store, name));
        Ok(())
    }

    /// Secrets have changed, or those that are waited for have failed.
    fn changed(&mut self) {
        for name in self.inbox.take() {
            for stream in self.streams.values_mut().filter(|stream| stream.watch.names().contains(&name)) {
                let pending = Pending { since: clock::now(), asked: false };
                stream.pending.entry(name.clone()).or_insert(pending);
            }
        }
    }

    fn answer_all(&mut self) {
        let waiting: Vec<_> = self.streams.iter().filter(|(_, s)| !s.pending.is_empty()).map(|(id, _)| *id).collect();
        for id in self.in_order(waiting) {
            self.answer(id);
        }
    }

    /// Streams in the order in which a change is told: roots first, so that who gets a new certificate knows already
    /// whom it is from.
    fn in_order(&self, mut ids: Vec<StreamId>) -> Vec<StreamId> {
        let has_roots = |id: &StreamId| {
            self.streams.get(id).is_some_and(|stream| stream.pending.contains_key(super::resource::ROOTS))
        };
        ids.sort_by_key(|id| (!has_roots(id), *id));
        ids
    }

    /// Sends what is known of what a stream waits for.
    fn answer(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if !self.endpoint.has_room(id) {
            return;
        }
        let (mut resources, mut failure) = (Vec::new(), None);
        stream.pending.retain(|name, pending| {
            let known = self.store.look(name);
            let Some(secret) = known.secret else {
                let over = pending.since.elapsed() >= patience(&self.options, name);
                match Resource::parse(name) {
                    Err(e) => failure = Some((name.clone(), e)),
                    Ok(_) if over => {
                        let why = known.failure.as_deref().unwrap_or("nothing was heard of it in time");
                        failure = Some((name.clone(), Error::new(why)));
                    }
                    Ok(_) => {}
                }
                return true;
            };
            let again = stream.sent.get(name).is_some_and(|sent| ***sent == **secret);
            if pending.asked || !again {
                resources.push(Any { type_url: SECRET_TYPE.to_owned(), value: secret.to_vec() });
                stream.sent.insert(name.clone(), secret);
            }
            false
        });
        if let Some((name, cause)) = failure {
            let text = format_args!("failed to generate secret for {name}: {cause}");
            log::warn!("{text}");
            return self.finish(id, &Status::new(Code::Unknown, text));
        }
        if resources.is_empty() {
            return;
        }
        let number = ANSWERS.fetch_add(1, Ordering::Relaxed) + 1;
        let time = clock::rfc3339(clock::wall());
        let seconds = time.split_once('.').map_or(time.as_str(), |(seconds, _)| seconds);
        let nonce = format!("{seconds}Z-{number}");
        let mut response = DiscoveryResponse {
            version_info: format!("{seconds}Z/{number}"),
            resources,
            type_url: SECRET_TYPE.to_owned(),
            nonce: nonce.clone(),
        };
        // Does nothing from the second answer on.
        self.endpoint.answer(id, &grpc::answer(), false);
        self.endpoint.send(id, grpc::encode(&response.encode_to_vec()));
        response.resources.iter_mut().for_each(|any| zeroize::Zeroize::zeroize(&mut any.value));
        stream.watch.answered(nonce);
    }

    /// When the first stream has waited long enough.
    fn next_deadline(&self) -> Option<Instant> {
        let pending = self.streams.values().flat_map(|stream| &stream.pending);
        let due = pending.map(|(name, pending)| pending.since + patience(&self.options, name)).min()?;
        // A stream without room for its answer must not make the loop a busy one.
        Some(due.max(clock::now() + SHORTEST))
    }

    fn finish(&mut self, id: StreamId, status: &Status) {
        grpc::finish(&mut self.endpoint, id, status);
        self.forget(id);
    }

    fn forget(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.remove(&id) {
            stream.watch.names().iter().for_each(|name| unwant(&self.store, name));
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let names = self.streams.values().flat_map(|stream| stream.watch.names());
        names.for_each(|name| unwant(&self.store, name));
    }
}

fn patience(options: &Options, name: &str) -> Duration {
    match Resource::parse(name) {
        Ok(Resource::Workload | Resource::Roots) => options.patience,
        Ok(_) => options.file_patience,
        Err(_) => Duration::ZERO,
    }
}

fn unwant(store: &Store, name: &str) {
    let lasting = matches!(Resource::parse(name), Ok(Resource::Workload | Resource::Roots));
    store.unwant(name, !lasting);
}
