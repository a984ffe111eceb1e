//! Where the API server is and how we prove who we are, in a cluster or from a kubeconfig.

use super::kubeconfig;
use crate::error::{Context, Error, Kind, Result};
use crate::invalid;
use ipnet::IpNet;
use std::net::IpAddr;
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

/// Proxies as the environment names them; an empty value counts as not set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    /// `HTTPS_PROXY` or `https_proxy`.
    pub https: String,
    /// `HTTP_PROXY` or `http_proxy`.
    pub http: String,
    /// `NO_PROXY` or `no_proxy`: hosts, domains, addresses and networks reached directly, separated by commas.
    pub none: String,
}

/// Bytes given in place or kept in a file, which may change while we run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Material {
    /// Given in place.
    Inline(Vec<u8>),
    /// To be read from a file, again whenever it changes.
    File(PathBuf),
}

/// Everything needed to reach the API server.
#[derive(Clone)]
pub struct Config {
    /// `https://host:port` or with a path, no slash at the end.
    pub(super) server: String,
    /// What its certificate is checked against.
    pub(super) trust: Trust,
    /// Our certificate and its key.
    pub(super) identity: Option<(Material, Material)>,
    /// Our bearer token.
    pub(super) token: Option<Material>,
    pub(super) proxy: Option<ureq::Proxy>,
}

/// What the server's certificate is checked against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trust {
    /// Nothing is encrypted (`http://`).
    Plain,
    /// Certificate authorities, PEM.
    Authorities(Material),
    /// `insecure-skip-tls-verify`.
    Anyone,
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

    /// The server's address, for messages.
    pub fn server(&self) -> &str {
        &self.server
    }
}

/// Says where, never with what credential.
impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config").field("server", &self.server).finish_non_exhaustive()
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

impl Proxies {
    /// The proxy of the environment for this server, if any.
    pub(super) fn for_server(&self, server: &str) -> Result<Option<ureq::Proxy>> {
        let (variable, proxy) = match server.starts_with("https://") {
            true => ("HTTPS_PROXY", &self.https),
            false => ("HTTP_PROXY", &self.http),
        };
        let (host, port) = host_and_port(server);
        if proxy.is_empty() || is_loopback(host) || self.reaches_directly(host, port) {
            return Ok(None);
        }
        self::proxy(proxy).context(variable).map(Some)
    }

    fn reaches_directly(&self, host: &str, port: &str) -> bool {
        let address: Option<IpAddr> = host.parse().ok();
        self.none.split(',').map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
            if entry == "*" {
                return true;
            }
            if let (Ok(network), Some(address)) = (entry.parse::<IpNet>(), address) {
                return network.contains(&address);
            }
            if let (Ok(one), Some(address)) = (entry.parse::<IpAddr>(), address) {
                return one == address;
            }
            let (name, at) = entry.rsplit_once(':').unwrap_or((entry, port));
            let name = name.trim_start_matches("*.").trim_start_matches('.');
            let parent = host.len().checked_sub(name.len()).and_then(|at| host.split_at_checked(at));
            let matches = parent.is_some_and(|(front, tail)| {
                tail.eq_ignore_ascii_case(name) && (front.is_empty() || front.ends_with('.'))
            });
            matches && at == port && !name.is_empty()
        })
    }
}

/// A proxy by its URL: `http://` and `https://`, with user and password where it wants them.
pub(super) fn proxy(url: &str) -> Result<ureq::Proxy> {
    let scheme = url.split_once("://").map_or("http", |(scheme, _)| scheme);
    if !matches!(scheme, "http" | "https") {
        return Err(invalid!("a {scheme} proxy is not supported; http and https are"));
    }
    // The URL may hold a password, so it is not shown.
    ureq::Proxy::new(url).map_err(|_| invalid!("not a proxy URL; wanted is http://host:port"))
}

fn host_and_port(server: &str) -> (&str, &str) {
    let default = if server.starts_with("https://") { "443" } else { "80" };
    let rest = server.split_once("://").map_or(server, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    if let Some((host, after)) = authority.strip_prefix('[').and_then(|a| a.split_once(']')) {
        return (host, after.strip_prefix(':').unwrap_or(default));
    }
    authority.split_once(':').unwrap_or((authority, default))
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
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

    #[test]
    fn proxies_of_the_environment() {
        let check = |none: &str, server: &str, expected: bool| {
            let proxies =
                Proxies { https: "http://u:secret@proxy:3128".into(), http: String::new(), none: none.into() };
            assert_eq!(proxies.for_server(server).unwrap().is_some(), expected, "{none:?} {server}");
        };
        check("", "https://10.0.0.1:443", true);
        check("", "https://127.0.0.1:443", false);
        check("", "https://[::1]:443", false);
        check("", "http://10.0.0.1:80", false);
        check("10.0.0.0/8", "https://10.0.0.1:443", false);
        check("10.0.0.1", "https://10.0.0.1:443", false);
        check("10.0.0.2", "https://10.0.0.1:443", true);
        check("fd00::/16", "https://[fd00::5]:443", false);
        check("*", "https://api.example.test", false);
        check("example.test", "https://api.example.test", false);
        check(".example.test", "https://api.Example.test", false);
        check("other.test, *.example.test", "https://api.example.test", false);
        check("ple.test", "https://api.example.test", true);
        check("example.test:6443", "https://api.example.test:6443", false);
        check("example.test:6443", "https://api.example.test", true);
        let bad = Proxies { https: "socks5://u:secret@p:1".into(), ..Proxies::default() };
        let text = bad.for_server("https://a").unwrap_err().to_string();
        assert_eq!(text, "HTTPS_PROXY: a socks5 proxy is not supported; http and https are");
    }
}
