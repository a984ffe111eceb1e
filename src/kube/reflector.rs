//! Keeps a caller's picture of one kind of object true: list, then watch, for ever.
//!
//! A thread of its own lists in pages, watches from there, and starts over where that is needed; what follows from what
//! it hears is decided in [`super::known`]. The caller gets every object that is new or changed and the key of every one
//! that is gone, also of those that changed while nobody watched. Objects themselves are not kept.

use super::client::{Call, Client, Limits, RETRY, Verb, broken_answer};
use super::known::{End, Known, Next};
use super::status::Failure;
use super::watch::{Lines, Patient, WatchEvent};
use super::{api, list, watch};
use crate::error::Result;
use crate::logging::Repeat;
use crate::metrics;
use crate::pod::object::Versioned;
use crate::pod::types::{Namespace, Pod};
use crate::sys::backoff::Backoff;
use crate::sys::{clock, random, sync, thread};
use serde::de::DeserializeOwned;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A watch that lasted this long was a success: the next may begin at once.
const WORTHWHILE: Duration = Duration::from_secs(1);
/// For a server whose watch is silent to show that it is there.
const PROOF_OF_LIFE: Duration = Duration::from_secs(10);
/// However long the server asks us to stay away.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// What the caller hears, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice<T> {
    /// An object is new or changed.
    Upserted(Versioned<T>),
    /// An object is gone: its key ([`Resource::key`]).
    Removed(String),
    /// The first list is whole.
    Synced,
}

/// A kind of object that can be reflected.
pub trait Resource: Sized + Send + 'static {
    /// Path of the collection.
    const PATH: &'static str;
    /// Its name in messages.
    const NAME: &'static str;
    /// `Accept` of a list.
    const ACCEPT_LIST: &'static str;
    /// `Accept` of a watch.
    const ACCEPT_WATCH: &'static str;
    /// What an object is known by for as long as it is the same thing to us.
    fn key(&self) -> &str;
}

/// Known by its uid: another pod may take its name.
impl Resource for Pod {
    const PATH: &'static str = "/api/v1/pods";
    const NAME: &'static str = "pods";
    const ACCEPT_LIST: &'static str = api::JSON;
    const ACCEPT_WATCH: &'static str = api::JSON;
    fn key(&self) -> &str {
        &self.uid
    }
}

/// Known by its name, under which its pods refer to it.
impl Resource for Namespace {
    const PATH: &'static str = "/api/v1/namespaces";
    const NAME: &'static str = "namespaces";
    const ACCEPT_LIST: &'static str =
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
    const ACCEPT_WATCH: &'static str = api::METADATA;
    fn key(&self) -> &str {
        &self.name
    }
}

/// Which objects, and how patiently.
#[derive(Debug, Clone)]
pub struct Options {
    /// `fieldSelector`, or empty: `spec.nodeName=NODE`.
    pub field_selector: String,
    /// `labelSelector`, or empty.
    pub label_selector: String,
    /// Items of one page of a list.
    pub page: u32,
    /// Time for a page, and for a watch to begin.
    pub request: Duration,
    /// When a watch has said nothing for so long the server is asked whether it is there; after twice as long the watch
    /// is given up. The server sends a bookmark about each minute, so less than that would end healthy watches, and just
    /// before the bookmark that keeps their version fresh. A dead connection is noticed by the kernel, which probes it.
    pub silence: Duration,
    /// Shortest and longest delay after failures.
    pub retry: (Duration, Duration),
}

impl Default for Options {
    fn default() -> Self {
        Options {
            field_selector: String::new(),
            label_selector: String::new(),
            page: 500,
            request: Duration::from_secs(30),
            silence: Duration::from_secs(38),
            retry: RETRY,
        }
    }
}

/// A running reflector.
pub struct Reflector<T> {
    client: Client,
    picture: Arc<Mutex<Picture<Teller<T>>>>,
    thread: Option<JoinHandle<()>>,
}

/// What is known, and who is told of news. One lock, so that news are told in the order in which they became known.
struct Picture<A: ?Sized> {
    known: Known,
    audience: A,
}

impl<T: Resource> Reflector<T>
where
    Versioned<T>: DeserializeOwned,
{
    /// Starts; every notice goes to `notify`, which nobody calls twice at a time and which must not block.
    pub fn start(client: &Client, options: Options, notify: impl FnMut(Notice<T>) + Send + 'static) -> Result<Self> {
        let client = client.sibling();
        let audience = Teller { decoded: None, notify: Box::new(notify) };
        let picture = Arc::new(Mutex::new(Picture { known: Known::default(), audience }));
        let run = Run {
            client: client.clone(),
            options,
            collection: Collection {
                path: T::PATH,
                name: T::NAME,
                accept_list: T::ACCEPT_LIST,
                accept_watch: T::ACCEPT_WATCH,
            },
            picture: picture.clone(),
            listing: Trouble::of(format!("list {}", T::NAME)),
            watching: Trouble::of(format!("watch {}", T::NAME)),
        };
        let thread = thread::spawn(&format!("kube-{}", T::NAME), move || run.run())?;
        Ok(Reflector { client, picture, thread: Some(thread) })
    }

    /// Takes an object that was asked for directly, unless a newer version of it, or its end, is known. From here on it
    /// is one of those that are watched: its end will be told.
    pub fn introduce(&self, item: Versioned<T>) {
        let Picture { known, audience } = &mut *sync::lock(&self.picture);
        if known.introduced(item.object.key(), &item.version) {
            (audience.notify)(Notice::Upserted(item));
        }
    }
}

