//! Rules where iptables keeps them: its programs, the legacy tables as the kernel shows them, and ipsets.

pub mod detect;
pub mod entries;
pub mod extension;
pub mod ipset;
pub mod legacy;
pub mod programs;
pub mod variant;
