//! What is known of each secret, and who waits for it.
//!
//! Producers publish encoded secrets by name; connections look them up and are told when one changes. Nobody waits while
//! a lock is held. A secret that cannot be renewed stays as it was.

use crate::error::{Error, Result};
use crate::sys::sync::lock;
use crate::sys::wakeup::Wakeup;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};
use zeroize::Zeroizing;

/// An encoded secret, shared by everybody who sends it.
pub type Encoded = Arc<Zeroizing<Vec<u8>>>;

/// What is known of a secret.
#[derive(Clone, Default)]
pub struct Known {
    /// The newest that can be used.
    pub secret: Option<Encoded>,
    /// Why there is no newer one.
    pub failure: Option<Arc<str>>,
}

type Demand = Box<dyn Fn(&str, bool) + Send>;

/// Every secret by its name.
#[derive(Default)]
pub struct Store(Mutex<State>);

#[derive(Default)]
struct State {
    known: HashMap<String, Known>,
    /// How many streams watch each name.
    wanted: BTreeMap<String, usize>,
    connections: Vec<Weak<Shared>>,
    /// Whoever produces secrets that are wanted.
    demand: Option<Demand>,
}

impl Store {
    /// An empty one.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Makes a secret known; returns whether it differs from the one that was known.
    pub fn publish(&self, name: &str, secret: Zeroizing<Vec<u8>>) -> bool {
        let mut state = lock(&self.0);
        let known = state.known.entry(name.to_owned()).or_default();
        known.failure = None;
        if known.secret.as_ref().is_some_and(|before| ***before == *secret) {
            return false;
        }
        known.secret = Some(Arc::new(secret));
        state.tell_connections(name);
        true
    }

    /// Notes why there is no newer secret. Who waits for the first one is told.
    pub fn fail(&self, name: &str, error: &Error) {
        let mut state = lock(&self.0);
        let known = state.known.entry(name.to_owned()).or_default();
        known.failure = Some(error.to_string().into());
        if known.secret.is_none() {
            state.tell_connections(name);
        }
    }

    /// What is known of a secret now.
    pub fn look(&self, name: &str) -> Known {
        lock(&self.0).known.get(name).cloned().unwrap_or_default()
    }

    /// An inbox that gets the name of each secret that changes.
    pub fn connection(&self) -> Result<Inbox> {
        let inbox = Inbox::new()?;
        let mut state = lock(&self.0);
        state.connections.retain(|other| other.strong_count() > 0);
        state.connections.push(Arc::downgrade(&inbox.0));
        Ok(inbox)
    }

    /// Has `demand` called with each name that somebody begins (`true`) or ceases to watch. It must not come back here.
    /// Once, before the first stream.
    pub fn on_demand(&self, demand: impl Fn(&str, bool) + Send + 'static) {
        lock(&self.0).demand = Some(Box::new(demand));
    }

    /// Whether somebody watches a name.
    pub fn is_wanted(&self, name: &str) -> bool {
        lock(&self.0).wanted.contains_key(name)
    }

    /// Notes that one more watches a name.
    pub fn want(&self, name: &str) {
        let mut state = lock(&self.0);
        let count = state.wanted.entry(name.to_owned()).or_default();
        *count += 1;
        if *count == 1 {
            state.tell_producer(name, true);
        }
    }

    /// Notes that one less watches a name. What is known of a secret in files is forgotten with the last.
    pub fn unwant(&self, name: &str, forget: bool) {
        let mut state = lock(&self.0);
        let Some(count) = state.wanted.get_mut(name) else { return };
        *count -= 1;
        if *count == 0 {
            state.wanted.remove(name);
            if forget {
                state.known.remove(name);
            }
            state.tell_producer(name, false);
        }
    }
}

impl State {
    fn tell_connections(&self, name: &str) {
        self.connections.iter().filter_map(Weak::upgrade).for_each(|inbox| inbox.put(name));
    }

    fn tell_producer(&self, name: &str, wanted: bool) {
        if let Some(demand) = &self.demand {
            demand(name, wanted);
        }
    }
}

/// Names that something happened to, each once until it is taken; readable (poll) while there is one.
pub struct Inbox(Arc<Shared>);

struct Shared {
    /// In the order of the first time.
    names: Mutex<Vec<String>>,
    wakeup: Wakeup,
}

impl Inbox {
    fn new() -> Result<Self> {
        Ok(Inbox(Arc::new(Shared { names: Mutex::default(), wakeup: Wakeup::new()? })))
    }

    /// Rings while there is a name.
    pub fn wakeup(&self) -> &Wakeup {
        &self.0.wakeup
    }

    /// Takes all names.
    pub fn take(&self) -> Vec<String> {
        // Before the names: what comes in between rings again.
        self.0.wakeup.take();
        std::mem::take(&mut *lock(&self.0.names))
    }
}

impl Shared {
    fn put(&self, name: &str) {
        let mut names = lock(&self.names);
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
        self.wakeup.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fd;
    use nix::poll::PollFlags;
    use std::os::fd::AsFd;
    use std::time::Duration;

    fn secret(text: &str) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(text.as_bytes().to_vec())
    }

    fn rings(inbox: &Inbox) -> bool {
        fd::wait(inbox.wakeup().as_fd(), PollFlags::POLLIN, Duration::ZERO).unwrap()
    }

    #[test]
    fn changes_are_told_once() {
        let store = Store::new();
        let (a, b) = (store.connection().unwrap(), store.connection().unwrap());
        assert!(!rings(&a));
        assert!(store.publish("ROOTCA", secret("1")));
        assert!(store.publish("default", secret("1")));
        assert!(store.publish("ROOTCA", secret("2")));
        assert!(!store.publish("default", secret("1")), "the same again");
        assert!(rings(&a) && rings(&b));
        assert_eq!(a.take(), ["ROOTCA", "default"], "in order, each once");
        assert!(!rings(&a) && rings(&b));
        assert_eq!(**store.look("ROOTCA").secret.unwrap(), *b"2");
        drop(b);
        assert!(store.publish("default", secret("3")));
        assert_eq!(a.take(), ["default"]);
    }

    #[test]
    fn a_failure_keeps_the_secret() {
        let store = Store::new();
        let inbox = store.connection().unwrap();
        store.fail("default", &Error::new("no"));
        assert_eq!(inbox.take(), ["default"]);
        assert_eq!(store.look("default").failure.as_deref(), Some("no"));
        assert!(store.publish("default", secret("1")));
        assert!(store.look("default").failure.is_none());
        assert_eq!(inbox.take(), ["default"]);
        store.fail("default", &Error::new("no"));
        assert!(inbox.take().is_empty(), "nobody needs to know");
        assert!(store.look("default").secret.is_some());
        assert!(!store.publish("default", secret("1")));
        assert!(store.look("default").failure.is_none());
    }

    #[test]
    fn the_producer_knows_what_is_wanted() {
        let store = Store::new();
        let (sender, told) = std::sync::mpsc::channel();
        store.on_demand(move |name, wanted| sender.send((name.to_owned(), wanted)).unwrap_or(()));
        store.want("a");
        store.want("a");
        store.want("b");
        store.unwant("a", true);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [("a".to_owned(), true), ("b".to_owned(), true)]);
        assert!(store.is_wanted("a"));
        store.publish("a", secret("1"));
        store.unwant("a", true);
        store.unwant("a", true);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [("a".to_owned(), false)]);
        assert!(!store.is_wanted("a") && store.look("a").secret.is_none());
    }
}
