//! Pods with a sidecar: real connections through real rules, with a stand-in for Envoy that runs as its own user.

mod command;
mod counters;
mod envoy;
mod escape;
mod invalid;
mod reconcile;
pub(crate) mod scene;
mod traffic;
mod user_ns;
