//! The resolver's configuration (resolv.conf(5)).

use super::file;
use crate::error::{Kind, Result};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

/// Where it is.
pub const PATH: &str = "/etc/resolv.conf";
/// Largest file that is read, bytes.
const LIMIT: usize = 1 << 20;

/// What the file says. Keywords that are not known are passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvConf {
    /// `nameserver`, in order.
    pub servers: Vec<NameServer>,
    /// `search` or `domain`, whichever comes last: the domains below which short names are tried.
    pub search: Vec<String>,
    /// `options ndots`: names with fewer dots are tried below the search domains first.
    pub ndots: usize,
    /// `options timeout`: how long one server may take for one question.
    pub timeout: Duration,
    /// `options attempts`: how often each server is asked.
    pub attempts: u32,
}

/// A server, at port 53.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameServer {
    /// Its address.
    pub address: IpAddr,
    /// The interface of a link-local address: `fe80::1%eth0`.
    pub zone: Option<String>,
}

impl ResolvConf {
    /// Reads [`PATH`]; one that is missing says nothing.
    pub fn read() -> Result<Self> {
        match file::read_limited(Path::new(PATH), LIMIT) {
            Ok(bytes) => Ok(Self::parse(&String::from_utf8_lossy(&bytes))),
            Err(e) if e.kind() == Kind::NotFound => Ok(Self::parse("")),
            Err(e) => Err(e),
        }
    }

    /// Parses the text of the file; what is not said has glibc's defaults. Pure.
    pub fn parse(text: &str) -> Self {
        let mut conf = ResolvConf {
            servers: Vec::new(),
            search: Vec::new(),
            ndots: 1,
            timeout: Duration::from_secs(2),
            attempts: 2,
        };
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") => conf.servers.extend(words.next().and_then(NameServer::parse)),
                Some("search" | "domain") => conf.search = words.map(str::to_owned).collect(),
                Some("options") => words.for_each(|option| conf.option(option)),
                _ => {}
            }
        }
        conf
    }

    fn option(&mut self, option: &str) {
        let (name, value) = option.split_once(':').unwrap_or((option, ""));
        let Ok(value) = value.parse::<u32>() else { return };
        match name {
            "ndots" => self.ndots = value.min(15) as usize,
            "timeout" => self.timeout = Duration::from_secs(u64::from(value.clamp(1, 30))),
            "attempts" => self.attempts = value.clamp(1, 5),
            _ => {}
        }
    }
}

impl NameServer {
    fn parse(word: &str) -> Option<Self> {
        let (address, zone) = word.split_once('%').map_or((word, None), |(address, zone)| (address, Some(zone)));
        Some(NameServer { address: address.parse().ok()?, zone: zone.map(str::to_owned) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_domains_and_options() {
        let text = "# nameserver 1.1.1.1\nsearch a.test b.test.\nnameserver 10.96.0.10\nnameserver\tfe80::1%eth0\n\
                    nameserver ::1\nnameserver nonsense\nnameserver\noptions ndots:5 timeout:1 attempts:9 edns0 x:y\n";
        let server = |address: &str, zone: Option<&str>| NameServer {
            address: address.parse().unwrap(),
            zone: zone.map(str::to_owned),
        };
        let expected = ResolvConf {
            servers: vec![server("10.96.0.10", None), server("fe80::1", Some("eth0")), server("::1", None)],
            search: vec!["a.test".into(), "b.test.".into()],
            ndots: 5,
            timeout: Duration::from_secs(1),
            attempts: 5,
        };
        assert_eq!(ResolvConf::parse(text), expected);
    }

    #[test]
    fn defaults_and_limits() {
        let conf = ResolvConf::parse("search a\ndomain b\noptions ndots:99 timeout:0 attempts:0\n");
        assert_eq!((conf.search.as_slice(), conf.ndots), (["b".to_owned()].as_slice(), 15));
        assert_eq!((conf.timeout, conf.attempts), (Duration::from_secs(1), 1));
        let none = ResolvConf::parse("");
        assert_eq!((none.servers.len(), none.ndots, none.timeout.as_secs(), none.attempts), (0, 1, 2, 2));
    }
}
