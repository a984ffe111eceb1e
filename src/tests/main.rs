//! The integration tests: real namespaces, real netfilter, real sockets. They need root, and fail without it.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests drive the real machine, and fail loudly")]

mod apiserver;
mod bench;
mod chart;
mod corpus;
mod deploy;
mod floor;
mod front;
mod h2;
mod host;
mod identity;
mod install;
mod kube;
mod kubernetes;
mod measurements;
mod nftables;
mod plugin;
mod probe_set;
mod procfs;
mod readme;
mod rules;
mod sidecar;
mod standalone;
mod standin;
mod support;
mod tidy;
mod tools;
mod zds;
