//! The one who has the workload's certificate signed, and renews it in time.
//!
//! A new certificate is obtained first, and then takes the place of the old one: while the authority is away, the old
//! one serves until it expires. There is one request at a time, whoever waits for its result.

use crate::certificate::csr;
use crate::certificate::issued::Issued;
use crate::certificate::key::{Algorithm, Form, PrivateKey};
use crate::certificate::renewal::{self, Grace};
use crate::error::{Context, Error, Result};
use crate::metrics;
use crate::sys::sync::{lock, wait_while};
use crate::sys::{clock, random, thread};
use ring::rand::SystemRandom;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Signs requests.
pub trait Authority: Send {
    /// Has a request (PEM) signed for about this lifetime; returns the answer's elements, each PEM: leaf, intermediates,
    /// roots. Every wait in it is bounded.
    fn sign(&mut self, csr: &str, lifetime: Duration) -> Result<Vec<String>>;
}

/// What is asked for, and when.
#[derive(Debug, Clone)]
pub struct Options {
    /// Who the workload is.
    pub identity: String,
    /// What key is made.
    pub algorithm: Algorithm,
    /// How it is written (`PKCS8_KEY`).
    pub form: Form,
    /// The lifetime that is asked for (`SECRET_TTL`).
    pub lifetime: Duration,
    /// When it is renewed.
    pub grace: Grace,
}

/// What happened.
#[derive(Debug)]
pub enum Notice {
    /// There is a new certificate.
    Issued(Arc<Issued>),
    /// It could not be had; it is tried again.
    Failed {
        /// Why.
        error: Error,
        /// How long the certificate that there is remains valid.
        left: Option<Duration>,
    },
}

/// No two requests begin closer together than this, whatever the grace ratio.
const CLOSEST: Duration = Duration::from_secs(1);
/// The wall clock is looked at this often: a machine that was asleep has missed time that a timer does not count.
const LOOK: Duration = Duration::from_secs(60);
/// Pauses between tries while there is no certificate: from the first to the last, half as long again each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// The running renewer. Dropping it stops it, after the request that is under way.
pub struct Renewer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    wish: Mutex<Wish>,
    changed: Condvar,
}

/// What others want of the renewer.
#[derive(Default)]
struct Wish {
    stop: bool,
    /// Renew at this time, though it need not be yet.
    renew_at: Option<Instant>,
}

impl Renewer {
    /// Starts; the first request is made at once. `tell` is called from the renewer's thread.
    pub fn start(
        options: Options,
        authority: impl Authority + 'static,
        tell: impl FnMut(Notice) + Send + 'static,
    ) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut work = Work { options, authority, shared: shared.clone(), current: None, failures: 0 };
        let thread = thread::spawn("renewer", move || work.run(tell))?;
        Ok(Renewer { shared, thread: Some(thread) })
    }

    /// Renews after `delay`, though it need not be yet: the roots of the mesh have changed.
    pub fn renew_after(&self, delay: Duration) {
        let mut wish = lock(&self.shared.wish);
        let at = clock::now() + delay;
        wish.renew_at = Some(wish.renew_at.map_or(at, |earlier| earlier.min(at)));
        self.shared.changed.notify_all();
    }
}

impl Drop for Renewer {
    fn drop(&mut self) {
        lock(&self.shared.wish).stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Work<A> {
    options: Options,
    authority: A,
    shared: Arc<Shared>,
    current: Option<Current>,
    /// In a row.
    failures: u32,
}

struct Current {
    issued: Arc<Issued>,
    renew_at: SystemTime,
}

impl<A: Authority> Work<A> {
    fn run(&mut self, mut tell: impl FnMut(Notice)) {
        loop {
            let begin = clock::now();
            let result = self.request();
            let pause = match result {
                Ok(issued) => {
                    self.failures = 0;
                    let issued = Arc::new(issued);
                    let spread = random::fraction() * 2.0 - 1.0;
                    let renew_at = self.options.grace.renewal(issued.received(), issued.expires(), spread);
                    self.current = Some(Current { issued: issued.clone(), renew_at });
                    tell(Notice::Issued(issued));
                    None
                }
                Err(error) => {
                    self.failures = self.failures.saturating_add(1);
                    let left = self.left();
                    tell(Notice::Failed { error, left });
                    Some(self.pause(left))
                }
            };
            if !self.wait(begin, pause) {
                return;
            }
        }
    }

    /// Makes a key and has it signed.
    fn request(&mut self) -> Result<Issued> {
        let (random, options) = (SystemRandom::new(), &self.options);
        let key = PrivateKey::generate(options.algorithm, &random)?;
        let csr = csr::request(&key, &options.identity, &random)?;
        metrics::CSR_REQUESTS.inc(["csr"]);
        let begin = clock::now();
        let signed = self.authority.sign(&csr, options.lifetime);
        metrics::CSR_LATENCY.add(["csr"], begin.elapsed().as_millis() as u64);
        let issued = signed.and_then(|elements| Issued::take(&elements, &key, options.form, clock::wall()));
        if issued.is_err() {
            metrics::CSR_FAILURES.inc(["csr"]);
        }
        let issued = issued.context("create certificate")?;
        for error in issued.refused() {
            log::warn!(error:% = error; "a part of the authority's answer is left out");
        }
        if !issued.leaf().uris().contains(&options.identity) {
            let found = issued.leaf().uris().join(", ");
            log::warn!(asked:% = options.identity, found; "the certificate is for another identity than was asked for");
        }
        let ttl = issued.expires().duration_since(issued.received()).unwrap_or_default();
        log::info!(latency:? = begin.elapsed(), ttl:? = ttl; "generated new workload certificate");
        Ok(issued)
    }

    /// How long the certificate that there is remains valid.
    fn left(&self) -> Option<Duration> {
        let expires = self.current.as_ref()?.issued.expires();
        expires.duration_since(clock::wall()).ok()
    }

    fn pause(&self, left: Option<Duration>) -> Duration {
        let spread = 0.5 + random::fraction();
        match left {
            Some(left) => renewal::retry_delay(self.failures, left),
            None => {
                let exponent = i32::try_from(self.failures.saturating_sub(1)).unwrap_or(i32::MAX).min(30);
                FIRST_PAUSE.mul_f64(1.5_f64.powi(exponent)).min(LAST_PAUSE)
            }
        }
        .mul_f64(spread)
    }

    /// Waits until the next request; returns whether there is to be one. After a failure for `pause`, else until the
    /// certificate is to be renewed.
    fn wait(&self, begin: Instant, pause: Option<Duration>) -> bool {
        let earliest = begin + CLOSEST;
        let retry_at = pause.map(|pause| clock::now() + pause);
        loop {
            let mut wish = lock(&self.shared.wish);
            if wish.stop {
                return false;
            }
            let now = clock::now();
            let due = match (retry_at, &self.current) {
                (Some(at), _) => at,
                (None, Some(current)) => now + current.renew_at.duration_since(clock::wall()).unwrap_or_default(),
                (None, None) => now,
            };
            let due = wish.renew_at.map_or(due, |wished| wished.min(due)).max(earliest);
            if due <= now {
                wish.renew_at = None;
                return true;
            }
            let (stop, wished) = (wish.stop, wish.renew_at);
            drop(wait_while(&self.shared.changed, wish, (due - now).min(LOOK), |wish| {
                wish.stop == stop && wish.renew_at == wished
            }));
        }
    }
}
