//! Which packet filter works here, tried as the agent tries it.

use super::finding::Finding;
use super::options::Options;
use crate::dataplane::backend::Backend;
use crate::dataplane::engine::{self, Engine};
use crate::dataplane::lock_dir::lock_dir;
use crate::dataplane::xtables::variant::Variant;
use crate::error::Result;
use crate::sys::netns::Netns;

#[derive(Debug)]
pub(super) struct Facts {
    /// What the agent would use, or why it can use nothing.
    chosen: Result<Chosen, String>,
}

#[derive(Debug)]
struct Chosen {
    backend: Backend,
    /// Whether it can do IPv6, or why not.
    ipv6: Result<(), String>,
    /// Programs that work: variant, name, version.
    working: Vec<(Variant, String)>,
    /// And of the others, what is wrong with them.
    broken: Vec<String>,
}

impl Facts {
    pub(super) fn gather(options: &Options) -> Self {
        Facts { chosen: choose(options).map_err(|e| e.to_string()) }
    }

    pub(super) fn judge(&self, options: &Options) -> Vec<Finding> {
        const CHECK: &str = "packet filter";
        let Chosen { backend, ipv6, working, broken } = match &self.chosen {
            Ok(chosen) => chosen,
            Err(e) => {
                let remedy = "the agent needs iptables where it runs: use an image or a host that has it, as root";
                return vec![Finding::fail(CHECK, &e, &remedy)];
            }
        };
        let names: Vec<&str> = working.iter().map(|(_, name)| name.as_str()).collect();
        let mut findings = match backend {
            Backend::Nftables => vec![Finding::ok(CHECK, &"nf_tables, natively")],
            Backend::Iptables(_) if options.native_nftables => vec![Finding::warn(
                CHECK,
                &format_args!("nf_tables cannot be used natively (--native-nftables); {} is used", names.join(", ")),
                &"load the kernel module nf_tables on the host (modprobe nf_tables)",
            )],
            Backend::Iptables(variant) => {
                let (used, others): (Vec<_>, Vec<_>) = working.iter().partition(|(found, _)| found == variant);
                let mut text = used.iter().map(|(_, name)| format!("{name} is used")).collect::<String>();
                for (_, name) in others {
                    text += &format!("; {name} works, too");
                }
                vec![Finding::ok(CHECK, &text)]
            }
        };
        if let (true, Err(e)) = (options.ipv6, ipv6) {
            let remedy = "load ip6_tables and ip6table_nat, or nf_tables, on the host; or unset --ambient-ipv6";
            findings.push(Finding::fail(CHECK, &e, &remedy));
        }
        if *backend == Backend::Nftables {
            return findings;
        }
        // Rules that an earlier backend left can only be taken out with its program.
        let missing = |variant| !working.iter().any(|(found, _)| *found == variant);
        for variant in [Variant::Nft, Variant::Legacy].into_iter().filter(|variant| missing(*variant)) {
            let name = format!("iptables-{variant}");
            let of_it = |text: &&String| text.starts_with(&name) || text.starts_with("iptables: ");
            let why = broken.iter().find(of_it).map_or_else(|| format!("{name} is not installed"), Clone::clone);
            let remedy = format!("install {name} unless no rules of it are on this node");
            findings.push(Finding::warn(CHECK, &why, &remedy));
        }
        findings
    }
}

fn choose(options: &Options) -> Result<Chosen> {
    let force_variant = options.force_backend.as_deref().map(str::parse).transpose()?;
    let native_nftables = options.native_nftables;
    let engine = engine::Options { force_variant, lock_dir: lock_dir()?, program_dir: None, native_nftables };
    let engine = Engine::detect(engine, &Netns::own()?)?;
    let ipv6 = engine.ipv6().map_err(|e| e.to_string());
    let backend = engine.backend();
    if backend == Backend::Nftables {
        return Ok(Chosen { backend, ipv6, working: Vec::new(), broken: Vec::new() });
    }
    let (working, broken) = engine.trials();
    let working = working.map(|programs| (programs.variant, format!("{} {}", programs.name, programs.version)));
    Ok(Chosen { backend, ipv6, working: working.collect(), broken: broken.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Grade;
    use crate::doctor::options::options;

    fn both() -> Chosen {
        let programs = [(Variant::Nft, "iptables-nft 1.8.9"), (Variant::Legacy, "iptables-legacy 1.8.9")];
        Chosen {
            backend: Backend::Iptables(Variant::Nft),
            ipv6: Ok(()),
            working: programs.map(|(variant, name)| (variant, name.to_owned())).to_vec(),
            broken: Vec::new(),
        }
    }

    #[test]
    fn what_is_used_and_what_is_missing() {
        let check = |chosen: Result<Chosen, String>, flags: &[&str], want: &[(Grade, &str)]| {
            let found = Facts { chosen }.judge(&options(flags));
            let found: Vec<_> = found.iter().map(|finding| (finding.result, finding.finding.as_str())).collect();
            assert_eq!(found, want);
        };
        let used = "iptables-nft 1.8.9 is used; iptables-legacy 1.8.9 works, too";
        check(Ok(both()), &[], &[(Grade::Ok, used)]);
        let mut no_legacy = both();
        no_legacy.working.pop();
        no_legacy.broken = vec!["iptables-legacy: no module".to_owned()];
        let only_nft = [(Grade::Ok, "iptables-nft 1.8.9 is used"), (Grade::Warn, "iptables-legacy: no module")];
        check(Ok(no_legacy), &[], &only_nft);
        let no_ipv6 = || Chosen { ipv6: Err("no ip6_tables".to_owned()), ..both() };
        check(Ok(no_ipv6()), &[], &[(Grade::Ok, used)]);
        check(Ok(no_ipv6()), &["--ambient-ipv6"], &[(Grade::Ok, used), (Grade::Fail, "no ip6_tables")]);
        check(Err("no iptables that works here".to_owned()), &[], &[(Grade::Fail, "no iptables that works here")]);
        let native = Chosen { backend: Backend::Nftables, working: Vec::new(), ..both() };
        check(Ok(native), &["--native-nftables"], &[(Grade::Ok, "nf_tables, natively")]);
    }
}
