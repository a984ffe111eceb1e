//! Finds the iptables that works here: tested in namespaces that are thrown away, not guessed from the kernel's version
//! or from which modules are loaded.

use super::look::Kernel;
use super::xtables::{Programs, Variant};
use crate::error::{Error, Kind, Result};
use crate::rules::inpod::{Settings, rules};
use crate::rules::render::restore;
use crate::sys::exec;
use crate::sys::netlink::Family;
use crate::sys::netns::Netns;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// What works here.
#[derive(Debug)]
pub struct Firewall {
    /// The variant new rules go to.
    pub chosen: Variant,
    usable: BTreeMap<Variant, Programs>,
}

impl Firewall {
    /// The programs of a variant, if they work here.
    pub fn programs(&self, variant: Variant) -> Result<&Programs> {
        self.usable.get(&variant).ok_or_else(|| {
            Error::of(Kind::NotFound, format_args!("no iptables-{variant} that works is installed, but it is needed"))
        })
    }
}

/// Looks for programs that work, and chooses among them: the variant that is forced, else the one in use in the host's
/// namespace (legacy first, as Istio does), else nft.
pub fn detect(
    kernel: Kernel,
    host: &Netns,
    force: Option<Variant>,
    program_dir: Option<&Path>,
    lock: &Path,
) -> Result<Firewall> {
    let mut usable = BTreeMap::new();
    let mut tried = Vec::new();
    for names in Programs::NAMES {
        let found = Programs::find(names, program_dir).and_then(|programs| {
            if usable.contains_key(&programs.variant) { Ok(None) } else { probe(programs, lock).map(Some) }
        });
        match found {
            Ok(Some(programs)) => drop(usable.insert(programs.variant, programs)),
            Ok(None) => {}
            Err(e) => tried.push(format!("{}: {e}", names.0)),
        }
    }
    let wanted = match force {
        Some(variant) => vec![variant],
        None => preference(kernel, host),
    };
    let Some(chosen) = wanted.iter().copied().find(|variant| usable.contains_key(variant)) else {
        let forced = force.map_or(String::new(), |variant| format!(" of variant {variant} (FORCE_IPTABLES_BINARY)"));
        return Err(Error::of(
            Kind::NotFound,
            format_args!(
                "no iptables{forced} that works here ({}); install iptables 1.8.6 or later, or load the kernel's \
                 nf_tables or ip_tables modules",
                tried.join("; ")
            ),
        ));
    };
    for problem in &tried {
        log::debug!(target: "cni-agent", "not usable: {problem}");
    }
    log::info!(target: "cni-agent", variant:% = chosen; "chose the iptables that works here");
    Ok(Firewall { chosen, usable })
}

/// The order in which variants are taken.
fn preference(kernel: Kernel, host: &Netns) -> Vec<Variant> {
    let mut order = Vec::new();
    for variant in [Variant::Legacy, Variant::Nft] {
        match host.enter(|| kernel.in_use(variant)).and_then(|used| used) {
            Ok(true) => order.push(variant),
            Ok(false) => {}
            Err(e) => {
                log::warn!(target: "cni-agent", error:% = e; "cannot see whether the host uses iptables-{variant}");
            }
        }
    }
    order.extend([Variant::Nft, Variant::Legacy]);
    order
}

/// Puts rules as pods get them into a namespace that is thrown away.
fn probe(programs: Programs, lock: &Path) -> Result<Programs> {
    let settings = Settings {
        dns_capture: false,
        ingress_mode: false,
        reroute_interfaces: vec![],
        ipv6: true,
        probe_v4: Ipv4Addr::LOCALHOST,
        probe_v6: Ipv6Addr::LOCALHOST,
    };
    let try_family = |family| -> Result<()> {
        let command = programs.restore(family, restore(&rules(&settings, family)), lock)?;
        Netns::scratch()?.enter(|| exec::run(&command))?.map(|_| ())
    };
    try_family(Family::V4)?;
    match try_family(Family::V6) {
        Ok(()) => Ok(programs),
        Err(e) => Ok(programs.without_ipv6(&e)),
    }
}
