//! Secrets for Envoy: what it asks for by name, what is known of each secret, and where those in files come from.

mod connection;
pub mod external;
pub mod files;
pub mod resource;
pub mod secret;
pub mod server;
pub mod store;
#[cfg(test)]
mod tests;
pub mod watch;
pub mod wire;
