//! Programmers of a backend of one's choice.

use ferrule::dataplane::backend::Backend;
use ferrule::dataplane::inpod::{InPod, Options};
use ferrule::dataplane::xtables::variant::Variant;
use ferrule::sys::netns::Netns;
use std::path::Path;
use tempfile::TempDir;

/// All of them.
pub const BACKENDS: [Backend; 3] =
    [Backend::Iptables(Variant::Nft), Backend::Iptables(Variant::Legacy), Backend::Nftables];

/// What chooses this one, with its files in `dir`.
pub fn options(backend: Backend, dir: &Path) -> Options {
    let (force_variant, native_nftables) = match backend {
        Backend::Iptables(variant) => (Some(variant), false),
        Backend::Nftables => (None, true),
    };
    Options { force_variant, native_nftables, lock_dir: dir.join("locks"), program_dir: None }
}

/// A programmer that uses this one, and the directory it works in.
pub fn programmer(backend: Backend) -> (InPod, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let inpod = InPod::detect(options(backend, dir.path()), &Netns::scratch().unwrap()).unwrap();
    assert_eq!(inpod.engine().backend(), backend);
    (inpod, dir)
}
