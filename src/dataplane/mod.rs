//! Where rules meet the kernel: [`inpod`] is the front door for pods, [`host`] for the host; both use one [`engine`].
//! Rules go where iptables keeps them, by its programs ([`xtables`]), or into tables of nf_tables of our own, by netlink
//! alone ([`nftables`]).

pub mod backend;
pub mod branch_eni;
pub mod counters;
pub mod differences;
mod effect;
pub mod engine;
pub mod host;
pub mod inpod;
pub mod kubelet;
pub mod lock_dir;
mod look;
pub mod nftables;
pub mod policy;
pub mod procfs;
mod reference;
mod route_table;
pub mod routing;
mod scope;
mod sets;
mod trial;
pub mod validation;
mod visit;
pub mod xtables;
