//! Where rules meet the kernel: [`inpod`] is the front door for pods.

pub mod inpod;
pub mod procfs;
pub mod xtables;
