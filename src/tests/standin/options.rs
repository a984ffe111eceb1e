//! How a stand-in is started.

use super::fault::{Approach, Fault, On};
use std::path::PathBuf;

/// What the stand-in is told once.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The ZDS socket.
    pub socket: PathBuf,
    /// Open the DNS port as well.
    pub dns: bool,
    /// How it connects.
    pub approach: Approach,
    /// What it does wrong.
    pub faults: Vec<(On, Fault)>,
}
