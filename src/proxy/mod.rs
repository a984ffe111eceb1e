//! The proxy agent: what stands between istiod and Envoy, or an application that speaks gRPC.

pub mod certificates;
pub mod secrets;
#[cfg(test)]
mod tests;
