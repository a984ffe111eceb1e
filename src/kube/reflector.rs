//! Keeps a caller's picture of one kind of object true: list, then watch, for ever.
//!
//! A thread of its own lists in pages, watches from there, and starts over where that is needed; what follows from what
//! it hears is decided in [`super::known`]. The caller gets every object that is new or changed and the key of every one
//! that is gone, also of those that changed while nobody watched. Objects themselves are not kept.

mod picture;
mod run;

pub use run::Options;

use super::api;
use super::client::Client;
use super::known::Known;
use crate::error::Result;
use crate::pod::field;
use crate::pod::object::{Identity, Versioned};
use crate::pod::types::{Namespace, Pod};
use crate::sys::{sync, thread};
use picture::{Audience, Picture};
use run::{Collection, Run};
use serde::de::DeserializeOwned;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What the caller hears, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice<T> {
    /// An object is new or changed.
    Upserted(Versioned<T>),
    /// An object is gone: its key ([`Resource::key`]).
    Removed(String),
    /// An object is new or changed, and cannot be decoded: what it was before is all that is known.
    Unreadable {
        /// Its key.
        key: String,
        /// Which it is, for messages: `pod team-a/web-0`.
        name: String,
        /// Why.
        why: String,
    },
    /// The first list is whole.
    Synced,
    /// Nothing was heard of the server for a while, with the reason; `None`: that is over.
    Lagging(Option<String>),
}

/// A kind of object that can be reflected.
pub trait Resource: Sized + Send + 'static {
    /// Path of the collection.
    const PATH: &'static str;
    /// Its name in messages.
    const NAME: &'static str;
    /// The name of one such object in messages.
    const ONE: &'static str;
    /// `Accept` of a list.
    const ACCEPT_LIST: &'static str;
    /// `Accept` of a watch.
    const ACCEPT_WATCH: &'static str;
    /// What an object is known by for as long as it is the same thing to us.
    fn key(&self) -> &str;
    /// The key of an object of which no more is known.
    fn key_of(identity: &Identity) -> &str;
}

/// Known by its uid: another pod may take its name.
impl Resource for Pod {
    const PATH: &'static str = "/api/v1/pods";
    const NAME: &'static str = "pods";
    const ONE: &'static str = "pod";
    const ACCEPT_LIST: &'static str = api::JSON;
    const ACCEPT_WATCH: &'static str = api::JSON;
    fn key(&self) -> &str {
        &self.uid
    }
    fn key_of(identity: &Identity) -> &str {
        &identity.uid
    }
}

/// Known by its name, under which its pods refer to it.
impl Resource for Namespace {
    const PATH: &'static str = "/api/v1/namespaces";
    const NAME: &'static str = "namespaces";
    const ONE: &'static str = "namespace";
    const ACCEPT_LIST: &'static str =
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
    const ACCEPT_WATCH: &'static str = api::METADATA;
    fn key(&self) -> &str {
        &self.name
    }
    fn key_of(identity: &Identity) -> &str {
        &identity.name
    }
}

/// A running reflector.
pub struct Reflector<T> {
    client: Client,
    picture: Arc<Mutex<Picture<Teller<T>>>>,
    thread: Option<JoinHandle<()>>,
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
        let collection =
            Collection { path: T::PATH, name: T::NAME, accept_list: T::ACCEPT_LIST, accept_watch: T::ACCEPT_WATCH };
        let run = Run::new(client.clone(), options, collection, picture.clone());
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

struct Teller<T> {
    decoded: Option<Decoded<T>>,
    notify: Box<dyn FnMut(Notice<T>) + Send>,
}

enum Decoded<T> {
    Object(Versioned<T>),
    Unreadable(Identity, String),
}

impl<T: Resource> Audience for Teller<T>
where
    Versioned<T>: DeserializeOwned,
{
    fn decode(&mut self, json: &str) -> std::result::Result<(&str, &str), serde_json::Error> {
        let decoded = match serde_json::from_str(json) {
            Ok(object) => Decoded::Object(object),
            // Whatever is wrong with it, it is still known which it is.
            Err(e) => match Identity::of(json) {
                Some(identity) => Decoded::Unreadable(identity, field::describe(&e, json)),
                None => return Err(e),
            },
        };
        Ok(match self.decoded.insert(decoded) {
            Decoded::Object(item) => (item.object.key(), &item.version),
            Decoded::Unreadable(identity, _) => (T::key_of(identity), &identity.version),
        })
    }

    fn upserted(&mut self) {
        let notice = match self.decoded.take() {
            Some(Decoded::Object(item)) => Notice::Upserted(item),
            Some(Decoded::Unreadable(identity, why)) => {
                let (key, name) = (T::key_of(&identity).to_owned(), format!("{} {identity}", T::ONE));
                Notice::Unreadable { key, name, why }
            }
            None => return,
        };
        (self.notify)(notice);
    }

    fn removed(&mut self, key: String) {
        (self.notify)(Notice::Removed(key));
    }

    fn synced(&mut self) {
        (self.notify)(Notice::Synced);
    }

    fn lagging(&mut self, why: Option<String>) {
        (self.notify)(Notice::Lagging(why));
    }
}
