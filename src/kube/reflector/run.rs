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
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A watch that lasted this long was a success: the next may begin at once.
const WORTHWHILE: Duration = Duration::from_secs(1);
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
        Run { client, options, collection, picture, listing, watching }
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
