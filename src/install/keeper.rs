//! The thread that installs, watches and repairs.

use super::Options;
use crate::error::Result;

/// How a pass ended, as `istio_cni_installs_total{result}` counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Everything is in place, and something had to be done for it.
    Success,
    /// The executable could not be put in place.
    BinaryFailed,
    /// The kubeconfig could not be written.
    KubeconfigFailed,
    /// The CNI configuration could not be brought in order.
    ConfFailed,
}

impl Outcome {
    /// The value of the metric's `result` label.
    pub fn label(self) -> &'static str {
        match self {
            Outcome::Success => "SUCCESS",
            Outcome::BinaryFailed => "COPY_BINARIES_FAILURE",
            Outcome::KubeconfigFailed => "CREATE_KUBECONFIG_FAILURE",
            Outcome::ConfFailed => "CREATE_CNI_CONFIG_FAILURE",
        }
    }
}

/// What the keeper tells its owner, from the keeper's thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// What is missing, one reason each; empty: installed. Sent at the end of the first pass and when it changes.
    Readiness(Vec<String>),
    /// A pass wrote something or failed in a new way.
    Installed(Outcome),
    /// Another writer took our entry out once more, and we wait before we put it back.
    Fight,
}

/// The running keeper. Dropping it stops the thread as well, and leaves everything on the node as it is.
#[derive(Debug)]
pub struct Keeper {
    _private: (),
}

impl Keeper {
    /// Starts the thread. Fails only when the thread cannot be made.
    pub fn start(_options: Options, _notice: impl Fn(Notice) + Send + 'static) -> Result<Self> {
        todo!()
    }

    /// Stops the thread and waits for it (a pass under way is finished). What is installed stays.
    pub fn stop(self) {}
}
