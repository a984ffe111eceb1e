//! Finds what works here: tested in namespaces that are thrown away, not guessed from the kernel's version or from which
//! modules are loaded.

use super::programs::Programs;
use super::variant::Variant;
use crate::dataplane::look::Kernel;
use crate::dataplane::trial::settings;
use crate::error::{Error, Kind, Result};
use crate::rules::family::Family;
use crate::rules::inpod::rules;
use crate::rules::render::restore;
use crate::sys::exec;
use crate::sys::netns::Netns;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The iptables programs that work here. They are looked for when first asked for: who writes nf_tables of our own
/// needs none, unless there are rules of an earlier backend to take out.
#[derive(Debug)]
pub struct Firewall {
    program_dir: Option<PathBuf>,
    lock: PathBuf,
    found: OnceLock<Found>,
}

#[derive(Debug, Default)]
struct Found {
    usable: BTreeMap<Variant, Programs>,
    /// What was not usable, and why.
    tried: Vec<String>,
}

impl Firewall {
    /// `program_dir` as in the options; `lock` is the path of lock files for trials.
    pub fn new(program_dir: Option<PathBuf>, lock: PathBuf) -> Self {
        Firewall { program_dir, lock, found: OnceLock::new() }
    }

    /// The programs of a variant, if they work here.
    pub fn programs(&self, variant: Variant) -> Result<&Programs> {
        self.found().usable.get(&variant).ok_or_else(|| {
            Error::of(Kind::NotFound, format_args!("no iptables-{variant} that works is installed, but it is needed"))
        })
    }

    fn found(&self) -> &Found {
        self.found.get_or_init(|| {
            let Found { mut usable, mut tried } = Found::default();
            for names in Programs::NAMES {
                let found = Programs::find(names, self.program_dir.as_deref()).and_then(|programs| {
                    if usable.contains_key(&programs.variant) {
                        Ok(None)
                    } else {
                        probe(programs, &self.lock).map(Some)
                    }
                });
                match found {
                    Ok(Some(programs)) => drop(usable.insert(programs.variant, programs)),
                    Ok(None) => {}
                    Err(e) => tried.push(format!("{}: {e}", names.0)),
                }
            }
            Found { usable, tried }
        })
    }

    /// What was tried: those that work, and of the others what is wrong with them.
    pub fn trials(&self) -> (impl Iterator<Item = &Programs>, &[String]) {
        let Found { usable, tried } = self.found();
        (usable.values(), tried)
    }

    /// Chooses a variant that works: the one that is forced, else the one in use in the host's namespace (legacy
    /// first, as Istio does), else nft.
    pub fn choose(&self, kernel: Kernel, host: &Netns, force: Option<Variant>) -> Result<Variant> {
        let Found { usable, tried } = self.found();
        let wanted = match force {
            Some(variant) => vec![variant],
            None => preference(kernel, host),
        };
        let Some(chosen) = wanted.iter().copied().find(|variant| usable.contains_key(variant)) else {
            let forced =
                force.map_or(String::new(), |variant| format!(" of variant {variant} (FORCE_IPTABLES_BINARY)"));
            return Err(Error::of(
                Kind::NotFound,
                format_args!(
                    "no iptables{forced} that works here ({}); install iptables 1.8.6 or later, or load the kernel's \
                     nf_tables or ip_tables modules",
                    tried.join("; ")
                ),
            ));
        };
        for problem in tried {
            log::debug!("not usable: {problem}");
        }
        log::info!(variant:% = chosen; "chose the iptables that works here");
        Ok(chosen)
    }
}

/// The order in which variants are taken.
fn preference(kernel: Kernel, host: &Netns) -> Vec<Variant> {
    let mut order = Vec::new();
    for variant in [Variant::Legacy, Variant::Nft] {
        match host.enter(|| kernel.in_use(variant)).and_then(|used| used) {
            Ok(true) => order.push(variant),
            Ok(false) => {}
            Err(e) => {
                log::warn!(error:% = e; "cannot see whether the host uses iptables-{variant}");
            }
        }
    }
    order.extend([Variant::Nft, Variant::Legacy]);
    order
}

/// Puts rules as pods get them into a namespace that is thrown away.
fn probe(programs: Programs, lock: &Path) -> Result<Programs> {
    let settings = settings();
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
