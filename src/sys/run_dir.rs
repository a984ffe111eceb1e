//! The agent's own directory on the node: this file alone knows the names of what is below it.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

/// The run directory, `--cni-agent-run-dir`. It only names paths: nothing here looks at the file system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// The directory of an agent and a plugin that are told no other.
    pub const DEFAULT: &'static str = "/var/run/istio-cni";

    /// Takes the directory's path.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        RunDir(path.into())
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The socket on which the agent answers plugins and commands.
    pub fn plugin_events(&self) -> PathBuf {
        self.0.join("pluginevent.sock")
    }

    /// The socket on which the agent takes the plugin's log lines.
    pub fn plugin_logs(&self) -> PathBuf {
        self.0.join("log.sock")
    }

    /// The plugin's log file.
    pub fn plugin_log_file(&self) -> PathBuf {
        self.0.join("istio-cni.log")
    }

    /// The lock that the working agent holds.
    pub fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }

    /// The kubeconfig of the plugin.
    pub fn kubeconfig(&self) -> PathBuf {
        self.0.join("istio-cni-kubeconfig")
    }

    /// The folder with a record of each enrolled sandbox.
    pub fn records(&self) -> PathBuf {
        self.0.join("netns")
    }

    /// What is published about pods where there is no API server.
    pub fn published(&self) -> PathBuf {
        self.0.join("state.json")
    }

    /// The pods that were decided not to be in the mesh.
    pub fn outside(&self) -> PathBuf {
        self.0.join("outside.json")
    }

    /// The folder of iptables' locks, one for each network namespace.
    pub fn xtables_locks(&self) -> PathBuf {
        self.0.join("xtables")
    }

    /// The policy rules that were made for pods with branch ENIs.
    pub fn branch_enis(&self) -> PathBuf {
        self.0.join("branch-eni.json")
    }

    /// The folder of CNI configurations as they were before the installer edited or replaced them.
    pub fn replaced(&self) -> PathBuf {
        self.0.join("replaced")
    }
}

impl Display for RunDir {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}
