//! Proves from inside a pod that its traffic is redirected to its sidecar, without a sidecar and without leaving the pod.
//!
//! We listen where Envoy will listen for inbound traffic, and connect to an address of `lo` at which nobody listens,
//! as Envoy's own user: such a connection is inbound traffic by the rules. Only a connection that comes back to us, was
//! going to that address, and carries a word that nobody else knows proves anything; an answer from somebody else does
//! not.

use crate::error::{Context, Error, Kind, Result};
use crate::rules::family::Family;
use crate::sys::netlink;
use crate::sys::{clock, file, tcp};
use ipnet::Ipv4Net;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// Nobody listens there but Envoy.
const PROBE_V4: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);
/// The address that is connected to in IPv6; put on `lo` together with the rules.
const PROBE_V6: Ipv6Addr = crate::rules::sidecar::PASSTHROUGH_V6;
/// A step within the machine takes microseconds; this bounds one that gets nowhere.
const STEP: Duration = Duration::from_millis(500);
/// Between two tries: the rules may still come.
const PAUSE: Duration = Duration::from_millis(100);

/// What is to be proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// In IPv4.
    pub ipv4: bool,
    /// In IPv6.
    pub ipv6: bool,
    /// Where inbound traffic should arrive.
    pub capture_port: u16,
    /// The port that is connected to.
    pub probe_port: u16,
    /// What the rules take for the application's talk with itself, and leave alone.
    pub loopback: Ipv4Net,
    /// How long it is tried, in all.
    pub timeout: Duration,
}

/// Succeeds once every family is proved to be redirected. The error says what was seen last.
pub fn run(options: &Options) -> Result<()> {
    let deadline = clock::now() + options.timeout;
    let families = [(options.ipv4, Family::V4), (options.ipv6, Family::V6)];
    for (_, family) in families.into_iter().filter(|(wanted, _)| *wanted) {
        validate(options, family, deadline)?;
    }
    Ok(())
}

fn validate(options: &Options, family: Family, deadline: Instant) -> Result<()> {
    let (name, here): (_, IpAddr) = match family {
        Family::V4 => ("IPv4", Ipv4Addr::LOCALHOST.into()),
        Family::V6 => ("IPv6", Ipv6Addr::LOCALHOST.into()),
    };
    let to = SocketAddr::new(target(options, family)?, options.probe_port);
    loop {
        match attempt(SocketAddr::new(here, options.capture_port), to) {
            Ok(()) => return Ok(()),
            Err(e) if clock::until(deadline) <= PAUSE => {
                return Err(e.context(format_args!("{name} is not redirected")));
            }
            Err(_) => clock::sleep(PAUSE),
        }
    }
}

/// Where nobody listens, and which the rules do not take for the application's talk with itself.
fn target(options: &Options, family: Family) -> Result<IpAddr> {
    match family {
        Family::V6 => Ok(PROBE_V6.into()),
        Family::V4 if !options.loopback.contains(&PROBE_V4) => Ok(PROBE_V4.into()),
        Family::V4 => {
            let own = netlink::addresses()?.into_iter().find(|ip| ip.is_ipv4() && !ip.is_loopback());
            own.context("no address of this pod's own is there to connect to")
        }
    }
}

fn attempt(capture: SocketAddr, to: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(capture).map_err(|e| {
        let taken = e.kind() == std::io::ErrorKind::AddrInUse;
        let hint = if taken { " (somebody else has the port: nothing can be proved)" } else { "" };
        Error::from(e).context(format_args!("listen on {capture}{hint}"))
    })?;
    listener.set_nonblocking(true).context("listen")?;
    let word = file::read_limited(Path::new("/proc/sys/kernel/random/uuid"), 64)?;
    let mut client = tcp::connect_from(capture.ip(), to, STEP)
        .context("nothing redirects a connection that should be inbound traffic of the pod")?;
    // Whoever it is may have closed it.
    let _ = client.write_all(&word);
    let end = clock::now() + STEP;
    while let Some(stream) = tcp::accept(&listener, clock::until(end))? {
        if says(stream.try_clone().context("accept")?, &word) {
            let went = tcp::original_destination(&stream)?;
            return if went == to {
                Ok(())
            } else {
                Err(Error::new(format_args!("the connection to {to} came back as one to {went}")))
            };
        }
    }
    let message = format_args!("a connection to {to} was answered by somebody else; it did not come to {capture}");
    Err(Error::of(Kind::Refused, message))
}

fn says(mut stream: TcpStream, word: &[u8]) -> bool {
    let mut said = vec![0; word.len()];
    stream.set_read_timeout(Some(STEP)).is_ok() && stream.read_exact(&mut said).is_ok() && said == word
}
