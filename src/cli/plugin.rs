//! `cni`: how the plugin is called, and what it does where there is no agent: it asks the API server, and redirects pods
//! to their sidecars.

use super::page::Page;
use crate::cni::conf::NetConf;
use crate::cni::plugin::Doors;
use crate::dataplane::inpod::{self, InPod};
use crate::error::{Context, Result};
use crate::kube::client::{Client, Patience};
use crate::kube::config::{Config, Options, Proxies, Source};
use crate::pod::redirection::Redirection;
use crate::pod::types::{Namespace, Pod, PodName};
use crate::rules::sidecar;
use crate::sys::netns::Netns;
use crate::sys::{mount, netlink};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

const ABOUT: &str = "The CNI plugin, run by a container runtime. It has no options: the runtime's call is in the variables \
                     CNI_COMMAND, CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME and CNI_ARGS, and the network configuration \
                     on standard input. Without CNI_COMMAND it says what it is and which protocol versions it speaks.";

/// How it is called.
pub fn page() -> Page {
    Page { synopsis: "cni", about: ABOUT, operand: None, specs: Vec::new() }
}

/// What the plugin does without an agent.
pub const DOORS: Doors = Doors { api: look_up, redirect };

/// For each of the two questions: the runtime waits, and the agent may come back meanwhile.
const ASK: Patience = Patience::once(Duration::from_secs(3));

/// A pod and its namespace, as the API server that the kubeconfig names has them.
fn look_up(kubeconfig: &Path, pod: &PodName) -> Result<(Pod, Namespace)> {
    let source = Source::Kubeconfig(kubeconfig.display().to_string());
    let config = Config::load(&Options { source, proxies: Proxies::default() });
    let client = Client::new(config.with_context(|| kubeconfig.display().to_string())?);
    // The namespace last: what it says now is never older than the pod.
    let object = client.get_pod(pod, ASK)?.object;
    let namespace = client.get_namespace(&pod.namespace, ASK)?.object;
    Ok((object, namespace))
}

/// Redirects a pod to its sidecar with this host's own iptables.
fn redirect(netns: &Netns, wanted: &Redirection, ips: &[IpAddr], conf: &NetConf) -> Result<()> {
    /// By this the host looks users up, perhaps over its network: iptables does so for every rule that names one.
    const NAMES: &str = "/etc/nsswitch.conf";
    let work = || {
        let (lock_dir, native_nftables) = (conf.run_dir.xtables_locks(), conf.native_nftables);
        let options = inpod::Options { lock_dir, native_nftables, ..inpod::Options::default() };
        let programmer = InPod::detect(options, &Netns::own()?)?;
        let found = if ips.is_empty() { netns.enter(netlink::addresses)?? } else { Vec::new() };
        let ipv6 = wanted.ipv6(if ips.is_empty() { &found } else { ips }, native_nftables);
        programmer.apply(netns, sidecar::program(&wanted.settings, ipv6)).map(drop)
    };
    mount::without(Path::new(NAMES), |hidden| {
        if let Err(e) = hidden {
            log::warn!("{NAMES} stays in sight of iptables, which may take long: {e}");
        }
        work()
    })?
}
