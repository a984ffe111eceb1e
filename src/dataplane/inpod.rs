//! Puts the rules, routes and rule-marks of a pod into its namespace, checks them and takes them out.

use super::backend::Backend;
pub use super::differences::Differences;
use super::engine::Engine;
pub use super::engine::{Applied, Options};
use crate::error::{Context, Error, Kind, Result};
use crate::rules::diff::Leftovers;
use crate::rules::inpod::nothing;
use crate::rules::preceding::Preceding;
use crate::rules::program::Program;
use crate::sys::netns::Netns;
use std::sync::Arc;

/// The programmer of pod namespaces. What is programmed is given as a [`Program`], or as the settings of one.
#[derive(Debug)]
pub struct InPod {
    /// Held open, so that its identity cannot pass to another namespace.
    host: Netns,
    engine: Arc<Engine>,
}

impl InPod {
    /// Finds what works here. `host` is the host's namespace: it is only read, and refused as a pod's.
    pub fn detect(options: Options, host: &Netns) -> Result<Self> {
        Ok(InPod { host: host.try_clone()?, engine: Arc::new(Engine::detect(options, host)?) })
    }

    /// The mechanism, for whoever programs something else than pods.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Whether new rules go into tables of nf_tables of our own.
    pub fn is_native(&self) -> bool {
        self.engine.backend() == Backend::Nftables
    }

    /// Brings the namespace to the program: looks, writes only what differs, verifies. On failure what was put in is
    /// taken out again unless the pod had rules of ours before. Fails with `HostNetns` on the host's namespace.
    pub fn apply(&self, netns: &Netns, program: impl Into<Program>) -> Result<Applied> {
        self.refuse_host(netns)?;
        let applied = self.engine.apply(netns, &program.into(), Leftovers::Remove);
        applied.context("rules in the pod's network namespace")
    }

    /// [`Self::apply`], with the rules of others that packets come to before ours.
    pub fn bring(&self, netns: &Netns, program: impl Into<Program>) -> Result<Vec<Preceding>> {
        self.refuse_host(netns)?;
        let brought = self.engine.bring(netns, &program.into(), Leftovers::Remove);
        brought.map(|(_, preceding)| preceding).context("rules in the pod's network namespace")
    }

    /// What differs from the program, one clause each; empty when all is right. Starts no process in the pod.
    pub fn check(&self, netns: &Netns, program: impl Into<Program>) -> Result<Vec<String>> {
        self.compare(netns, program).map(Differences::all)
    }

    /// What differs from the program, by kind.
    pub fn compare(&self, netns: &Netns, program: impl Into<Program>) -> Result<Differences> {
        self.refuse_host(netns)?;
        let differences = self.engine.compare(netns, &program.into(), Leftovers::Remove);
        differences.context("check the rules in the pod's network namespace")
    }

    /// Takes everything of the ambient mesh out, in both variants and families; goes on past failures and returns them
    /// joined. What is not there is no failure.
    pub fn remove(&self, netns: &Netns) -> Result<()> {
        self.refuse_host(netns)?;
        self.engine.remove(netns, &nothing()).context("take the rules out of the pod's network namespace")
    }

    fn refuse_host(&self, netns: &Netns) -> Result<()> {
        if netns.id() == self.host.id() {
            return Err(Error::of(Kind::HostNetns, "this network namespace is the host's, not a pod's"));
        }
        Ok(())
    }
}
