//! Puts the rules, routes and rule-marks of an ambient pod into its namespace, checks them and takes them out.

use super::xtables::Variant;
use crate::error::Result;
use crate::rules::inpod::Settings;
use crate::sys::netns::Netns;
use std::path::PathBuf;

/// What this module is told once.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `FORCE_IPTABLES_BINARY`.
    pub force_variant: Option<Variant>,
    /// Directory for per-namespace xtables lock files (below the run dir).
    pub lock_dir: PathBuf,
    /// Where the iptables programs are looked for; `None`: in the system's own directories.
    pub program_dir: Option<PathBuf>,
}

/// What [`InPod::apply`] found and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// Everything was right; nothing was written.
    AlreadyRight,
    /// Rules were written and verified.
    Written,
}

/// The programmer of pod namespaces; detection is done once, references are cached per settings.
#[derive(Debug)]
pub struct InPod {
    _private: (),
}

impl InPod {
    /// Finds the firewall backend (tested in a throwaway namespace, not guessed). `host` is the host's namespace: it is
    /// only read, and refused as a pod's.
    pub fn detect(_options: Options, _host: &Netns) -> Result<Self> {
        todo!()
    }

    /// Brings the namespace to `settings`: looks, writes only what differs, verifies. On failure what was put in is
    /// taken out again unless the pod had rules of ours before. Fails with `HostNetns` on the host's namespace.
    pub fn apply(&self, _netns: &Netns, _settings: &Settings) -> Result<Applied> {
        todo!()
    }

    /// What differs from `settings`, one clause each; empty when all is right. Starts no process in the pod.
    pub fn check(&self, _netns: &Netns, _settings: &Settings) -> Result<Vec<String>> {
        todo!()
    }

    /// Takes everything of ours out, in both backends and families; goes on past failures and returns them joined.
    /// What is not there is no failure.
    pub fn remove(&self, _netns: &Netns) -> Result<()> {
        todo!()
    }
}
