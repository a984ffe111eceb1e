//! What a runtime makes of the configuration: whether it takes the file that names our plugin, and finds the plugin.

use crate::install::Mode;
use crate::install::conf::Conf;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// Plugins that are configured first and call the primary themselves.
const META_PLUGINS: [&str; 4] = ["danm", "genie", "multus", "multus-shim"];

/// Why a runtime may not run our plugin although our entry is in a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    /// What it is about.
    pub about: About,
    /// What was found.
    pub finding: String,
    /// What to do about it.
    pub remedy: &'static str,
}

/// What a [`Doubt`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// The file that a runtime takes.
    Order,
    /// The directory that it runs plugins from.
    BinDir,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.finding, self.remedy)
    }
}

/// Whether a runtime takes `target`: the first file by name. What it makes of one before it that we cannot understand is
/// not known. `primary` is not looked at.
pub(super) fn order(
    confs: &BTreeMap<&str, Result<Conf<'_>, String>>,
    target: &str,
    primary: &str,
    mode: &Mode,
) -> Vec<Doubt> {
    let mut doubts = Vec::new();
    for (name, conf) in confs.iter().filter(|(name, _)| **name < target && **name != primary) {
        let (finding, remedy) = match conf {
            Err(e) => (
                format!("{name} sorts before {target} and {e}; a runtime may use it, or refuse every pod"),
                "repair or remove it",
            ),
            // It goes with the steps of the plan.
            Ok(conf) if conf.has_ours() => continue,
            // It calls the file that was named.
            Ok(conf) if conf.types().iter().any(|kind| META_PLUGINS.contains(kind)) => continue,
            Ok(_) => (
                format!("{name} sorts before {target}: the runtime uses it, without our plugin"),
                match mode {
                    Mode::Owned { .. } => "choose another --istio-owned-cni-config-filename",
                    _ => "name it with --cni-conf-name, or remove it",
                },
            ),
        };
        doubts.push(Doubt { about: About::Order, finding, remedy });
    }
    doubts
}

/// Whether the bin dir, which has these `plugins`, is the one that the runtime runs plugins from: it has one of the
/// chain's other `types`. A directory that cannot be listed proves nothing.
pub(super) fn bin_dir(dir: &Path, plugins: Option<&BTreeSet<String>>, types: &[String]) -> Option<Doubt> {
    let plugins = plugins.filter(|plugins| !types.iter().any(|kind| plugins.contains(kind)));
    plugins.map(|_| Doubt {
        about: About::BinDir,
        finding: format!(
            "{} has none of the chain's other plugins ({}), so no runtime would find ours there",
            dir.display(),
            types.join(", ")
        ),
        remedy: "name the directory that the runtime runs plugins from with --cni-bin-dir",
    })
}
