//! `wait`: blocks until a URL answers 200, as a gate in front of a program.

use super::page::{Page, Request};
use crate::config::option::{Expected, Name, Row, Section, Spec, Takes, Variables, fill, specs};
use crate::error::{Context, Error, Kind, Result};
use crate::http::client::{encode_request, exchange};
use crate::sys::clock;
use crate::sys::lookup;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

const ABOUT: &str = "Waits until a URL answers 200 (http only), asking again and again. Exit code 1, with the last \
                     reason, when it does not in time.";

/// Longest answer that is read, bytes. Only its status counts.
const LIMIT: usize = 1 << 20;

/// What is waited for, and how long.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wait {
    url: Url,
    timeout: Duration,
    period: Duration,
    request_timeout: Duration,
}

/// The parts of a URL that count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Url {
    host: String,
    port: u16,
    target: String,
}

const fn row(
    name: &'static str,
    takes: &'static str,
    default: &'static str,
    help: &'static str,
    set: fn(&mut Wait, &str) -> Result<(), Expected>,
) -> Row<Wait> {
    let (name, takes) = (Name::FlagOnly(name), Takes::Value(takes));
    Row { spec: Spec { name, takes, default, section: Section::Command, help }, set }
}

const TABLE: &[Row<Wait>] = &[
    row("url", "URL", "http://localhost:15021/healthz/ready", "What to ask.", |wait, value| {
        wait.url = Url::parse(value).ok_or_else(|| "a URL as http://localhost:15020/healthz/ready".to_owned())?;
        Ok(())
    }),
    row("timeout-seconds", "SECONDS", "60", "When to give up.", |wait, value| {
        wait.timeout = Duration::from_secs(number(value)?);
        Ok(())
    }),
    row("period-millis", "MILLISECONDS", "500", "Between two requests.", |wait, value| {
        wait.period = Duration::from_millis(number(value)?);
        Ok(())
    }),
    row("request-timeout-millis", "MILLISECONDS", "500", "Limit of one request.", |wait, value| {
        wait.request_timeout = Duration::from_millis(number(value)?);
        Ok(())
    }),
];

fn number(text: &str) -> Result<u64, Expected> {
    let number = text.parse::<u32>().ok().filter(|number| *number > 0);
    number.map(u64::from).ok_or_else(|| "a number above 0".to_owned())
}

impl Url {
    fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("http://")?;
        let (authority, target) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let (host, port) = match authority.rsplit_once(':') {
            // A colon within brackets is part of an IPv6 address.
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
            _ => (authority, 80),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if host.is_empty() || host.contains('@') || !plain(host) || !plain(target) {
            return None;
        }
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        let target = target.split('#').next()?.to_owned();
        Some(Url { host: host.to_owned(), port, target })
    }
}

/// How it is called.
pub fn page() -> Page {
    Page { synopsis: "wait [OPTION…]", about: ABOUT, operand: None, specs: specs(TABLE) }
}

/// Parses the arguments that follow the command.
pub fn parse(args: &[OsString], variables: &Variables) -> Result<Request<Wait>> {
    page().request(args, |arguments| {
        let mut wait = Wait::default();
        fill(TABLE, &arguments.flags, variables, &mut wait)?;
        Ok(wait)
    })
}

impl Wait {
    /// Waits. Fails with the last reason.
    pub fn run(&self) -> Result<()> {
        let deadline = clock::now() + self.timeout;
        loop {
            let error = match self.ask() {
                Ok(200) => return Ok(()),
                Ok(status) => Error::new(format_args!("it answered {status}")),
                Err(e) => e,
            };
            if clock::until(deadline) <= self.period {
                let Url { host, port, target } = &self.url;
                let what = format_args!("http://{host}:{port}{target} was not ready in {} s", self.timeout.as_secs());
                return Err(error.context(what));
            }
            clock::sleep(self.period);
        }
    }

    /// The status of one answer.
    fn ask(&self) -> Result<u16> {
        let end = clock::now() + self.request_timeout;
        let Url { host, port, target } = &self.url;
        let addresses = match host.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => {
                lookup::look_up(host, self.request_timeout, &|| false).with_context(|| format!("look up {host}"))?
            }
        };
        let mut error = Error::of(Kind::NotFound, format_args!("{host} has no address"));
        for address in addresses {
            let to = SocketAddr::new(address, *port);
            // A time-out of zero would be an error of its own.
            let left = clock::until(end).max(Duration::from_millis(1));
            match TcpStream::connect_timeout(&to, left) {
                Ok(mut stream) => {
                    let left = clock::until(end).max(Duration::from_millis(1));
                    stream.set_read_timeout(Some(left)).and_then(|()| stream.set_write_timeout(Some(left)))?;
                    return Ok(exchange(&mut stream, &encode_request("GET", target, host, b""), LIMIT)?.status);
                }
                Err(e) => error = Error::from(e).context(format_args!("connect to {to}")),
            }
        }
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let check = |text: &str, want: Option<(&str, u16, &str)>| {
            let got = Url::parse(text);
            let got = got.as_ref().map(|url| (url.host.as_str(), url.port, url.target.as_str()));
            assert_eq!(got, want, "{text}");
        };
        check("http://localhost:15020/healthz/ready", Some(("localhost", 15020, "/healthz/ready")));
        check("http://a", Some(("a", 80, "/")));
        check("http://a?x=y#z", Some(("a", 80, "/?x=y")));
        check("http://[::1]:8/x", Some(("::1", 8, "/x")));
        check("http://[::1]", Some(("::1", 80, "/")));
        for text in [
            "",
            "a",
            "https://a",
            "http://",
            "http://:80",
            "http://a:b",
            "http://a:65536",
            "http://u@a/",
            "http://a/b c",
        ] {
            check(text, None);
        }
    }
}
