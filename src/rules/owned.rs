//! Which chains of iptables are ours.

use super::program::Purpose;
use super::ruleset::Owned;
use super::{host, inpod, sidecar};

/// The chains that may be there for this purpose because of us, whatever the settings, with the plain jumps to them.
pub fn owned(purpose: Purpose) -> &'static [Owned] {
    match purpose {
        Purpose::Ambient => inpod::OWNED,
        Purpose::Sidecar => sidecar::OWNED,
        Purpose::Host => host::OWNED,
    }
}
