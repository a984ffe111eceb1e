//! Where rules meet the kernel: [`inpod`] is the front door for pods, [`host`] for the host; both use one [`engine`].
//! Rules go where iptables keeps them, by its programs ([`xtables`]), or into tables of nf_tables of our own, by netlink
//! alone ([`own`], [`own_set`]).

pub mod branch_eni;
mod detect;
mod effect;
pub mod engine;
pub mod extension;
pub mod host;
pub mod inpod;
pub mod legacy;
pub mod lock_dir;
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
