//! `iptables`: programs the redirection to a sidecar, takes it out, or proves that it is there. For the init containers
//! `istio-init` and `istio-validation`, for machines outside of a cluster, and for people.

use super::page::{Page, Request};
use crate::config::iptables::{Options, TABLE, owner_groups};
use crate::config::option::{Remark, Variables, specs};
use crate::dataplane::engine::{self, Applied, Engine};
use crate::dataplane::lock_dir::lock_dir;
use crate::dataplane::validation;
use crate::error::{Context, Error, Kind, Result};
use crate::pod::redirection::Redirection;
use crate::rules::diff::Leftovers;
use crate::rules::family::Family;
use crate::rules::nftables::{tables, text::script};
use crate::rules::render::restore;
use crate::rules::sidecar::{self, Dns, Settings};
use crate::sys::file;
use crate::sys::netlink;
use crate::sys::netns::Netns;
use crate::sys::resolv_conf::ResolvConf;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;

const ABOUT: &str = "Redirects the traffic of a pod, or of a machine, to its sidecar. What is there already stays as it \
                     is where it is right. --cleanup-only takes everything out again; with --run-validation it is \
                     proved that traffic is redirected, and exit code 126 says that it is not.";

/// Largest file of users, groups or name servers that is read, bytes.
const LIMIT: usize = 1 << 20;
/// Envoy's user and group where nothing else is said.
const ENVOY: u32 = 1337;

/// How it is called.
pub fn page() -> Page {
    Page { synopsis: "iptables [OPTION…]", about: ABOUT, operand: None, specs: specs(TABLE) }
}

/// Parses the arguments that follow the command.
pub fn parse(args: &[OsString], variables: &Variables) -> Result<Request<(Options, Vec<Remark>)>> {
    page().request(args, |arguments| Options::read(&arguments.flags, variables))
}

/// Brings the namespace to what was asked for; returns what is to be printed.
pub fn program(options: &Options) -> Result<String> {
    if options.skip_rule_apply {
        return Ok(String::new());
    }
    let netns = match &options.netns {
        None => Netns::own()?,
        Some(path) => Netns::open(path).context("--network-namespace")?,
    };
    let settings = settings(options)?;
    let ipv6 = redirection(options, settings.clone()).ipv6(&netns.enter(netlink::addresses)??, options.native_nftables);
    let program = sidecar::program(&settings, ipv6);
    if options.dry_run && !options.cleanup_only {
        if options.native_nftables {
            return Ok(script(&tables(program.purpose, &program.rules)));
        }
        return Ok(rules(&settings, ipv6));
    }
    let engine = engine(options, &netns)?;
    if options.dry_run {
        let inputs = engine.preview(&netns, &program.emptied(), Leftovers::Remove)?;
        return Ok(inputs.into_iter().map(|(program, input)| format!("# {program}\n{input}")).collect());
    }
    if options.cleanup_only {
        engine.remove(&netns, &program).context("take the redirection out")?;
        log::info!("the redirection is taken out");
        return Ok(String::new());
    }
    let leftovers = if options.reconcile { Leftovers::Remove } else { Leftovers::Keep };
    let applied = if options.force_apply {
        engine.rewrite(&netns, &program, leftovers).map(|()| Applied::Written)
    } else {
        engine.apply(&netns, &program, leftovers)
    };
    match applied.context("redirect to the sidecar")? {
        Applied::Written => log::info!("the redirection is in place"),
        Applied::AlreadyRight => log::info!("the redirection is in place as it was"),
    }
    if leftovers == Leftovers::Keep {
        let left = engine.check(&netns, &program, Leftovers::Remove)?;
        if !left.is_empty() {
            log::warn!(
                "earlier settings left something that may change what happens to traffic; --reconcile takes it out: {}",
                left.join("; ")
            );
        }
    }
    Ok(String::new())
}

/// Proves that traffic is redirected, if that was asked for; the inner error says why it is not.
pub fn validate(options: &Options) -> Result<Result<()>> {
    /// What a person can do about it.
    const REMEDY: &str = "the pod has no working redirection to its sidecar. If istio-cni programs it, the pod may have \
                          started before the node's istio-cni agent was ready: recreate the pod, or let the agent \
                          repair such pods (--repair-repair-pods, --repair-delete-pods)";
    if !options.run_validation || options.dry_run || options.cleanup_only {
        return Ok(Ok(()));
    }
    let redirection = redirection(options, options.settings.clone());
    let addresses = netlink::addresses()?;
    let ipv6 = redirection.ipv6(&addresses, false);
    let wanted = options.validation(!ipv6 || options.dual_stack && addresses.iter().any(is_global_v4), ipv6);
    Ok(match validation::run(&wanted) {
        Ok(()) => {
            log::info!("validation passed: traffic is redirected to port {}", wanted.capture_port);
            Ok(())
        }
        Err(e) => Err(Error::new(format_args!("validation failed: {e}; {}{REMEDY}", wrong_user(options)?))),
    })
}

