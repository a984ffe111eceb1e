//! What an examination of the node is told.

use super::agent::Config;
use crate::doctor::Options;

impl Config {
    /// What the node is compared with.
    pub fn doctor(&self) -> Options {
        let cluster = self.pod_dir.is_none();
        Options {
            install: self.install(),
            run_dir: self.site.run_dir.clone(),
            // That none is configured is a finding, not an error.
            api: if cluster { self.kube().ok() } else { None },
            cluster,
            ambient: self.policy.ambient_enabled,
            ipv6: self.settings.ipv6,
            native_nftables: self.site.native_nftables,
            force_backend: self.site.force_backend.clone(),
            ztunnel_socket: self.ztunnel_socket.clone(),
            own_namespace: self.own_namespace().to_owned(),
            system_namespace: self.policy.system_namespace.clone(),
            switch_to_host_ns: self.site.switch_to_host_ns,
        }
    }
}