impl<T> Reflector<T> {
    /// Stops at once, a blocked read included, and waits for the thread.
    pub fn stop(mut self) {
        self.client.close();
        if let Some(thread) = self.thread.take() {
            // A panic ended the process already.
            let _ = thread.join();
        }
    }
}

impl<T> Drop for Reflector<T> {
    fn drop(&mut self) {
        self.client.close();
    }
}

impl<T> std::fmt::Debug for Reflector<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reflector").field("client", &self.client).finish_non_exhaustive()
    }
}

/// What a reflector asks of the code for its kind of object.
trait Audience: Send {
    /// Decodes an object and holds it; its key and version.
    fn decode(&mut self, json: &str) -> std::result::Result<(&str, &str), serde_json::Error>;
    /// Tells of the object that was decoded last.
    fn upserted(&mut self);
    /// Tells that there is no object of this key any more.
    fn removed(&mut self, key: String);
    /// Tells that the first list is whole.
    fn synced(&mut self);
}

struct Teller<T> {
    decoded: Option<Versioned<T>>,
    notify: Box<dyn FnMut(Notice<T>) + Send>,
}

impl<T: Resource> Audience for Teller<T>
where
    Versioned<T>: DeserializeOwned,
{
    fn decode(&mut self, json: &str) -> std::result::Result<(&str, &str), serde_json::Error> {
        let item = self.decoded.insert(serde_json::from_str(json)?);
        Ok((item.object.key(), &item.version))
    }

    fn upserted(&mut self) {
        if let Some(item) = self.decoded.take() {
            (self.notify)(Notice::Upserted(item));
        }
    }

    fn removed(&mut self, key: String) {
        (self.notify)(Notice::Removed(key));
    }

    fn synced(&mut self) {
        (self.notify)(Notice::Synced);
    }
}

/// A [`Resource`], as values.
struct Collection {
    path: &'static str,
    name: &'static str,
    accept_list: &'static str,
    accept_watch: &'static str,
}

struct Run {
    client: Client,
    options: Options,
    collection: Collection,
    picture: Arc<Mutex<Picture<dyn Audience>>>,
    listing: Trouble,
    watching: Trouble,
}

impl Run {
    fn run(mut self) {
        let mut backoff = Backoff::new(self.options.retry.0, self.options.retry.1);
        let (mut next, mut synced) = (Next::List, false);
        while !self.client.is_closed() {
            match next {
                Next::List => match self.list() {
                    Ok(()) => {
                        self.listing.over();
                        if !std::mem::replace(&mut synced, true) {
                            sync::lock(&self.picture).audience.synced();
                        }
                    }
                    Err(failure) => {
                        self.listing.again(&failure.to_string(), &self.client);
                        self.client.wait(delay(&mut backoff, &failure));
                    }
                },
                Next::Watch { from } => {
                    let started = clock::now();
                    let (end, opened) = self.watch(&from);
                    let worthwhile = opened && clock::now().duration_since(started) >= WORTHWHILE;
                    if worthwhile {
                        backoff.reset();
                    }
                    let wait = match &end {
                        _ if self.client.is_closed() => return,
                        End::Closed if worthwhile => Duration::ZERO,
                        End::Closed => pause(&mut backoff),
                        End::Failed(failure) => {
                            self.watching.again(&failure.to_string(), &self.client);
                            delay(&mut backoff, failure)
                        }
                        End::Undecodable(what) => {
                            self.watching.again(what, &self.client);
                            pause(&mut backoff)
                        }
                    };
                    if sync::lock(&self.picture).known.after_watch(&end) == Next::List {
                        metrics::WATCH_RESTARTS.inc([self.collection.name]);
                    }
                    log::debug!(end:?; "watch {} ended", self.collection.name);
                    self.client.wait(wait);
                }
            }
            next = sync::lock(&self.picture).known.after_list();
        }
    }

