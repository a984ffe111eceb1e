//! `cni`: how the plugin is called, and what it asks the API server when there is no agent to decide.

use super::page::Page;
use crate::error::{Context, Result};
use crate::kube::client::{Client, Patience};
use crate::kube::config::{Config, Options, Proxies, Source};
use crate::pod::types::{Namespace, Pod, PodName};
use std::path::Path;
use std::time::Duration;

const ABOUT: &str = "The CNI plugin, run by a container runtime. It has no options: the runtime's call is in the variables \
                     CNI_COMMAND, CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME and CNI_ARGS, and the network configuration \
                     on standard input. Without CNI_COMMAND it says what it is and which protocol versions it speaks.";

/// How it is called.
pub fn page() -> Page {
    Page { synopsis: "cni", about: ABOUT, specs: Vec::new() }
}

/// For each of the two questions: the runtime waits, and the agent may come back meanwhile.
const ASK: Patience = Patience::once(Duration::from_secs(3));

/// A pod and its namespace, as the API server that the kubeconfig names has them.
pub fn look_up(kubeconfig: &Path, pod: &PodName) -> Result<(Pod, Namespace)> {
    let source = Source::Kubeconfig(kubeconfig.display().to_string());
    let config = Config::load(&Options { source, proxies: Proxies::default() });
    let client = Client::new(config.with_context(|| kubeconfig.display().to_string())?);
    // The namespace last: what it says now is never older than the pod.
    let object = client.get_pod(pod, ASK)?.object;
    let namespace = client.get_namespace(&pod.namespace, ASK)?.object;
    Ok((object, namespace))
}
