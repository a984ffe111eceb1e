//! What the packet filter should say, as data. Pure.
//!
//! A [`program::Program`] with a [`ruleset::RuleSet`] for each family is built by [`inpod`], [`sidecar`] or [`host`] from
//! settings, turned into text by [`render`], and compared with what the kernel holds by [`diff`]. [`nftables`] makes
//! tables of nf_tables of them instead.

pub mod diff;
pub mod family;
pub mod host;
pub mod inpod;
pub mod nftables;
pub mod owned;
pub mod preceding;
pub mod program;
pub mod provenance;
pub mod render;
pub mod routing;
pub mod ruleset;
pub mod sidecar;
pub mod view;
