//! `cni`: what the plugin asks the API server when there is no agent to decide.

use crate::error::{Context, Result};
use crate::kube::client::{Client, Patience};
use crate::kube::config::{Config, Options, Proxies, Source};
use crate::pod::types::{Namespace, Pod, PodName};
use std::path::Path;
use std::time::Duration;

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
