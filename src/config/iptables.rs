//! The options of `istio-iptables`, with the names and letters that Istio gave them.

use super::option::{Expected, Flags, Name, Remark, Row, Section, Spec, Takes, Variables, fill};
use super::value::{boolean, duration, list, log_levels, one_of, port};
use crate::dataplane::validation;
use crate::dataplane::xtables::variant::Variant;
use crate::error::{Error, Kind, Result};
use crate::logging;
use crate::pod::overrides::is_interface_name;
use crate::rules::sidecar::{Interception, Only, OwnerGroups, Settings};
use ipnet::IpNet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Most owner groups: the rule that names them has one match for each.
const MAX_GROUPS: usize = 64;

/// All options with their values. What needs files of the machine (users, groups, resolvers) is not looked up yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// But for users, groups and DNS.
    pub settings: Settings,
    /// `--proxy-uid`.
    pub uids: Option<Vec<u32>>,
    /// `--proxy-gid`; without it, the same numbers as the users.
    pub gids: Option<Vec<u32>>,
    /// `ENVOY_USER`: whose uid is taken without `--proxy-uid`.
    pub envoy_user: String,
    /// `ISTIO_OUTBOUND_OWNER_GROUPS` and `…_EXCLUDE`, by name or number.
    pub groups: Groups,
    /// `--redirect-dns`.
    pub redirect_dns: bool,
    /// `--capture-all-dns`.
    pub capture_all_dns: bool,
    /// `--dual-stack`.
    pub dual_stack: bool,
    /// `--network-namespace`.
    pub netns: Option<PathBuf>,
    /// `--dry-run`.
    pub dry_run: bool,
    /// `--cleanup-only`.
    pub cleanup_only: bool,
    /// `--reconcile`.
    pub reconcile: bool,
    /// `--force-apply`.
    pub force_apply: bool,
    /// `--skip-rule-apply`.
    pub skip_rule_apply: bool,
    /// `--run-validation`.
    pub run_validation: bool,
    /// `--iptables-probe-port`.
    pub probe_port: u16,
    /// `--probe-timeout`.
    pub probe_timeout: Duration,
    /// `--force-iptables-binary`.
    pub force_variant: Option<Variant>,
    /// `--native-nftables`.
    pub native_nftables: bool,
    /// The log.
    pub logging: logging::Options,
}

/// Groups whose outbound traffic is captured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Groups {
    /// Only these; `None` is all.
    pub only: Option<Vec<String>>,
    /// Of all, not these.
    pub but: Vec<String>,
}

impl Options {
    /// Reads every option: flag before variable before default.
    pub fn read(flags: &Flags, variables: &Variables) -> Result<(Self, Vec<Remark>)> {
        let mut options = Options::default();
        let mut remarks = fill(TABLE, flags, variables, &mut options)?;
        let usage = |text: &str| Err(Error::of(Kind::Usage, text));
        if options.groups.only.is_some() && !options.groups.but.is_empty() {
            return usage(
                "ISTIO_OUTBOUND_OWNER_GROUPS names groups, so ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE cannot too",
            );
        }
        if options.capture_all_dns && !options.redirect_dns {
            remarks.push((log::Level::Warn, "--capture-all-dns has no effect without --redirect-dns".to_owned()));
        }
        Ok((options, remarks))
    }

    /// What is validated, in these families.
    pub fn validation(&self, ipv4: bool, ipv6: bool) -> validation::Options {
        validation::Options {
            ipv4,
            ipv6,
            capture_port: self.settings.inbound_port,
            probe_port: self.probe_port,
            loopback: self.settings.loopback_v4,
            timeout: self.probe_timeout,
        }
    }
}

type Set = fn(&mut Options, &str) -> Result<(), Expected>;

const fn row(name: Name, takes: Takes, default: &'static str, help: &'static str, set: Set) -> Row<Options> {
    Row { spec: Spec { name, takes, default, section: Section::Command, help }, set }
}

const fn short(
    letter: char,
    name: &'static str,
    takes: &'static str,
    default: &'static str,
    help: &'static str,
    set: Set,
) -> Row<Options> {
    row(Name::Lettered(letter, name), Takes::Value(takes), default, help, set)
}

const fn long(
    name: &'static str,
    takes: &'static str,
    default: &'static str,
    help: &'static str,
    set: Set,
) -> Row<Options> {
    row(Name::Flag(name), Takes::Value(takes), default, help, set)
}

const fn switch(name: &'static str, default: &'static str, help: &'static str, set: Set) -> Row<Options> {
    row(Name::Flag(name), Takes::Switch, default, help, set)
}

