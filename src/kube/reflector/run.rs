//! The thread of a reflector: lists in pages, watches from there, and starts over where that is needed.

use super::picture::{Audience, Picture};
use crate::kube::client::{Call, Client, Limits, RETRY, Verb, broken_answer};
use crate::kube::known::{End, Next};
use crate::kube::status::Failure;
use crate::kube::watch::{Lines, Patient, WatchEvent};
use crate::kube::{api, list, watch};
use crate::logging::Repeat;
use crate::metrics;
use crate::sys::backoff::Backoff;
use crate::sys::{clock, random, sync};
use serde::de::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A watch that lasted this long was a success: the next may begin at once.
const WORTHWHILE: Duration = Duration::from_secs(1);
/// Objects of a kind that are believed to exist; a cluster has ten thousand namespaces at most.
const MOST: usize = 100_000;
/// Pages in a row without any object that the list has not had before.
const IDLE_PAGES: usize = 8;
/// Time for a server whose watch is silent to show that it is there.
const PROOF_OF_LIFE: Duration = Duration::from_secs(10);
/// The longest that we stay away when the server asks us to.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

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
    /// When nothing was heard of the server for so long, that is told.
    pub patience: Duration,
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
            patience: Duration::from_secs(20),
        }
    }
}

/// A [`Resource`], as values.
pub(super) struct Collection {
    pub(super) path: &'static str,
    pub(super) name: &'static str,
    pub(super) accept_list: &'static str,
    pub(super) accept_watch: &'static str,
}

/// The thread of a reflector.
pub(super) struct Run {
    client: Client,
    options: Options,
    collection: Collection,
    picture: Arc<Mutex<Picture<dyn Audience>>>,
    listing: Trouble,
    watching: Trouble,
    lag: Lag,
}

impl Run {
    pub(super) fn new(
        client: Client,
        options: Options,
        collection: Collection,
        picture: Arc<Mutex<Picture<dyn Audience>>>,
    ) -> Self {
        let trouble = |verb: &str| Trouble::of(format!("{verb} {}", collection.name));
        let (listing, watching) = (trouble("list"), trouble("watch"));
        let lag = Lag { patience: options.patience, since: None, told: None };
        Run { client, options, collection, picture, listing, watching, lag }
    }

    /// Lists and watches until the client is closed.
    pub(super) fn run(mut self) {
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
                        self.lags(&failure.to_string());
                        self.client.wait(delay(&mut backoff, &failure));
                    }
                },
                Next::Watch { from } => {
                    let started = clock::now();
                    let (end, opened) = self.watch(&from);
                    let worthwhile = opened && clock::now().duration_since(started) >= WORTHWHILE;
                    if worthwhile {
                        backoff.reset();
                        self.lag.over();
                    }
                    let wait = match &end {
                        _ if self.client.is_closed() => return,
                        End::Closed if worthwhile => Duration::ZERO,
                        End::Closed => {
                            self.lags(&format!("watch {}: the server ends it at once", self.collection.name));
                            pause(&mut backoff)
                        }
                        End::Failed(failure) => {
                            self.watching.again(&failure.to_string(), &self.client);
                            self.lags(&failure.to_string());
                            delay(&mut backoff, failure)
                        }
                        End::Undecodable(what) => {
                            self.watching.again(what, &self.client);
                            self.lags(what);
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

    /// Notes that a request failed, and tells once that has gone on for long.
    fn lags(&mut self, why: &str) {
        if !self.client.is_closed() && self.lag.failed(why, clock::now()) {
            sync::lock(&self.picture).audience.lagging(Some(why.to_owned()));
        }
    }

    /// Lists everything, page by page. Fails half way if it must; what was told stays true or is corrected by the next.
    fn list(&mut self) -> std::result::Result<(), Failure> {
        let Run { client, options, collection, picture, .. } = self;
        sync::lock(picture).known.begin_list();
        let (mut next, mut listed, mut idle_pages) = (String::new(), 0, 0);
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
                match audience.decode(item) {
                    Ok((key, version)) => {
                        if known.listed(key, version) {
                            audience.upserted();
                        }
                    }
                    Err(e) => log::warn!("{}: an item is passed over, it is no object: {e}", call.title()),
                }
                if known.listed_so_far() > MOST {
                    return Err(serde_json::Error::custom(format_args!("more than {MOST} objects")));
                }
                Ok(())
            })
            .map_err(|e| broken_answer(&call.title(), &e))?;
            let so_far = sync::lock(picture).known.listed_so_far();
            idle_pages = if so_far > listed { 0 } else { idle_pages + 1 };
            listed = so_far;
            if idle_pages > IDLE_PAGES && !page.next.is_empty() {
                let why = format!("{IDLE_PAGES} pages in a row have nothing new, and it goes on");
                return Err(Failure::decode(&call.title(), why));
            }
            if page.next.is_empty() {
                let Picture { known, audience } = &mut *sync::lock(picture);
                if let Some((lost, all)) = known.doubt() {
                    let why = format!("{lost} of {all} objects are missing at once; another list is to confirm that");
                    return Err(Failure::decode(&call.title(), why));
                }
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
        if self.lag.opened() {
            sync::lock(&self.picture).audience.lagging(None);
        }
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
                Ok(None) => self.lag.over(),
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

/// Since when the server has not been followed.
struct Lag {
    /// Less is not worth telling.
    patience: Duration,
    since: Option<Instant>,
    /// What was told last, if that was not taken back.
    told: Option<String>,
}

impl Lag {
    /// A request failed. Returns whether that is to be told.
    fn failed(&mut self, why: &str, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        let tell = now.duration_since(since) >= self.patience && self.told.as_deref() != Some(why);
        if tell {
            self.told = Some(why.to_owned());
        }
        tell
    }

    /// A watch has begun; whether it lasts is not known yet. Returns whether something is to be taken back.
    fn opened(&mut self) -> bool {
        self.told.take().is_some()
    }

    /// A watch has lasted, or told something.
    fn over(&mut self) {
        self.since = None;
    }
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
