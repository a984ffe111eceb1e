//! The Kubernetes API, blocking: a client for the few requests we make, and reflectors that keep a caller's picture of
//! pods and namespaces true.
//!
//! [`config`] says where the server is and who we are, [`client`] sends requests and retries them, [`api`] names the
//! requests, [`reflector`] lists and watches. Bytes become small structs as they arrive ([`list`], [`watch`]), so memory
//! follows one item, not the answer.

mod access;
pub mod api;
pub mod client;
pub mod config;
mod credentials;
mod known;
pub mod kubeconfig;
pub mod list;
pub mod object;
mod proxies;
pub mod reflector;
pub mod status;
mod tls;
mod transport;
pub mod watch;
