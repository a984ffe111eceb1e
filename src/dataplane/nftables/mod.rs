//! Tables of nf_tables of our own, written over netlink without a program, and what the kernel's nf_tables hold, iptables'
//! tables included.

pub(super) mod counted;
pub mod decode;
pub mod dump;
pub mod expression;
pub mod message;
pub mod set;
pub mod tables;
