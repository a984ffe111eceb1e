//! What a command is.

use super::page::Page;

/// What this process is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Personality {
    /// The daemon.
    Agent,
    /// The CNI plugin, run by a container runtime.
    Plugin,
    /// Shows how the pods of this node stand.
    Status,
    /// Says why a pod is in the mesh or not.
    Explain,
    /// Examines the node.
    Doctor,
    /// Shows the rules of a pod.
    Rules,
    /// Programs, cleans or validates the redirection to a sidecar.
    Iptables,
    /// Waits for a URL.
    Wait,
    /// Takes everything off the node.
    Uninstall,
    /// Prints a script that completes commands and options in a shell.
    Completion,
    /// Prints the man page.
    Man,
    /// Says what it is.
    Version,
    /// Says how it is called.
    Help,
}

/// A command of the executable.
#[derive(Debug)]
pub struct Command {
    /// Its name.
    pub name: &'static str,
    /// What this process is under that name.
    pub(super) personality: Personality,
    /// What it is for, in one line.
    pub help: &'static str,
    /// How it is called.
    pub page: fn() -> Page,
}

pub(super) const fn command(
    name: &'static str,
    personality: Personality,
    help: &'static str,
    page: fn() -> Page,
) -> Command {
    Command { name, personality, help, page }
}
