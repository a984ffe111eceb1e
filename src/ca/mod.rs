//! The workload's certificate: signed by istiod or another authority, renewed in time, and written to files for others.

pub mod client;
pub mod output;
pub mod renewer;
#[cfg(test)]
pub(crate) mod tests;
pub mod token;
pub mod wire;
