//! The requests we make, each with a name.

use super::client::{Call, Client, Limits, Patience, Verb, broken_answer};
use super::object::{DaemonSet, Node};
use crate::error::Result;
use crate::pod::object::Versioned;
use crate::pod::types::{Namespace, Pod, PodName};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::time::SystemTime;

pub(super) const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";
/// Metadata only; plain JSON from a server that cannot do that is taken as well.
pub(super) const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// A change of a pod's labels and annotations; no value means that the key goes.
#[derive(Debug, Clone, Copy, Default)]
pub struct PodPatch<'a> {
    /// Labels.
    pub labels: &'a [(&'a str, Option<&'a str>)],
    /// Annotations.
    pub annotations: &'a [(&'a str, Option<&'a str>)],
}

/// An Event on a pod (core/v1).
#[derive(Debug, Clone)]
pub struct NewEvent<'a> {
    /// The pod it is about.
    pub pod: &'a PodName,
    /// The pod's uid.
    pub uid: &'a str,
    /// Something a person should look at (`Warning`), or not (`Normal`).
    pub warning: bool,
    /// One word in CamelCase.
    pub reason: &'a str,
    /// The text for people; cut at 1024 bytes, which is what the API server takes.
    pub message: &'a str,
    /// Who says it: `cni-agent` or `cni-repair`.
    pub component: &'a str,
    /// Our node.
    pub host: &'a str,
    /// When it happened.
    pub time: SystemTime,
}

impl Client {
    /// A pod. Not there: [`Kind::NotFound`](crate::error::Kind::NotFound), as everywhere here.
    pub fn get_pod(&self, pod: &PodName, patience: Patience) -> Result<Versioned<Pod>> {
        self.get(pod_path(pod), format!("pod {pod}"), JSON, patience)
    }

    /// A namespace: its name and labels.
    pub fn get_namespace(&self, name: &str, patience: Patience) -> Result<Versioned<Namespace>> {
        let path = format!("/api/v1/namespaces/{}", escape(name));
        self.get(path, format!("namespace {name}"), METADATA, patience)
    }

    /// A node: its name and labels.
    pub fn get_node(&self, name: &str, patience: Patience) -> Result<Node> {
        let path = format!("/api/v1/nodes/{}", escape(name));
        self.get(path, format!("node {name}"), METADATA, patience)
    }

    /// A DaemonSet: whether it is being deleted, and which nodes it wants.
    pub fn get_daemon_set(&self, namespace: &str, name: &str, patience: Patience) -> Result<DaemonSet> {
        let path = format!("/apis/apps/v1/namespaces/{}/daemonsets/{}", escape(namespace), escape(name));
        self.get(path, format!("daemonset {namespace}/{name}"), JSON, patience)
    }

    /// Patches a pod through its `status` subresource, retried on conflict. With a uid it changes that pod only: another
    /// of the same name is a [`Kind::Conflict`](crate::error::Kind::Conflict).
    pub fn patch_pod(&self, pod: &PodName, uid: Option<&str>, patch: PodPatch<'_>, patience: Patience) -> Result<()> {
        let strings = |pairs: &[(&str, Option<&str>)]| {
            Value::Object(pairs.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect())
        };
        let mut metadata = Map::new();
        if let Some(uid) = uid {
            metadata.insert("uid".into(), uid.into());
        }
        for (key, pairs) in [("labels", patch.labels), ("annotations", patch.annotations)] {
            if !pairs.is_empty() {
                metadata.insert(key.into(), strings(pairs));
            }
        }
        let body = json!({ "metadata": metadata });
        let path = format!("{}/status", pod_path(pod));
        self.write(Verb::Patch, path, format!("pod {pod} status"), (MERGE_PATCH, &body), patience)
    }

    /// Deletes exactly this pod in exactly this version; anything else is a
    /// [`Kind::Conflict`](crate::error::Kind::Conflict).
    pub fn delete_pod(&self, pod: &PodName, uid: &str, version: &str, patience: Patience) -> Result<()> {
        let preconditions = json!({ "uid": uid, "resourceVersion": version });
        let body = json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions });
        self.write(Verb::Delete, pod_path(pod), format!("pod {pod}"), (JSON, &body), patience)
    }

    /// Creates an Event.
    pub fn create_event(&self, event: &NewEvent<'_>, patience: Patience) -> Result<()> {
        const LONGEST: usize = 1024;
        let PodName { namespace, name } = event.pod;
        let time = crate::sys::clock::rfc3339(event.time);
        let ends = event.message.char_indices().map(|(at, c)| at + c.len_utf8());
        let end = ends.take_while(|end| *end <= LONGEST).last().unwrap_or(0);
        let message = event.message.get(..end).unwrap_or_default();
        let body = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "generateName": format!("{name}.") },
            "involvedObject":
                { "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": event.uid },
            "type": if event.warning { "Warning" } else { "Normal" },
            "reason": event.reason,
            "message": message,
            "source": { "component": event.component, "host": event.host },
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": 1,
        });
        let path = format!("/api/v1/namespaces/{}/events", escape(namespace));
        self.write(Verb::Create, path, format!("event on pod {}", event.pod), (JSON, &body), patience)
    }

    fn get<T: DeserializeOwned>(
        &self,
        path: String,
        subject: String,
        accept: &'static str,
        patience: Patience,
    ) -> Result<T> {
        let limits = Limits::all(patience.per_try);
        let call = Call { verb: Verb::Get, path, subject, accept, body: None, limits };
        let title = call.title();
        let text = self.ask(call, patience)?;
        serde_json::from_str(&text).map_err(|e| broken_answer(&title, &e).into())
    }

    fn write(
        &self,
        verb: Verb,
        path: String,
        subject: String,
        content: (&'static str, &Value),
        patience: Patience,
    ) -> Result<()> {
        let body = Some((content.0, content.1.to_string().into_bytes()));
        let call = Call { verb, path, subject, accept: JSON, body, limits: Limits::all(patience.per_try) };
        // The answer is the object, or a Status; either way it says nothing that the watch does not.
        self.ask(call, patience).map(drop)
    }
}

fn pod_path(pod: &PodName) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", escape(&pod.namespace), escape(&pod.name))
}

/// Percent-encodes whatever is not unreserved in a URI (RFC 3986), so that no name leaves its place in a path.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'.' if matches!(text, "." | "..") => out.push_str("%2E"),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => {
                // Writing into a string does not fail.
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}