const fn variable(
    name: &'static str,
    takes: Takes,
    default: &'static str,
    help: &'static str,
    set: Set,
) -> Row<Options> {
    row(Name::Variable(name), takes, default, help, set)
}

const fn ignored(name: Name, takes: Takes, help: &'static str) -> Row<Options> {
    Row { spec: Spec { name, takes, default: "", section: Section::Ignored, help }, set: |_, _| Ok(()) }
}

fn put<T>(field: &mut T, value: Result<T, Expected>) -> Result<(), Expected> {
    *field = value?;
    Ok(())
}

/// Every option. A variable that only gives another option its default stands before it.
pub const TABLE: &[Row<Options>] = &[
    short('p', "envoy-port", "PORT", "15001", "Envoy's port for what the application sends.", |o, v| {
        put(&mut o.settings.outbound_port, port(v))
    }),
    short('z', "inbound-capture-port", "PORT", "15006", "Envoy's port for what arrives.", |o, v| {
        put(&mut o.settings.inbound_port, port(v))
    }),
    short('e', "inbound-tunnel-port", "PORT", "15008", "Envoy's port for HBONE; never redirected.", |o, v| {
        put(&mut o.settings.tunnel_port, port(v))
    }),
    variable("ENVOY_USER", Takes::Value("NAME"), "istio-proxy", "The user Envoy runs as.", |o, v| {
        put(&mut o.envoy_user, Ok(v.to_owned()))
    }),
    short(
        'u',
        "proxy-uid",
        "LIST",
        "",
        "Users whose traffic passes, by number; without it, ENVOY_USER's, or 1337 if there is none of that name.",
        |o, v| put(&mut o.uids, ids(v)),
    ),
    short(
        'g',
        "proxy-gid",
        "LIST",
        "",
        "Groups whose traffic passes, by number; without it, the numbers of --proxy-uid.",
        |o, v| put(&mut o.gids, ids(v)),
    ),
    row(
        Name::Lettered('m', "istio-inbound-interception-mode"),
        Takes::OneOf(&["REDIRECT", "TPROXY"]),
        "REDIRECT",
        "How inbound traffic reaches Envoy.",
        |o, v| put(&mut o.settings.interception, interception(v)),
    ),
    short('b', "istio-inbound-ports", "PORTS", "", "Inbound ports that are captured, or *; none if empty.", |o, v| {
        put(&mut o.settings.inbound_ports, all_or(v, ports))
    }),
    short('d', "istio-local-exclude-ports", "PORTS", "", "Inbound ports that are not, where all are.", |o, v| {
        put(&mut o.settings.inbound_ports_excluded, ports(v))
    }),
    short('c', "istio-exclude-interfaces", "NAMES", "", "Interfaces that are left alone.", |o, v| {
        put(&mut o.settings.interfaces_excluded, interfaces(v))
    }),
    short('i', "istio-service-cidr", "RANGES", "", "Destinations that are captured, or *; none if empty.", |o, v| {
        put(&mut o.settings.outbound_ranges, all_or(v, ranges))
    }),
    short('x', "istio-service-exclude-cidr", "RANGES", "", "Destinations that are not.", |o, v| {
        // All of them are excluded already where none is included.
        put(&mut o.settings.outbound_ranges_excluded, ranges(v))
    }),
    short('q', "istio-outbound-ports", "PORTS", "", "Destination ports captured whatever the destination.", |o, v| {
        put(&mut o.settings.outbound_ports, ports(v))
    }),
    short('o', "istio-local-outbound-ports-exclude", "PORTS", "", "Destination ports never captured.", |o, v| {
        put(&mut o.settings.outbound_ports_excluded, ports(v))
    }),
    short('k', "kube-virt-interfaces", "NAMES", "", "Virtual interfaces whose traffic counts as outbound.", |o, v| {
        put(&mut o.settings.reroute_interfaces, interfaces(v))
    }),
    short('t', "istio-inbound-tproxy-mark", "MARK", "1337", "Mark of packets for Envoy, with TPROXY.", |o, v| {
        put(&mut o.settings.tproxy_mark, number(v))
    }),
    short('r', "istio-inbound-tproxy-route-table", "TABLE", "133", "Routing table of that mark.", |o, v| {
        put(&mut o.settings.tproxy_table, number(v))
    }),
    variable(
        "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR",
        Takes::Value("RANGE"),
        "127.0.0.1/32",
        "What counts as the application's talk with itself.",
        |o, v| put(&mut o.settings.loopback_v4, v.parse().map_err(|_| "an IPv4 range as 127.0.0.1/32".to_owned())),
    ),
    variable(
        "ISTIO_OUTBOUND_OWNER_GROUPS",
        Takes::Value("LIST"),
        "*",
        "Groups whose outbound traffic is captured, by name or number, or *; 64 at most.",
        |o, v| put(&mut o.groups.only, if v.trim() == "*" { Ok(None) } else { groups(v).map(Some) }),
    ),
    variable(
        "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE",
        Takes::Value("LIST"),
        "",
        "Groups whose outbound traffic is not, where that of all is.",
        |o, v| put(&mut o.groups.but, groups(v)),
    ),
    variable("ISTIO_META_DNS_CAPTURE", Takes::Switch, "false", "Default of --redirect-dns.", |o, v| {
        put(&mut o.redirect_dns, boolean(v))
    }),
    switch("redirect-dns", "", "Redirect DNS to the sidecar's resolver (port 15053).", |o, v| {
        put(&mut o.redirect_dns, boolean(v))
    }),
    switch(
        "capture-all-dns",
        "false",
        "Redirect every query, and not only those to the name servers of /etc/resolv.conf.",
        |o, v| put(&mut o.capture_all_dns, boolean(v)),
    ),
    variable("INVALID_DROP", Takes::Switch, "false", "Default of --drop-invalid.", |o, v| {
        put(&mut o.settings.drop_invalid, boolean(v))
    }),
    switch(
        "drop-invalid",
        "",
        "Drop packets that belong to no connection, instead of letting them reset one.",
        |o, v| put(&mut o.settings.drop_invalid, boolean(v)),
    ),
    variable("ISTIO_DUAL_STACK", Takes::Switch, "false", "Default of --dual-stack.", |o, v| {
        put(&mut o.dual_stack, boolean(v))
    }),
    switch("dual-stack", "", "Program IPv6 when any address is IPv6, and not only when the first is.", |o, v| {
        put(&mut o.dual_stack, boolean(v))
    }),
    long("network-namespace", "NAME", "", "Namespace to program, by path or name; without it, this one.", |o, v| {
        put(&mut o.netns, Ok(netns(v)))
    }),
    row(
        Name::Lettered('n', "dry-run"),
        Takes::Switch,
        "false",
        "Print what would be loaded, and touch nothing.",
        |o, v| put(&mut o.dry_run, boolean(v)),
    ),
    switch("cleanup-only", "false", "Take everything of ours out, and do nothing else.", |o, v| {
        put(&mut o.cleanup_only, boolean(v))
    }),
    switch("reconcile", "false", "Take out what earlier settings left, too.", |o, v| put(&mut o.reconcile, boolean(v))),
    switch("force-apply", "false", "Write every rule again, even where it is there already.", |o, v| {
        put(&mut o.force_apply, boolean(v))
    }),
    switch("skip-rule-apply", "false", "Change nothing (for --run-validation).", |o, v| {
        put(&mut o.skip_rule_apply, boolean(v))
    }),
    switch(
        "run-validation",
        "false",
        "Prove that traffic is redirected, running as the proxy's user and group; exit code 126 if it is not.",
        |o, v| put(&mut o.run_validation, boolean(v)),
    ),
    long("iptables-probe-port", "PORT", "15002", "Port that validation connects to.", |o, v| {
        put(&mut o.probe_port, port(v))
    }),
    long("probe-timeout", "DURATION", "5s", "How long validation tries.", |o, v| {
        put(&mut o.probe_timeout, duration(v))
    }),
    row(
        Name::Flag("force-iptables-binary"),
        Takes::OneOf(&["legacy", "nft"]),
        "",
        "Variant of iptables to use instead of the one found by testing.",
        |o, v| put(&mut o.force_variant, one_of(v, &["legacy", "nft"]).map(|v| v.parse().ok())),
    ),
    switch("native-nftables", "false", "Use nf_tables instead of iptables.", |o, v| {
        put(&mut o.native_nftables, boolean(v))
    }),
    long("log_output_level", "LEVELS", "default:info", "Levels of the log by scope.", |o, v| {
        put(&mut o.logging.levels, log_levels(v))
    }),
    switch("log_as_json", "false", "Write log lines as JSON.", |o, v| put(&mut o.logging.json, boolean(v))),
    ignored(Name::Flag("cni-mode"), Takes::Switch, ""),
    ignored(
        Name::Lettered('f', "restore-format"),
        Takes::Switch,
        "What is printed is always input of iptables-restore.",
    ),
    ignored(Name::Flag("iptables-trace-logging"), Takes::Switch, ""),
    ignored(Name::Flag("log_target"), Takes::Value("LIST"), ""),
    ignored(Name::Flag("log_caller"), Takes::Value("SCOPES"), ""),
    ignored(Name::Flag("log_stacktrace_level"), Takes::Value("LEVELS"), ""),
    ignored(Name::Flag("log_rotate"), Takes::Value("FILE"), ""),
    ignored(Name::Flag("vklog"), Takes::Value("LEVEL"), ""),
];

