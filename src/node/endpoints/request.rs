//! What a peer asks for: the path and the body of an HTTP request become a [`Request`].

use crate::cni::event::{AddEvent, AttachmentEvent, GcEvent};
use crate::error::{Context, Error, Kind, Result};
use crate::http::server::{self, Response};
use crate::node::event::{Opened, Request};
use crate::node::walk::open_netns;
use crate::pod::types::PodName;
use crate::sys::file::HostRoot;
use crate::sys::netns::Netns;
use serde::de::DeserializeOwned;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The form of answers that the peer understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Istio's plugin: 200 with an empty body, or a status and text.
    Istio,
    /// Our plugin and tools: JSON.
    Ours,
}

/// Parses a request; the answer to one that asks for nothing we have.
pub(super) fn parse(
    request: &server::Request,
    descriptors: Result<Vec<OwnedFd>>,
    host_root: &HostRoot,
) -> std::result::Result<(Request, Form), Response> {
    let open = |path: &str| open(descriptors, path, host_root);
    match (request.method.as_str(), request.path.as_str()) {
        ("POST", "/cmdadd") => {
            let event: AddEvent = decode(&request.body)?;
            let form = if event.decide { Form::Ours } else { Form::Istio };
            let netns = open(&event.netns);
            Ok((Request::Add(event, netns), form))
        }
        ("POST", "/cmddel") => {
            let event: AttachmentEvent = decode(&request.body)?;
            let netns = open(&event.netns);
            Ok((Request::Del(event, netns), Form::Ours))
        }
        ("POST", "/cmdcheck") => {
            let event: AttachmentEvent = decode(&request.body)?;
            let netns = open(&event.netns);
            Ok((Request::Check(event, netns), Form::Ours))
        }
        ("POST", "/gc") => Ok((Request::Gc(decode::<GcEvent>(&request.body)?), Form::Ours)),
        ("GET", "/readyz") => Ok((Request::Ready, Form::Ours)),
        ("GET", "/status") => Ok((Request::Status, Form::Ours)),
        ("GET", "/explain") => Ok((Request::Explain(named(&request.query)?), Form::Ours)),
        (_, "/cmdadd" | "/cmddel" | "/cmdcheck" | "/gc") => Err(Response::text(405, "use POST\n")),
        (_, "/readyz" | "/status" | "/explain") => Err(Response::text(405, "use GET\n")),
        (_, path) => Err(Response::text(404, format!("no such path: {path:?}\n"))),
    }
}

/// The pod that `namespace=…&name=…` names. Names of pods have no character that would have to be escaped there.
fn named(query: &str) -> std::result::Result<PodName, Response> {
    let value = |wanted: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, value)| *key == wanted && !value.is_empty()).map(|(_, value)| value.to_owned())
    };
    match (value("namespace"), value("name")) {
        (Some(namespace), Some(name)) => Ok(PodName { namespace, name }),
        _ => Err(Response::text(400, "ask for /explain?namespace=NAMESPACE&name=NAME\n")),
    }
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> std::result::Result<T, Response> {
    serde_json::from_slice(body).map_err(|e| Response::text(400, format!("the body is not what is asked for: {e}\n")))
}

/// The namespace of a request: the descriptor that came along, else the path.
fn open(descriptors: Result<Vec<OwnedFd>>, path: &str, host_root: &HostRoot) -> Opened {
    let mut descriptors = descriptors?;
    if descriptors.len() > 1 {
        return Err(Error::of(Kind::Invalid, "more than one descriptor came with the request"));
    }
    match descriptors.pop() {
        Some(descriptor) => Netns::from_fd(descriptor).context("the descriptor that came with the request"),
        None => open_netns(host_root, path),
    }
    .map(Arc::new)
}
