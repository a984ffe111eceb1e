//! The source of a Kubernetes node: the pods of this node and all namespaces, as the API server tells of them.
//!
//! Two reflectors tell everything; a pod that a plugin asks about before the watch has told of it is asked for
//! directly, together with its namespace, on a thread of its own, and introduced to the reflectors.

use crate::error::{self, Error, Result};
use crate::kube::client::{Client, Patience};
use crate::kube::reflector::{self, Reflector, Resource};
use crate::node::event::{Event, Notice, Subject, Unread};
use crate::pod::object::Versioned;
use crate::pod::types::{Namespace, Pod, PodName};
use crate::sys::{sync, thread};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Patience of a direct question; the plugin's request waits a little longer.
const ASK: Patience = Patience { per_try: Duration::from_millis(3500), total: Duration::from_millis(3500) };
/// Pods and namespaces.
const LISTS: u8 = 2;

/// The running source; it ends when dropped.
#[derive(Debug)]
pub struct Cluster {
    client: Client,
    pods: Arc<Reflector<Pod>>,
    namespaces: Arc<Reflector<Namespace>>,
    inbox: Sender<Event>,
}

impl Cluster {
    /// Starts to list and to watch; news go to `inbox`.
    pub fn start(client: &Client, node: &str, inbox: Sender<Event>) -> Result<Self> {
        let lists = Arc::new(AtomicU8::new(0));
        let synced = {
            let inbox = inbox.clone();
            move || {
                // Whoever comes last has sent all of its own before, and so had the other.
                if lists.fetch_add(1, Ordering::AcqRel) + 1 == LISTS {
                    tell(&inbox, Notice::Synced);
                }
            }
        };
        let teller = Teller { inbox: inbox.clone(), unread: Arc::default() };
        let kind = Kind { subject: Subject::Namespace, there: Notice::Namespace, gone: Notice::NamespaceGone };
        let namespaces = kind.follow(client, reflector::Options::default(), &teller, synced.clone())?;
        let here =
            reflector::Options { field_selector: format!("spec.nodeName={node}"), ..reflector::Options::default() };
        let there = |pod| Notice::Pod(Box::new(pod));
        let pods =
            Kind { subject: Subject::Pod, there, gone: Notice::PodGone }.follow(client, here, &teller, synced)?;
        Ok(Cluster { client: client.sibling(), pods: Arc::new(pods), namespaces: Arc::new(namespaces), inbox })
    }

    /// Asks for a pod and its namespace, and answers with [`Notice::LookedUp`].
    pub fn look_up(&self, name: PodName) {
        let (client, inbox) = (self.client.clone(), self.inbox.clone());
        let (pods, namespaces) = (Arc::clone(&self.pods), Arc::clone(&self.namespaces));
        let asked = name.clone();
        let started = thread::spawn("kube-look-up", move || {
            let trouble = ask(&client, &asked, &pods, &namespaces).err();
            tell(&inbox, Notice::LookedUp(asked, trouble.map(|e| e.to_string())));
        });
        if let Err(e) = started {
            tell(&self.inbox, Notice::LookedUp(name, Some(e.to_string())));
        }
    }
}

impl Drop for Cluster {
    /// The reflectors close their own connections.
    fn drop(&mut self) {
        self.client.close();
    }
}

/// Nobody listens any more when the agent is about to end.
fn tell(inbox: &Sender<Event>, notice: Notice) {
    let _ = inbox.send(Event::Source(notice));
}

/// One kind of object in the agent's words.
struct Kind<T> {
    /// What its key is about.
    subject: fn(String) -> Subject,
    there: fn(T) -> Notice,
    gone: fn(String) -> Notice,
}

impl<T: Resource> Kind<T>
where
    Versioned<T>: DeserializeOwned,
{
    fn follow(
        self,
        client: &Client,
        options: reflector::Options,
        teller: &Teller,
        synced: impl Fn() + Send + 'static,
    ) -> Result<Reflector<T>> {
        let teller = teller.clone();
        Reflector::start(client, options, move |notice| match notice {
            reflector::Notice::Upserted(item) => {
                let subject = (self.subject)(item.object.key().to_owned());
                tell(&teller.inbox, (self.there)(item.object));
                teller.readable(&subject);
            }
            reflector::Notice::Removed(key) => {
                let subject = (self.subject)(key.clone());
                tell(&teller.inbox, (self.gone)(key));
                teller.readable(&subject);
            }
            reflector::Notice::Unreadable { key, name, why } => teller.unreadable((self.subject)(key), &name, &why),
            reflector::Notice::Synced => synced(),
            reflector::Notice::Lagging(why) => {
                let problem = why.map(|why| format!("nothing is heard of them from the API server: {}", cut(&why)));
                let _ = teller.inbox.send(Event::Condition(T::NAME, problem));
            }
        })
    }
}

/// Tells the agent, and which objects cannot be read now.
#[derive(Clone)]
struct Teller {
    inbox: Sender<Event>,
    unread: Arc<Mutex<BTreeMap<Subject, String>>>,
}

impl Teller {
    fn unreadable(&self, subject: Subject, name: &str, why: &str) {
        let text = format!("{name}: {}; what it said before still counts", cut(why));
        let mut unread = sync::lock(&self.unread);
        if unread.get(&subject) != Some(&text) {
            log::warn!("an object cannot be read: {text}");
            unread.insert(subject, text);
            self.show(&unread);
        }
    }

    fn readable(&self, subject: &Subject) {
        let mut unread = sync::lock(&self.unread);
        if let Some(past) = unread.remove(subject) {
            log::info!("it is over: {past}");
            self.show(&unread);
        }
    }

    fn show(&self, unread: &BTreeMap<Subject, String>) {
        let unread = unread.iter().map(|(subject, text)| Unread { subject: subject.clone(), text: text.clone() });
        tell(&self.inbox, Notice::Unread(unread.collect()));
    }
}

/// The beginning of a text that may have been written by anybody.
fn cut(text: &str) -> String {
    const LONGEST: usize = 300;
    text.chars().take(LONGEST).collect()
}

/// A pod that is not there is an answer, not a trouble. The namespace first: a pod is decided by its labels.
fn ask(client: &Client, name: &PodName, pods: &Reflector<Pod>, namespaces: &Reflector<Namespace>) -> Result<(), Error> {
    let found = |kind: error::Kind| kind != error::Kind::NotFound;
    match client.get_namespace(&name.namespace, ASK) {
        Ok(namespace) => namespaces.introduce(namespace),
        Err(e) if found(e.kind()) => return Err(e),
        Err(_) => {}
    }
    match client.get_pod(name, ASK) {
        Ok(pod) => pods.introduce(pod),
        Err(e) if found(e.kind()) => return Err(e),
        Err(_) => {}
    }
    Ok(())
}