fn each<T>(text: &str, expected: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, Expected> {
    list(text).iter().map(|entry| parse(entry).ok_or_else(|| expected.to_owned())).collect()
}

fn all_or<T>(text: &str, parse: impl FnOnce(&str) -> Result<Vec<T>, Expected>) -> Result<Only<T>, Expected> {
    match text.trim() {
        "*" => Ok(Only::All),
        text => parse(text).map(Only::These).map_err(|expected| format!("* or {expected}")),
    }
}

fn ports(text: &str) -> Result<Vec<u16>, Expected> {
    each(text, "ports (0 to 65535), separated by commas", |entry| u16::from_str(entry).ok())
}

fn ranges(text: &str) -> Result<Vec<IpNet>, Expected> {
    let range = |entry: &str| IpNet::from_str(entry).ok().map(|net| net.trunc());
    each(text, "address ranges such as 10.0.0.0/8 or fd00::/8, separated by commas", range)
}

fn interfaces(text: &str) -> Result<Vec<String>, Expected> {
    let name = |entry: &str| is_interface_name(entry).then(|| entry.to_owned());
    each(text, "names of network interfaces, separated by commas", name)
}

/// An empty list is as none at all.
fn ids(text: &str) -> Result<Option<Vec<u32>>, Expected> {
    let ids = each(text, "numbers of users or groups, separated by commas", |entry| u32::from_str(entry).ok())?;
    Ok(Some(ids).filter(|ids| !ids.is_empty()))
}

fn groups(text: &str) -> Result<Vec<String>, Expected> {
    let groups = list(text);
    if groups.len() > MAX_GROUPS { Err(format!("at most {MAX_GROUPS} groups")) } else { Ok(groups) }
}

fn interception(text: &str) -> Result<Interception, Expected> {
    match text {
        "" | "REDIRECT" => Ok(Interception::Redirect),
        "TPROXY" => Ok(Interception::Tproxy),
        _ => Err("REDIRECT or TPROXY".to_owned()),
    }
}

fn number(text: &str) -> Result<u32, Expected> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "a number above 0".to_owned())
}

