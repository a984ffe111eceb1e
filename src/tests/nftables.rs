//! Tables of nf_tables of our own, in real network namespaces. Whether traffic is treated as by iptables is asked in
//! [`crate::sidecar`], [`crate::rules`] and [`crate::standalone`], with every backend.

mod apply;
mod migrate;
mod views;
