//! Where the API server is and how we prove who we are, in a cluster or from a kubeconfig.

pub use super::access::Config;
pub use super::proxies::Proxies;

use super::access::{Material, Trust};
use super::kubeconfig;
use crate::error::{Error, Kind, Result};
use crate::invalid;
use std::path::PathBuf;

/// What the client is told once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where to learn about the API server.
    pub source: Source,
    /// Proxies of the environment.
    pub proxies: Proxies,
}

/// Where the API server's address and our credential come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// We run in a pod of the cluster.
    InCluster {
        /// `KUBERNETES_SERVICE_HOST`.
        host: String,
        /// `KUBERNETES_SERVICE_PORT`.
        port: String,
        /// `KUBERNETES_SERVICE_PROTOCOL`; empty means https.
        protocol: String,
        /// `--service-account-dir`, with `token` and `ca.crt`.
        service_account_dir: PathBuf,
    },
    /// `KUBECONFIG`: one file, or several separated by colons, of which the first that says a thing counts.
    Kubeconfig(String),
}

impl Config {
    /// Finds the configuration. Files named in it are read later, and again when they change.
    pub fn load(options: &Options) -> Result<Self> {
        match &options.source {
            Source::InCluster { host, port, protocol, service_account_dir } => {
                let server = in_cluster_server(host, port, protocol)?;
                let trust = if server.starts_with("http://") {
                    Trust::Plain
                } else {
                    Trust::Authorities(Material::File(service_account_dir.join("ca.crt")))
                };
                let token = Some(Material::File(service_account_dir.join("token")));
                let proxy = options.proxies.for_server(&server)?;
                Ok(Config { server, trust, identity: None, token, proxy })
            }
            Source::Kubeconfig(paths) => kubeconfig::load(paths, &options.proxies),
        }
    }
}

fn in_cluster_server(host: &str, port: &str, protocol: &str) -> Result<String> {
    if host.is_empty() || port.is_empty() {
        let what = "no API server known: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set";
        return Err(Error::of(Kind::Usage, format!("{what}; in a pod they always are, elsewhere set KUBECONFIG")));
    }
    let protocol = match protocol.to_ascii_lowercase().as_str() {
        "" | "https" => "https",
        "http" => "http",
        _ => return Err(invalid!("KUBERNETES_SERVICE_PROTOCOL is {protocol:?}; allowed are https and http")),
    };
    port.parse::<u16>().map_err(|_| invalid!("KUBERNETES_SERVICE_PORT is {port:?}; a port number is needed"))?;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let host = if bare.contains(':') { format!("[{bare}]") } else { host.to_owned() };
    Ok(format!("{protocol}://{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_cluster_addresses() {
        let check = |host: &str, port: &str, protocol: &str, expected: &str| {
            let got = in_cluster_server(host, port, protocol).unwrap_or_else(|e| e.to_string());
            assert!(got.starts_with(expected), "{host} {port} {protocol}: {got}");
        };
        check("10.96.0.1", "443", "", "https://10.96.0.1:443");
        check("fd00::1", "6443", "https", "https://[fd00::1]:6443");
        check("[fd00::1]", "6443", "HTTPS", "https://[fd00::1]:6443");
        check("kubernetes.default", "80", "http", "http://kubernetes.default:80");
        check("", "443", "", "no API server known: KUBERNETES_SERVICE_HOST");
        check("h", "tcp://1.2.3.4:443", "", "KUBERNETES_SERVICE_PORT is \"tcp://");
        check("h", "1", "ftp", "KUBERNETES_SERVICE_PROTOCOL is \"ftp\"; allowed are");
    }
}
