//! A network namespace to put rules into, and eyes that do not use the code under test.

use crate::support::engine;
use ferrule::dataplane::backend::Backend;
use ferrule::dataplane::inpod::InPod;
use ferrule::dataplane::xtables::variant::Variant;
use ferrule::rules::inpod::Settings;
use ferrule::sys::netns::Netns;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

pub(super) const VARIANTS: [Variant; 2] = [Variant::Nft, Variant::Legacy];

/// A namespace as runtimes hand them over: loopback up.
pub(crate) fn pod() -> Netns {
    let netns = Netns::scratch().unwrap();
    sh(&netns, "ip link set lo up");
    netns
}

/// Settings as a plain pod has them.
pub(crate) fn plain() -> Settings {
    Settings {
        dns_capture: false,
        ingress_mode: false,
        reroute_interfaces: vec![],
        ipv6: true,
        probe_v4: Ipv4Addr::new(169, 254, 7, 127),
        probe_v6: "e9ac:1e77:90ca:399f:4d6d:ece2:2f9b:3164".parse().unwrap(),
    }
}

/// Settings of every kind.
pub(crate) fn every_settings() -> Vec<Settings> {
    let mut all = Vec::new();
    for bits in 0..16 {
        all.push(Settings {
            dns_capture: bits & 1 != 0,
            ingress_mode: bits & 2 != 0,
            reroute_interfaces: if bits & 4 != 0 { vec!["fake0".into(), "fake1".into()] } else { vec![] },
            ipv6: bits & 8 != 0,
            ..plain()
        });
    }
    all
}

/// Runs a shell script inside and returns what it prints.
#[track_caller]
pub(crate) fn sh(netns: &Netns, script: &str) -> String {
    let output = netns.enter(|| Command::new("sh").args(["-ec", script]).output().unwrap()).unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Loads rules of others, in every table and family, some with names that look like ours.
pub(crate) fn foreign(netns: &Netns, variant: Variant) {
    let mut input = String::new();
    for table in ["mangle", "nat", "raw"] {
        input += &format!(
            "*{table}\n:FOREIGN - [0:0]\n:ISTIO_FOREIGN - [0:0]\n-A OUTPUT -p tcp --dport 9999 -j FOREIGN\n\
             -A PREROUTING -i ext0 -j ISTIO_FOREIGN\n-A FOREIGN -m comment --comment \"keep me\" -j RETURN\n\
             -A ISTIO_FOREIGN -p udp -j RETURN\nCOMMIT\n"
        );
    }
    load(netns, variant, &input);
}

/// Loads the same input in both families.
pub(crate) fn load(netns: &Netns, variant: Variant, input: &str) {
    for ip in ["iptables", "ip6tables"] {
        sh(netns, &format!("{ip}-{variant}-restore --noflush <<'END'\n{input}END\n"));
    }
}

/// Everything in a variant's tables of one family, without counters and without tables in which nothing is.
pub(crate) fn saved(netns: &Netns, variant: Variant, ip: &str) -> Vec<String> {
    meaningful(&sh(netns, &format!("{ip}-{variant}-save 2>/dev/null")))
}

fn meaningful(save: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut table = Vec::new();
    for line in save.lines() {
        match line.split_once(' ') {
            Some(("#", _)) => {}
            Some((chain, rest)) if chain.starts_with(':') => {
                let policy = rest.split(' ').next().unwrap();
                if policy != "ACCEPT" {
                    table.push(format!("{chain} {policy}"));
                }
            }
            _ if line.starts_with('*') => table = vec![line.to_owned()],
            _ if line == "COMMIT" => {
                if table.len() > 1 {
                    table[1..].sort_by_key(|line| line.starts_with("-A"));
                    all.append(&mut table);
                }
            }
            _ => table.push(line.to_owned()),
        }
    }
    all
}

/// All that a namespace holds: both variants and families, routes and routing rules.
pub(crate) fn everything(netns: &Netns) -> Vec<String> {
    const SCRIPT: &str = "
        for tool in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do
            echo \"## $tool\"; $tool-save 2>/dev/null
        done
        for family in -4 -6; do
            echo \"## $family\"; ip $family rule; ip $family route show table 100 2>/dev/null || true
        done";
    let text = sh(netns, SCRIPT);
    let parts = text.split("## ").filter_map(|part| part.split_once('\n'));
    let named = parts.flat_map(|(name, text)| {
        let lines = if name.starts_with('-') { lines(text) } else { meaningful(text) };
        lines.into_iter().map(move |line| format!("{name} {line}"))
    });
    named.collect()
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.trim().to_owned()).collect()
}

/// Routing rules and the routes of our table.
pub(crate) fn routing(netns: &Netns, family: &str) -> Vec<String> {
    lines(&sh(netns, &format!("ip {family} rule; ip {family} route show table 100 2>/dev/null || true")))
}

/// A programmer that uses `variant`, and the directory it works in.
pub(crate) fn programmer(variant: Variant) -> (InPod, TempDir) {
    engine::programmer(Backend::Iptables(variant))
}

/// Fills a directory with programs that write their name to `calls` and then do what they should.
pub(crate) fn counted_programs(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    for variant in VARIANTS {
        for ip in ["iptables", "ip6tables"] {
            for name in [format!("{ip}-{variant}"), format!("{ip}-{variant}-restore")] {
                let script =
                    format!("#!/bin/sh\necho {name} >> {}/calls\nexec /usr/sbin/{name} \"$@\"\n", dir.display());
                std::fs::write(dir.join(&name), script).unwrap();
                std::fs::set_permissions(dir.join(&name), PermissionsExt::from_mode(0o755)).unwrap();
            }
        }
    }
}

/// How many programs of [`counted_programs`] were run.
pub(crate) fn calls(dir: &Path) -> usize {
    std::fs::read_to_string(dir.join("calls")).unwrap().lines().count()
}

/// What `nft` lists of tables that are not those of iptables.
pub(super) fn meaningful_nft(netns: &Netns) -> Vec<String> {
    let list = sh(netns, "nft -a list ruleset 2>/dev/null | sed '/^table ip6* /,/^}/d'");
    list.lines().map(str::to_owned).collect()
}
