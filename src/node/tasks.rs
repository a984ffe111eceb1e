//! Work that is not of one pod, while a worker does it.

use super::event::ReplyTo;
use crate::sys::netns::NetnsId;

/// Work that is not of one pod.
pub(super) enum Task {
    /// These pods are being looked for: uid, and the pod's generation when the search began.
    Walk(Vec<(String, u64)>),
    /// The paths of sandboxes that are no longer valid are being looked at.
    Probe(ReplyTo),
    /// The namespaces of these pods are being compared with those of their processes: uid and generation.
    Compare(Vec<(String, u64)>),
    /// The host's side is being looked at.
    Host,
    /// The namespaces of these broken pods are being looked for.
    Seek(Vec<String>),
    /// Whether a namespace is redirected to its sidecar is being looked at, for whoever asked.
    Inspect(ReplyTo),
    /// A namespace is being redirected to a sidecar.
    Redirect(Redirecting),
}

/// A namespace that is being redirected to a sidecar, and who waits for it.
pub(super) struct Redirecting {
    pub uid: String,
    pub netns: NetnsId,
    /// Whoever waits, with whether they want to know what was decided.
    pub waiting: Vec<(ReplyTo, bool)>,
    /// The pod was broken, and this repairs it.
    pub repairs: bool,
}