    /// Lists everything, page by page. Fails half way if it must; what was told stays true or is corrected by the next.
    fn list(&mut self) -> std::result::Result<(), Failure> {
        let Run { client, options, collection, picture, .. } = self;
        sync::lock(picture).known.begin_list();
        let mut next = String::new();
        loop {
            let mut path = format!("{}?limit={}{}", collection.path, options.page, options.selectors());
            if !next.is_empty() {
                path += &format!("&continue={}", api::escape(&next));
            }
            let limits = Limits { head: options.request, whole: options.request * 2, silence: options.request };
            let (verb, subject, accept) = (Verb::List, collection.name.to_owned(), collection.accept_list);
            let call = Call { verb, path, subject, accept, body: None, limits };
            let mut body = client.send(&call)?;
            let page = list::read(&mut body, &mut |item| {
                let Picture { known, audience } = &mut *sync::lock(picture);
                let (key, version) = audience.decode(item)?;
                if known.listed(key, version) {
                    audience.upserted();
                }
                Ok(())
            })
            .map_err(|e| broken_answer(&call.title(), &e))?;
            if page.next.is_empty() {
                let Picture { known, audience } = &mut *sync::lock(picture);
                for key in known.end_list(page.resource_version) {
                    audience.removed(key);
                }
                return Ok(());
            }
            next = page.next;
        }
    }

    /// Watches until the watch ends. Returns how, and whether it had begun.
    fn watch(&mut self, from: &str) -> (End, bool) {
        let seconds = 300 + random::below(301);
        let path = format!(
            "{}?watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={}{}",
            self.collection.path,
            api::escape(from),
            self.options.selectors(),
        );
        let Options { request, silence, .. } = self.options;
        // Longer than the server was asked to keep it, or a watch that only drips would never end.
        let limits = Limits { head: request, whole: Duration::from_secs(u64::from(seconds)) + request, silence };
        let (verb, subject, accept) = (Verb::Watch, self.collection.name.to_owned(), self.collection.accept_watch);
        let call = Call { verb, path, subject, accept, body: None, limits };
        let title = call.title();
        let body = match self.client.send(&call) {
            Ok(body) => body,
            Err(failure) => return (End::Failed(failure), false),
        };
        let client = self.client.clone();
        let (mut lines, opened) = (Lines::new(Patient::new(body, move || is_there(&client, request))), clock::now());
        let end = loop {
            let line = match lines.next_line() {
                Ok(Some(line)) => line,
                Ok(None) => break End::Closed,
                Err(e) => break End::Failed(Failure::transport(&title, e)),
            };
            if clock::now().duration_since(opened) >= WORTHWHILE {
                self.watching.over();
            }
            match watch::decode(&title, line).and_then(|event| self.take(event)) {
                Ok(None) => {}
                Ok(Some(failure)) => break End::Failed(failure),
                Err(e) => break End::Undecodable(format!("{title}: bad event: {e}")),
            }
        };
        (end, true)
    }

    /// Takes an event; gives back what the server says is wrong, if it is that.
    fn take(&mut self, event: WatchEvent<'_>) -> std::result::Result<Option<Failure>, serde_json::Error> {
        let Picture { known, audience } = &mut *sync::lock(&self.picture);
        match event {
            WatchEvent::Upserted(json) => {
                let (key, version) = audience.decode(json)?;
                if known.upserted(key, version) {
                    audience.upserted();
                }
            }
            WatchEvent::Deleted(json) => {
                let (key, version) = audience.decode(json)?;
                if known.deleted(key, version) {
                    let key = key.to_owned();
                    audience.removed(key);
                }
            }
            WatchEvent::Bookmark(version) => known.bookmark(&version),
            WatchEvent::Error(failure) => return Ok(Some(failure)),
        }
        Ok(None)
    }
}

impl Options {
    /// The selectors as the end of a query.
    fn selectors(&self) -> String {
        let mut query = String::new();
        for (key, selector) in [("fieldSelector", &self.field_selector), ("labelSelector", &self.label_selector)] {
            if !selector.is_empty() {
                query += &format!("&{key}={}", api::escape(selector));
            }
        }
        query
    }
}

/// Whether the server answers at all, whatever it says.
fn is_there(client: &Client, time: Duration) -> bool {
    let call = Call {
        verb: Verb::Get,
        path: "/version".to_owned(),
        subject: "the server's version".to_owned(),
        accept: api::JSON,
        body: None,
        limits: Limits::all(time.min(PROOF_OF_LIFE)),
    };
    client.send(&call).map_or_else(|failure| failure.status.is_some(), |_| true)
}

fn delay(backoff: &mut Backoff, failure: &Failure) -> Duration {
    failure.retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER).max(pause(backoff))
}

fn pause(backoff: &mut Backoff) -> Duration {
    let now = clock::now();
    backoff.failed(now, random::fraction()) - now
}

/// Says what is wrong with a request once per cause, and when it is over.
struct Trouble {
    /// Verb and resource.
    request: String,
    failing: Repeat,
}

impl Trouble {
    fn of(request: String) -> Self {
        Trouble { request, failing: Repeat::once() }
    }

    fn again(&mut self, cause: &str, client: &Client) {
        if client.is_closed() {
            return;
        }
        match self.failing.failed(cause, clock::now()) {
            Some(_) => log::warn!(server = client.server(); "{cause}; trying again"),
            None => log::debug!("{cause}"),
        }
    }

    fn over(&mut self) {
        if let Some(past) = self.failing.worked(clock::now()) {
            log::warn!(failures = past.times; "{}: works again", self.request);
        }
    }
}
