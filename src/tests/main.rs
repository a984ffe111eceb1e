//! The integration tests: real namespaces, real netfilter, real sockets. They need root, and fail without it.
#![expect(clippy::disallowed_methods, reason = "tests drive the real machine")]

mod agent;
mod apiserver;
mod floor;
mod front;
mod install;
mod kube;
mod plugin;
mod rules;
mod support;
mod tidy;
mod zds;
