//! Where rules meet the kernel: [`inpod`] is the front door for pods.

mod attributes;
mod detect;
pub mod inpod;
pub mod legacy;
mod look;
pub mod nft;
pub mod probe_set;
pub mod procfs;
mod visit;
pub mod xtables;
