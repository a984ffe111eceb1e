//! Taking everything away: configuration, kubeconfig, and last the executable.

use super::Options;
use crate::error::Error;

/// Whether a removal acts or only tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// Do it.
    Real,
    /// Only list what would be done.
    Dry,
}

/// What a removal did (or would do), in order, and what went wrong on the way.
#[derive(Debug, Default)]
pub struct Removal {
    /// One line per thing done or left in place with the reason, for people.
    pub steps: Vec<String>,
    /// Failures; the removal went on past each.
    pub failures: Vec<Error>,
}

/// Takes our entry out of the configuration (bringing a converted `.conf` back), removes the kubeconfig, and then the
/// executable unless a cached CNI result still names it. Needs no API and no agent; a second call does nothing. The
/// keeper must be stopped.
pub fn uninstall(_options: &Options, _run: Run) -> Removal {
    todo!()
}