/// As `ip netns` names them, or by path.
fn netns(text: &str) -> Option<PathBuf> {
    match text {
        "" => None,
        path if path.contains('/') => Some(path.into()),
        name => Some(Path::new("/var/run/netns").join(name)),
    }
}

/// Groups by number.
pub fn owner_groups(groups: &Groups, number: impl Fn(&str) -> Result<u32>) -> Result<OwnerGroups> {
    let numbers = |names: &[String]| names.iter().map(|name| number(name)).collect::<Result<Vec<_>>>();
    Ok(match &groups.only {
        Some(only) => OwnerGroups::Only(numbers(only)?),
        None => OwnerGroups::AllBut(numbers(&groups.but)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(flags: &[(&'static str, &str)], variables: &[(&str, &str)]) -> Result<(Options, Vec<Remark>)> {
        let flags = flags.iter().map(|(k, v)| (*k, (*v).to_owned())).collect();
        let variables = variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Options::read(&flags, &variables)
    }

    #[test]
    fn defaults_are_those_of_the_rules() {
        let (options, remarks) = read(&[], &[]).unwrap();
        assert_eq!((&options.settings, remarks.as_slice()), (&Settings::default(), &[][..]));
        assert_eq!((options.probe_port, options.probe_timeout), (15002, Duration::from_secs(5)));
        assert_eq!(options.envoy_user, "istio-proxy");
        assert!(!options.redirect_dns && options.uids.is_none() && options.groups.only.is_none());
    }

    #[test]
    fn names_and_letters_are_unique() {
        let mut seen = std::collections::BTreeSet::new();
        for row in TABLE {
            let name = row.spec.name;
            assert!(name.flag().is_none_or(|flag| seen.insert(flag.to_owned())), "{name:?}");
            assert!(name.letter().is_none_or(|letter| seen.insert(letter.to_string())), "{name:?}");
            assert!(name.variable().is_none_or(|variable| seen.insert(variable)), "{name:?}");
        }
    }

    #[test]
    fn everything_arrives_where_it_belongs() {
        let flags = [
            ("envoy-port", "1"),
            ("inbound-capture-port", "2"),
            ("inbound-tunnel-port", "3"),
            ("proxy-uid", "4,5"),
            ("proxy-gid", "6"),
            ("istio-inbound-interception-mode", "TPROXY"),
            ("istio-inbound-ports", "*"),
            ("istio-local-exclude-ports", "7, 8"),
            ("istio-exclude-interfaces", "eth1"),
            ("istio-service-cidr", "10.1.2.3/8,fd00::1/8"),
            ("istio-service-exclude-cidr", ""),
            ("istio-outbound-ports", "9"),
            ("istio-local-outbound-ports-exclude", "10"),
            ("kube-virt-interfaces", "net1"),
            ("istio-inbound-tproxy-mark", "11"),
            ("istio-inbound-tproxy-route-table", "12"),
            ("network-namespace", "blue"),
            ("redirect-dns", "false"),
            ("iptables-probe-port", "13"),
            ("probe-timeout", "1m"),
            ("force-iptables-binary", "legacy"),
        ];
        let variables = [
            ("ISTIO_META_DNS_CAPTURE", "true"),
            ("INVALID_DROP", "true"),
            ("DUAL_STACK", "true"),
            ("RECONCILE", "1"),
            ("FORCE_APPLY", "true"),
            ("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "127.0.0.0/8"),
            ("ISTIO_OUTBOUND_OWNER_GROUPS", "java,202"),
            ("ENVOY_USER", "envoy"),
            ("SKIP_RULE_APPLY", "true"),
        ];
        let (options, _) = read(&flags, &variables).unwrap();
        let settings = &options.settings;
        assert_eq!((settings.outbound_port, settings.inbound_port, settings.tunnel_port), (1, 2, 3));
        assert_eq!((options.uids, options.gids), (Some(vec![4, 5]), Some(vec![6])));
        assert_eq!((settings.interception, &settings.inbound_ports), (Interception::Tproxy, &Only::All));
        assert_eq!(settings.inbound_ports_excluded, [7, 8]);
        assert_eq!(
            (&settings.interfaces_excluded[..], &settings.reroute_interfaces[..]),
            (&["eth1".into()][..], &["net1".into()][..])
        );
        let ranges = ["10.0.0.0/8", "fd00::/8"].map(|net| net.parse().unwrap());
        assert_eq!(
            (&settings.outbound_ranges, settings.outbound_ranges_excluded.len()),
            (&Only::These(ranges.into()), 0)
        );
        assert_eq!((&settings.outbound_ports[..], &settings.outbound_ports_excluded[..]), (&[9][..], &[10][..]));
        assert_eq!((settings.tproxy_mark, settings.tproxy_table), (11, 12));
        assert_eq!(settings.loopback_v4.to_string(), "127.0.0.0/8");
        assert!(settings.drop_invalid && options.dual_stack && options.reconcile && options.skip_rule_apply);
        assert!(options.force_apply);
        assert!(!options.redirect_dns, "a flag wins over the variable that gives its default");
        assert_eq!(options.netns.as_deref(), Some(Path::new("/var/run/netns/blue")));
        assert_eq!((options.probe_port, options.probe_timeout.as_secs()), (13, 60));
        assert_eq!((options.force_variant, options.envoy_user.as_str()), (Some(Variant::Legacy), "envoy"));
        assert_eq!(options.groups.only, Some(vec!["java".to_owned(), "202".to_owned()]));
    }

    #[test]
    fn wrong_values_are_named() {
        for (flag, value) in [
            ("envoy-port", "x"),
            ("proxy-uid", "root"),
            ("istio-inbound-interception-mode", "redirect"),
            ("istio-inbound-ports", "80,*"),
            ("istio-service-cidr", "10.0.0.1"),
            ("istio-exclude-interfaces", "a b"),
            ("istio-inbound-tproxy-mark", "0"),
            ("force-iptables-binary", "nftables"),
            ("probe-timeout", "5"),
        ] {
            let e = read(&[(flag, value)], &[]).unwrap_err();
            assert_eq!(e.kind(), Kind::Usage);
            let text = e.to_string();
            assert!(text.contains(&format!("option --{flag}: {value:?} is not allowed; expected")), "{text}");
        }
        let many = (0..65).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        assert!(read(&[], &[("ISTIO_OUTBOUND_OWNER_GROUPS", &many)]).is_err());
        assert!(
            read(&[], &[("ISTIO_OUTBOUND_OWNER_GROUPS", "1"), ("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "2")]).is_err()
        );
    }
}
