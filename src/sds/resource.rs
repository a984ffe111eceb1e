//! Names of secrets: what Envoy asks for.

use crate::error::Result;
use crate::invalid;
use std::path::PathBuf;

/// The workload's certificate and key.
pub const WORKLOAD: &str = "default";
/// The roots of the mesh.
pub const ROOTS: &str = "ROOTCA";

const FILE_CERTIFICATE: &str = "file-cert:";
const FILE_ROOTS: &str = "file-root:";
const SYSTEM: &str = "system";

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resource {
    /// [`WORKLOAD`].
    Workload,
    /// [`ROOTS`].
    Roots,
    /// `file-root:system`: the roots of the operating system.
    SystemRoots,
    /// `file-root:PATH`.
    FileRoots(PathBuf),
    /// `file-cert:CHAIN~KEY`.
    FileCertificate {
        /// The chain's file.
        chain: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
}

impl Resource {
    /// Reads a name. Paths may be relative to the working directory.
    pub fn parse(name: &str) -> Result<Self> {
        if let Some(paths) = name.strip_prefix(FILE_CERTIFICATE) {
            return match *paths.split('~').collect::<Vec<_>>() {
                [chain, key] if !chain.is_empty() && !key.is_empty() => {
                    Ok(Resource::FileCertificate { chain: chain.into(), key: key.into() })
                }
                _ => Err(invalid!("the name is not file-cert:CHAIN~KEY with the paths of two files")),
            };
        }
        match (name, name.strip_prefix(FILE_ROOTS)) {
            (WORKLOAD, _) => Ok(Resource::Workload),
            (ROOTS, _) => Ok(Resource::Roots),
            (_, Some(SYSTEM)) => Ok(Resource::SystemRoots),
            (_, Some(path)) if !path.is_empty() && !path.contains('~') => Ok(Resource::FileRoots(path.into())),
            (_, Some(_)) => Err(invalid!("the name is not file-root:PATH with the path of one file")),
            _ => Err(invalid!(
                "no secret of this name is served here; known are {WORKLOAD}, {ROOTS}, file-cert:, file-root:"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let certificate = |chain: &str, key: &str| Resource::FileCertificate { chain: chain.into(), key: key.into() };
        for (name, expected) in [
            ("default", Some(Resource::Workload)),
            ("ROOTCA", Some(Resource::Roots)),
            ("file-root:system", Some(Resource::SystemRoots)),
            ("file-root:/a/b.pem", Some(Resource::FileRoots("/a/b.pem".into()))),
            ("file-root:./system", Some(Resource::FileRoots("./system".into()))),
            ("file-cert:/c~/k", Some(certificate("/c", "/k"))),
            ("file-cert:a:b~c", Some(certificate("a:b", "c"))),
            ("file-cert:/c~", None),
            ("file-cert:~/k", None),
            ("file-cert:/c", None),
            ("file-cert:/c~/k~/x", None),
            ("file-cert:", None),
            ("file-root:", None),
            ("file-root:a~b", None),
            ("rootca", None),
            ("kubernetes://x", None),
            ("", None),
        ] {
            assert_eq!(Resource::parse(name).ok(), expected, "{name}");
        }
    }
}
