//! The implementations of iptables.

use crate::error::{Error, Result};
use crate::invalid;
use std::fmt;
use std::str::FromStr;

/// The two implementations of iptables, which keep their rules apart from each other in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// On nf_tables.
    Nft,
    /// On the kernel's x_tables.
    Legacy,
}

impl Variant {
    /// Both.
    pub const ALL: [Variant; 2] = [Variant::Nft, Variant::Legacy];
}

impl FromStr for Variant {
    type Err = Error;

    /// Reads the names that `FORCE_IPTABLES_BINARY` takes.
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "nft" => Ok(Variant::Nft),
            "legacy" => Ok(Variant::Legacy),
            other => Err(invalid!("iptables variant {other:?}: must be nft or legacy")),
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Variant::Nft => "nft",
            Variant::Legacy => "legacy",
        })
    }
}
