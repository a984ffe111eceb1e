//! Where rules meet the kernel: [`inpod`] is the front door for pods, [`host`] for the host; both use one [`engine`].

pub mod branch_eni;
mod detect;
mod effect;
pub mod engine;
pub mod extension;
pub mod host;
pub mod inpod;
pub mod legacy;
mod look;
pub mod nft;
pub mod own;
pub mod own_set;
pub mod probe_set;
pub mod procfs;
mod sets;
pub mod validation;
mod visit;
pub mod xtables;
