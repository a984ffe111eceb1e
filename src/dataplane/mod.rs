//! Where rules meet the kernel: [`inpod`] is the front door for pods.

mod detect;
pub mod inpod;
mod legacy;
mod look;
mod nft;
pub mod procfs;
mod visit;
pub mod xtables;
