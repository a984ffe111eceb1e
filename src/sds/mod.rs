//! Secrets for Envoy: what it asks for by name, what is known of each secret, and where those in files come from.

pub mod files;
pub mod resource;
pub mod secret;
pub mod store;
pub mod watch;
pub mod wire;
