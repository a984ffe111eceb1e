//! `OUTPUT_CERTS`: the workload's key, chain and roots as files for programs other than Envoy.
//!
//! Readers open the files one by one, so the names have to stay; what can be done is done: both files of a pair are on
//! the disk under temporary names before the first gets its name, and nothing but two renames lies between the old pair
//! and the new one. A reader that meets that moment has a key that is not the chain's, sees so, and reads again.

use crate::error::Result;
use crate::sys::file::{self, Mode};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The key's file.
pub const KEY: &str = "key.pem";
/// The chain's file.
pub const CHAIN: &str = "cert-chain.pem";
/// The roots' file.
pub const ROOTS: &str = "root-cert.pem";

/// Largest file that is compared, bytes.
const LIMIT: usize = 4 << 20;

/// Where the files are written, and with which mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    directory: PathBuf,
    mode: Mode,
}

impl Output {
    /// Into a directory, which is not made here. In Kubernetes everybody may read the files, the key's too: Prometheus
    /// reads them under another user.
    pub fn new(directory: impl Into<PathBuf>, in_kubernetes: bool) -> Self {
        Output { directory: directory.into(), mode: Mode(if in_kubernetes { 0o644 } else { 0o600 }) }
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes the roots, and before them nothing: who has the new pair knows its authority. Then the key and the chain.
    /// A file that has its content already is left alone, its mode too. Returns whether anything was written.
    pub fn write(&self, pair: Option<(&[u8], &[u8])>, roots: Option<&str>) -> Result<bool> {
        let wanted =
            [(ROOTS, roots.map(str::as_bytes)), (KEY, pair.map(|(_, key)| key)), (CHAIN, pair.map(|(chain, _)| chain))];
        let wanted = wanted.into_iter().filter_map(|(name, content)| Some((self.directory.join(name), content?)));
        let changed: Vec<_> = wanted.filter(|(path, content)| !has_content(path, content)).collect();
        let files: Vec<_> = changed.iter().map(|(path, content)| (path.as_path(), *content)).collect();
        file::replace_together(&files, self.mode)?;
        Ok(!files.is_empty())
    }
}

fn has_content(path: &Path, content: &[u8]) -> bool {
    file::read_limited(path, LIMIT).map(Zeroizing::new).is_ok_and(|found| **found == *content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::pair;
    use crate::sys::thread;
    use rcgen::{CertificateParams, KeyPair};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn files_are_written_when_they_differ() {
        for (kubernetes, expected) in [(false, 0o600), (true, 0o644)] {
            let dir = tempfile::tempdir().unwrap();
            let output = Output::new(dir.path(), kubernetes);
            let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
            assert!(output.write(Some((b"chain", b"key")), Some("roots")).unwrap());
            assert_eq!([read(CHAIN), read(KEY), read(ROOTS)], ["chain", "key", "roots"]);
            assert!([CHAIN, KEY, ROOTS].iter().all(|name| mode(&dir.path().join(name)) == expected));
            let kept = PermissionsExt::from_mode(0o640);
            std::fs::set_permissions(dir.path().join(ROOTS), kept).unwrap();
            assert!(!output.write(Some((b"chain", b"key")), Some("roots")).unwrap());
            assert!(output.write(Some((b"chain 2", b"key 2")), Some("roots")).unwrap());
            assert_eq!(
                (read(CHAIN), read(KEY), mode(&dir.path().join(ROOTS))),
                ("chain 2".into(), "key 2".into(), 0o640)
            );
            assert!(output.write(None, Some("roots 2")).unwrap());
            assert_eq!((read(ROOTS), read(KEY)), ("roots 2".into(), "key 2".into()));
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3, "nothing else is left");
        }
        assert!(Output::new("/nonexistent", false).write(None, Some("roots")).is_err());
    }

    #[test]
    fn a_reader_gets_whole_files_at_any_moment_and_a_pair_soon() {
        let dir = tempfile::tempdir().unwrap();
        let output = Output::new(dir.path(), false);
        let make = || {
            let key = KeyPair::generate().unwrap();
            (CertificateParams::default().self_signed(&key).unwrap().pem(), key.serialize_pem())
        };
        let pairs = Arc::new([make(), make()]);
        let write = |at: usize| {
            output.write(Some((pairs[at % 2].0.as_bytes(), pairs[at % 2].1.as_bytes())), Some("roots")).unwrap()
        };
        write(0);
        let done = Arc::new(AtomicBool::new(false));
        let (over, path, known) = (done.clone(), dir.path().to_path_buf(), pairs.clone());
        let reader = thread::spawn("reader", move || {
            let read = |name: &str| std::fs::read_to_string(path.join(name)).unwrap();
            let (mut reads, mut fitting) = (0, 0);
            while !over.load(Ordering::Relaxed) || reads == 0 {
                let (chain, key) = (read(CHAIN), read(KEY));
                assert!(known.iter().any(|(known, _)| *known == chain) && known.iter().any(|(_, known)| *known == key));
                (reads, fitting) = (reads + 1, fitting + usize::from(known.contains(&(chain, key))));
            }
            (reads, fitting)
        })
        .unwrap();
        for at in 1..300 {
            assert!(write(at));
        }
        done.store(true, Ordering::Relaxed);
        let (reads, fitting) = reader.join().unwrap();
        assert!(fitting > 0, "{reads} reads while 300 pairs came one right after the other");
        let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
        pair::check(&read(CHAIN), &read(KEY)).unwrap();
    }
}
