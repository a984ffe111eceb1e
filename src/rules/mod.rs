//! What the packet filter should say, as data. Pure.
//!
//! A [`ruleset::RuleSet`] is built by [`inpod`] or [`host`] from settings, turned into text by [`render`], and
//! compared with what the kernel holds by [`diff`].

pub mod diff;
pub mod host;
pub mod inpod;
pub mod render;
pub mod ruleset;
pub mod sidecar;
pub mod view;
