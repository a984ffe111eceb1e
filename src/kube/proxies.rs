//! The proxy through which a server is reached.

use crate::error::{Context, Result};
use crate::invalid;
use ipnet::IpNet;
use std::net::IpAddr;

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
