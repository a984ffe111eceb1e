//! Puts the plugin and its configuration on the node, keeps them there, and takes them away in the safe order.
//!
//! - [`conf`]: CNI configurations as text: our entry in and out without touching another byte (pure).
//! - [`entry`]: the entry itself (pure).
//! - [`plan`]: from what is in the directories to what has to be written and removed, and why (pure).
//! - [`conflict`]: another writer keeps reverting us: how long to wait, what to say (pure).
//! - [`binary`], [`kubeconfig`], [`directory`]: the effects.
//! - [`keeper`]: the thread that makes it true and keeps it true.
//! - [`removal`]: configuration, kubeconfig, and last the executable, unless a sandbox still needs it ([`cache`]).

use crate::sys::file::HostRoot;
use std::path::PathBuf;
use std::time::Duration;

pub mod binary;
pub mod cache;
pub mod conf;
pub mod conflict;
pub mod directory;
pub mod entry;
pub mod keeper;
pub mod kubeconfig;
pub mod plan;
pub mod removal;

#[cfg(test)]
mod tests;

pub use keeper::{Keeper, Notice, Outcome};
pub use removal::{Removal, Run, uninstall};

/// Name of the plugin: its file in the CNI bin dir and its `type` in a configuration.
pub const PLUGIN: &str = "istio-cni";

/// Name of the file that holds our copy of the chain when no other is configured.
pub const OWNED_FILE: &str = "02-istio-cni.conflist";

/// How our plugin gets into the node's CNI configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// Our entry is put into the primary's file.
    Chained,
    /// The primary's file is left alone; a full copy of it with our entry lives under this file name.
    Owned {
        /// File name in the conf dir; must sort before the primary's.
        file: String,
    },
    /// A configuration of our own, for meta plugins that call us by name.
    Standalone,
}

/// What to install, where and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the host's files are; the runtimes' CNI cache is looked for below it.
    pub host_root: HostRoot,
    /// Directory of the CNI configurations, as seen from here.
    pub net_dir: PathBuf,
    /// Directory of the CNI plugins, as seen from here.
    pub bin_dir: PathBuf,
    /// Our own writable directory on the node: kubeconfig, copies of what we edited.
    pub run_dir: PathBuf,
    /// How we get into the configuration.
    pub mode: Mode,
    /// The primary's file name (standalone: our own file's name); `None` takes the first valid one by name.
    pub conf_name: Option<String>,
    /// New configuration files are 0640 instead of 0600.
    pub conf_group_read: bool,
    /// What our entry says.
    pub entry: entry::Entry,
    /// The kubeconfig of the plugin's fallback path; `None` where there is no API server.
    pub kubeconfig: Option<kubeconfig::Options>,
    /// The executable to install, `/proc/self/exe`.
    pub executable: PathBuf,
    /// How long nobody may have run the plugin before a removal takes its executable: a runtime that read the
    /// configuration before our entry was taken out is at the plugins before ours meanwhile, or about to write down
    /// what it ran.
    pub settle: Duration,
}