/// Only what the proxy's user or group sends takes the way that is validated.
fn wrong_user(options: &Options) -> Result<String> {
    let settings = settings(options)?;
    let (user, group) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    if settings.proxy_uids.contains(&user) || settings.proxy_gids.contains(&group) {
        return Ok(String::new());
    }
    Ok(format!(
        "this process runs as user {user}, group {group}, and validation must run as the proxy's (--proxy-uid, \
         --proxy-gid); or "
    ))
}

fn is_global_v4(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V4(v4) if !v4.is_loopback() && !v4.is_link_local())
}

fn redirection(options: &Options, settings: Settings) -> Redirection {
    Redirection { settings, dual_stack: options.dual_stack, warnings: vec![] }
}

fn rules(settings: &Settings, ipv6: bool) -> String {
    let mut text = format!("# ipv4\n{}", restore(&sidecar::rules(settings, Family::V4)));
    if ipv6 {
        let _ = write!(text, "# ipv6\n{}", restore(&sidecar::rules(settings, Family::V6)));
    }
    text
}

fn engine(options: &Options, netns: &Netns) -> Result<Engine> {
    let Options { force_variant, native_nftables, .. } = *options;
    Engine::detect(engine::Options { force_variant, lock_dir: lock_dir()?, program_dir: None, native_nftables }, netns)
}

/// The settings, with users, groups and resolvers looked up.
fn settings(options: &Options) -> Result<Settings> {
    let mut settings = options.settings.clone();
    let uids = match &options.uids {
        Some(uids) => uids.clone(),
        None => vec![number_of("/etc/passwd", &options.envoy_user)?.unwrap_or(ENVOY)],
    };
    settings.proxy_gids = options.gids.clone().unwrap_or_else(|| uids.clone());
    settings.proxy_uids = uids;
    settings.owner_groups = owner_groups(&options.groups, |group| match group.parse() {
        Ok(number) => Ok(number),
        Err(_) => number_of("/etc/group", group)?.with_context(|| format!("group {group:?} is not in /etc/group")),
    })?;
    settings.dns = match (options.redirect_dns, options.capture_all_dns) {
        (false, _) => Dns::Off,
        (true, true) => Dns::All,
        (true, false) => Dns::Resolvers(resolvers()?),
    };
    if settings.dns == Dns::Resolvers(vec![]) {
        log::warn!("/etc/resolv.conf names no server: DNS is not redirected");
        settings.dns = Dns::Off;
    }
    Ok(settings)
}

/// The number that passwd(5) or group(5) gives a name.
fn number_of(file: &str, name: &str) -> Result<Option<u32>> {
    Ok(number_in(&read(file)?, name))
}

fn number_in(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// The name servers of `/etc/resolv.conf`, each once.
fn resolvers() -> Result<Vec<IpAddr>> {
    Ok(addresses(ResolvConf::read()?))
}

fn addresses(conf: ResolvConf) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for server in conf.servers {
        let address = server.address.to_canonical();
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// A file that may be missing.
fn read(path: &str) -> Result<String> {
    match file::read_limited(Path::new(path), LIMIT) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(e) if e.kind() == Kind::NotFound => Ok(String::new()),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_by_name() {
        let passwd = "root:x:0:0::/root:/bin/sh\n# no\nenvoy:x:77:88::/:/bin/false\nbad:x:y\nshort\n";
        assert_eq!(number_in(passwd, "envoy"), Some(77));
        for name in ["env", "bad", "short", "# no", ""] {
            assert_eq!(number_in(passwd, name), None, "{name}");
        }
    }

    #[test]
    fn name_servers() {
        let text = "nameserver 10.0.0.10\nnameserver fe80::1%eth0\nnameserver 10.0.0.10\nnameserver ::ffff:10.0.0.11\n";
        let servers: Vec<String> = addresses(ResolvConf::parse(text)).iter().map(IpAddr::to_string).collect();
        assert_eq!(servers, ["10.0.0.10", "fe80::1", "10.0.0.11"]);
    }
}
