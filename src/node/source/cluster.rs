//! The source of a Kubernetes node: the pods of this node and all namespaces, as the API server tells of them.
//!
//! Two reflectors tell everything; a pod that a plugin asks about before the watch has told of it is asked for
//! directly, together with its namespace, on a thread of its own, and introduced to the reflectors.

use crate::error::{Error, Kind, Result};
use crate::kube::client::{Client, Patience};
use crate::kube::reflector::{self, Reflector};
use crate::node::event::{Event, Notice};
use crate::pod::types::{Namespace, Pod, PodName};
use crate::sys::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::Sender;
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
        let namespaces = {
            let (inbox, synced) = (inbox.clone(), synced.clone());
            Reflector::start(client, reflector::Options::default(), move |notice| match notice {
                reflector::Notice::Upserted(item) => tell(&inbox, Notice::Namespace(item.object)),
                reflector::Notice::Removed(name) => tell(&inbox, Notice::NamespaceGone(name)),
                reflector::Notice::Synced => synced(),
            })?
        };
        let here =
            reflector::Options { field_selector: format!("spec.nodeName={node}"), ..reflector::Options::default() };
        let pods = {
            let inbox = inbox.clone();
            Reflector::start(client, here, move |notice| match notice {
                reflector::Notice::Upserted(item) => tell(&inbox, Notice::Pod(Box::new(item.object))),
                reflector::Notice::Removed(uid) => tell(&inbox, Notice::PodGone(uid)),
                reflector::Notice::Synced => synced(),
            })?
        };
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

/// A pod that is not there is an answer, not a trouble. The namespace first: a pod is decided by its labels.
fn ask(client: &Client, name: &PodName, pods: &Reflector<Pod>, namespaces: &Reflector<Namespace>) -> Result<(), Error> {
    let found = |kind: Kind| kind != Kind::NotFound;
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
