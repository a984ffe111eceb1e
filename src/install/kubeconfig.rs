//! The kubeconfig with which the plugin asks the API server when the agent does not answer.

use std::path::PathBuf;

/// Name of the file in the run dir.
pub const FILE: &str = "istio-cni-kubeconfig";

/// Where the API server is and what proves who we are.
#[derive(Debug, Clone)]
pub struct Options {
    /// `https` unless `KUBERNETES_SERVICE_PROTOCOL` says otherwise.
    pub protocol: String,
    /// `KUBERNETES_SERVICE_HOST`.
    pub host: String,
    /// `KUBERNETES_SERVICE_PORT`.
    pub port: String,
    /// Directory of `token` and `ca.crt`.
    pub service_account_dir: PathBuf,
    /// CA file when it is not the service account's.
    pub ca_file: Option<PathBuf>,
    /// The server's certificate is not checked.
    pub skip_tls_verify: bool,
    /// Mode of the file.
    pub mode: u32,
}
