//! The wire types between the plugin and the agent on `pluginevent.sock`: Istio's own body and our extra fields.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Body of `POST /cmdadd`. The first four fields are what Istio's Go plugin sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
pub struct AddEvent {
    /// Path of the namespace file on the host.
    pub netns: String,
    /// Pod name.
    pub pod_name: String,
    /// Pod namespace; empty from podman.
    pub pod_namespace: String,
    /// Addresses as Go's `[]IPConfig`; decoded leniently by [`AddEvent::addresses`].
    #[serde(rename = "IPs")]
    pub ips: serde_json::Value,
    /// Ours: pod uid from CNI_ARGS.
    #[serde(rename = "PodUID", skip_serializing_if = "String::is_empty")]
    pub pod_uid: String,
    /// Ours: sandbox id.
    #[serde(rename = "ContainerID", skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    /// Ours: the agent decides and answers with an [`AddAnswer`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub decide: bool,
}

impl AddEvent {
    /// The pod's addresses; empty, null and unparsable ones are left out, IPv4-mapped ones unmapped.
    pub fn addresses(&self) -> Vec<IpAddr> {
        todo!()
    }
}

/// Answer to an [`AddEvent`] with `decide`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddAnswer {
    /// `ambient`, `sidecar` or `none`.
    pub action: String,
    /// Why.
    pub reason: String,
}

/// A failure, as the agent answers it with a status other than 200.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// CNI error code.
    pub code: u32,
    /// What a person must know, first.
    pub message: String,
    /// The rest.
    #[serde(default)]
    pub details: String,
}

/// Body of `POST /cmddel` and `/cmdcheck`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
pub struct AttachmentEvent {
    /// Pod name.
    pub pod_name: String,
    /// Pod namespace.
    pub pod_namespace: String,
    /// Pod uid.
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    /// Sandbox id.
    #[serde(rename = "ContainerID")]
    pub container_id: String,
    /// Path of the namespace file on the host; empty on a late DEL.
    pub netns: String,
}

/// Body of `POST /gc`: the attachments that are still valid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
pub struct GcEvent {
    /// Sandbox ids.
    #[serde(rename = "ContainerIDs")]
    pub container_ids: Vec<String>,
}
