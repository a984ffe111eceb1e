//! Rules in real network namespaces, with both variants of iptables.

mod apply;
mod damage;
mod detect;
mod escape;
mod meaning;
mod order;
pub(crate) mod pod;
mod provenance;
mod table;
