//! What can be done about a broken pod, what came of it, and what people are told.

use crate::pod::types::PodName;

/// What is done about a broken pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remedy {
    Repair,
    Delete,
    Label,
}

impl Remedy {
    /// In metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            Remedy::Repair => "repair",
            Remedy::Delete => "delete",
            Remedy::Label => "label",
        }
    }

    /// In Events.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Remedy::Repair => "RepairBrokenPod",
            Remedy::Delete => "DeleteBrokenPod",
            Remedy::Label => "LabelBrokenPod",
        }
    }

    pub(super) fn done(self) -> &'static str {
        match self {
            Remedy::Repair => "its traffic is redirected to its sidecar now",
            Remedy::Delete => "deleted",
            Remedy::Label => "labeled",
        }
    }

    pub(super) fn infinitive(self) -> &'static str {
        match self {
            Remedy::Repair => "redirect it to its sidecar",
            Remedy::Delete => "delete it",
            Remedy::Label => "label it",
        }
    }
}

/// Something to do. [`Controller::settled`](super::controller::Controller::settled) is told what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Redirect the pod of this uid to its sidecar.
    Repair(String),
    /// Delete the pod if it is exactly this one in this version.
    Delete {
        /// Its uid.
        uid: String,
        /// Its name.
        pod: PodName,
        /// Its resourceVersion.
        version: String,
    },
    /// Label the pod.
    Label {
        /// Its uid.
        uid: String,
        /// Its name.
        pod: PodName,
        /// The label's key.
        key: String,
        /// The label's value.
        value: String,
    },
}

impl Order {
    /// Whom it is about.
    pub fn uid(&self) -> &str {
        match self {
            Order::Repair(uid) | Order::Delete { uid, .. } | Order::Label { uid, .. } => uid,
        }
    }
}

/// What came of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It is done.
    Done,
    /// It is another pod by now, or in another version: it is looked at again.
    Outdated,
    /// It failed; another time it may work.
    Failed(String),
    /// It failed for good.
    Hopeless(String),
    /// It is not for us to do, for this reason.
    Refused(String),
}

/// What people who look at a pod should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The pod.
    pub pod: PodName,
    /// Something is wrong, or was taken away.
    pub warning: bool,
    /// One word.
    pub reason: &'static str,
    /// The rest.
    pub message: String,
}
