//! Where platforms keep their CNI configurations and plugins, for those that do not keep them at the usual places.
//!
//! Sources: Istio's platform profiles (`manifests/helm-profiles`) and "Platform-Specific Prerequisites", the
//! documentations of K3s, MicroK8s and OpenShift.

use crate::sys::file::HostRoot;
use std::os::fd::AsRawFd;

/// A platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Platform {
    pub name: &'static str,
    pub conf: &'static str,
    pub bin: &'static [&'static str],
}

/// Those that have places of their own, and last the usual one.
pub(super) const PLATFORMS: [Platform; 5] = [
    Platform {
        name: "K3s",
        conf: "/var/lib/rancher/k3s/agent/etc/cni/net.d",
        bin: &["/var/lib/rancher/k3s/data/cni", "/var/lib/rancher/k3s/data/current/bin"],
    },
    Platform {
        name: "MicroK8s",
        conf: "/var/snap/microk8s/current/args/cni-network",
        bin: &["/var/snap/microk8s/current/opt/cni/bin"],
    },
    Platform { name: "GKE", conf: "/etc/cni/net.d", bin: &["/home/kubernetes/bin"] },
    Platform { name: "OpenShift", conf: "/etc/cni/multus/net.d", bin: &["/var/lib/cni/bin"] },
    Platform {
        name: "most platforms (kubeadm, RKE2, k0s, minikube, EKS, AKS)",
        conf: "/etc/cni/net.d",
        bin: &["/opt/cni/bin"],
    },
];

/// The names in a directory of the host, as far as it can be seen from here: below the host root, or, in a container
/// that has only some directories of the host, through the host's first process.
pub(super) fn list(root: &HostRoot, dir: &str) -> Vec<String> {
    let through_init = HostRoot::new(root.path().join("proc/1/root"));
    let names = [root, &through_init].into_iter().find_map(|root| {
        // By descriptor: the directory may be in another mount namespace.
        let open = root.open(dir).ok()?;
        let entries = std::fs::read_dir(format!("/proc/self/fd/{}", open.as_raw_fd())).ok()?;
        Some(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    });
    names.unwrap_or_default()
}
