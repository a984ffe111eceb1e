//! The certificates of a workload, as values: keys and the requests to have them signed, what authorities return,
//! roots, and when to renew. Nothing here reads a clock or a file.
//!
//! What is hostile is bounded: a text is read in time proportional to its length, and whoever reads a file limits that.

pub mod csr;
pub mod der;
pub mod issued;
pub mod key;
mod natural;
pub mod pair;
pub mod pem;
pub mod renewal;
pub mod roots;
pub mod rsa;
#[cfg(test)]
mod tests;
pub mod tls;
pub mod x509;
