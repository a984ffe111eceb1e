//! An API server: its address, what its certificate is checked against, and what we show to it.

use std::path::PathBuf;

/// Bytes given in place or kept in a file, which may change while we run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Material {
    /// Given in place.
    Inline(Vec<u8>),
    /// To be read from a file, again whenever it changes.
    File(PathBuf),
}

/// Everything needed to reach the API server.
#[derive(Clone)]
pub struct Config {
    /// `https://host:port` or with a path, no slash at the end.
    pub(super) server: String,
    /// What its certificate is checked against.
    pub(super) trust: Trust,
    /// Our certificate and its key.
    pub(super) identity: Option<(Material, Material)>,
    /// Our bearer token.
    pub(super) token: Option<Material>,
    pub(super) proxy: Option<ureq::Proxy>,
}

/// What the server's certificate is checked against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trust {
    /// Nothing is encrypted (`http://`).
    Plain,
    /// Certificate authorities, PEM.
    Authorities(Material),
    /// `insecure-skip-tls-verify`.
    Anyone,
}

impl Config {
    /// The server's address, for messages.
    pub fn server(&self) -> &str {
        &self.server
    }
}

/// Says where, never with what credential.
impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config").field("server", &self.server).finish_non_exhaustive()
    }
}
