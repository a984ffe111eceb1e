//! The way to a file: every directory in which a change can lead it elsewhere.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// Links that are followed, as the kernel does (path_resolution(7)).
const LINKS: usize = 40;

/// The directory of the file and of every link on the way to it, as far as the way exists.
pub(super) fn directories(path: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut here = PathBuf::new();
    let mut ahead: Vec<OsString> = parts(path);
    let mut links = 0;
    while let Some(part) = ahead.pop() {
        match Path::new(&part).components().next() {
            Some(Component::RootDir) => here = PathBuf::from("/"),
            Some(Component::ParentDir) => {
                // Right, since no link is left in `here`.
                if here.as_os_str().is_empty() || here.ends_with("..") {
                    here.push("..");
                } else {
                    here.pop();
                }
            }
            Some(Component::Normal(name)) => {
                let directory = if here.as_os_str().is_empty() { PathBuf::from(".") } else { here.clone() };
                here.push(name);
                match std::fs::read_link(&here) {
                    Ok(target) if links < LINKS => {
                        links += 1;
                        found.insert(directory);
                        here.pop();
                        ahead.extend(parts(&target));
                    }
                    _ if ahead.is_empty() || !here.exists() => {
                        found.insert(directory);
                        if !here.exists() {
                            break;
                        }
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
    found
}

/// The parts of a path, the last first.
fn parts(path: &Path) -> Vec<OsString> {
    path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn every_hop_is_found() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let at = |path: &str| root.join(path);
        for dir in ["app", "csi/..1", "real"] {
            std::fs::create_dir_all(at(dir)).unwrap();
        }
        std::fs::File::create_new(at("csi/..1/f")).unwrap();
        symlink("..1", at("csi/..data")).unwrap();
        symlink("..data/f", at("csi/f")).unwrap();
        symlink(at("csi/f"), at("app/f")).unwrap();
        symlink("app", at("link")).unwrap();
        symlink("loop", at("loop")).unwrap();
        let check = |path: &str, expected: &[&str]| {
            let expected: BTreeSet<PathBuf> = expected.iter().map(|path| at(path)).collect();
            let found: BTreeSet<PathBuf> = directories(&at(path)).into_iter().map(|dir| root.join(dir)).collect();
            assert_eq!(found, expected, "{path}");
        };
        check("csi/..1/f", &["csi/..1"]);
        check("csi/f", &["csi", "csi/..1"]);
        check("app/f", &["app", "csi", "csi/..1"]);
        check("link/f", &["", "app", "csi", "csi/..1"]);
        check("real/../app/./f", &["app", "csi", "csi/..1"]);
        check("real/none", &["real"]);
        check("none/none", &[""]);
        check("loop", &[""]);
        assert_eq!(directories(Path::new("f")), [PathBuf::from(".")].into());
        assert_eq!(directories(Path::new("../../nothing")), [PathBuf::from("../..")].into());
    }
}
