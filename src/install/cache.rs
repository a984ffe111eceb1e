//! Which sandboxes will be torn down through our plugin, as far as it can be seen on the host.
//!
//! libcni keeps the configuration of each ADD in a cache and takes the chain for DEL from there: as long as one of them
//! names our plugin, its executable must stay, or the runtime cannot tear that sandbox down. A sandbox whose ADD is under
//! way is not in the cache yet, and if that ADD fails it never will be: but the plugin runs.

use super::PLUGIN;
use crate::error::{Context, Error, Kind, Result};
use crate::invalid;
use crate::sys::file::{HostRoot, read_limited};
use base64::prelude::{BASE64_STANDARD, Engine};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where libcni keeps them: CRI-O and podman, containerd.
const CACHES: [&str; 2] = ["/var/lib/cni/cache/results", "/var/lib/cni/results"];

/// Far more than any cached result has.
const MAX_RESULT: usize = 4 << 20;

/// Why the plugin's executable must stay; `None`: it may go.
pub fn who_needs_the_plugin(host_root: &HostRoot) -> Option<String> {
    let in_init = HostRoot::new(host_root.path().join("proc/1/root"));
    let found = match search(host_root) {
        // In a container, only some of the host's directories are below the host root, and this may not be one.
        Ok(None) if !is_whole(host_root) => match search(&in_init) {
            Ok(None) if is_whole(&in_init) => Ok(Found::Nothing),
            Ok(None) => Err(Error::new("the CNI result cache is not visible from here")),
            Ok(Some(found)) => Ok(found),
            Err(e) => Err(e),
        },
        Ok(found) => Ok(found.unwrap_or(Found::Nothing)),
        Err(e) => Err(e),
    };
    match found {
        Ok(Found::Nothing) => None,
        Ok(Found::Sandbox(file)) => Some(format!("{file} names it, and its sandbox is torn down through it")),
        Err(e) => Some(format!("whether a sandbox still needs it cannot be told ({e})")),
    }
}

/// The process that runs the plugin now, if one does.
pub fn who_runs_the_plugin(host_root: &HostRoot, executable: &Path) -> Option<String> {
    let file = |path: PathBuf| std::fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
    let wanted = file(executable.into())?;
    let processes = std::fs::read_dir(host_root.path().join("proc")).ok()?;
    processes.flatten().find_map(|process| {
        let name = process.file_name().into_string().ok()?;
        let number: u32 = name.parse().ok()?;
        (file(process.path().join("exe"))? == wanted).then(|| format!("process {number} runs it for a sandbox"))
    })
}

enum Found {
    Nothing,
    Sandbox(String),
}

/// Whether `root` shows the host's whole tree, so that what is missing there is missing on the host.
fn is_whole(root: &HostRoot) -> bool {
    let device = |path: PathBuf| std::fs::metadata(path).map(|metadata| metadata.dev());
    root.open("/var/lib").is_ok()
        || matches!((device(root.path().into()), device(root.join("/opt/cni/bin"))), (Ok(a), Ok(b)) if a == b)
}

/// `None` when there is no cache below this root.
fn search(root: &HostRoot) -> Result<Option<Found>> {
    let mut found = None;
    for cache in CACHES {
        let dir = match root.open(cache) {
            Ok(dir) => dir,
            Err(e) if e.kind() == Kind::NotFound => continue,
            Err(e) => return Err(e),
        };
        // The path of the descriptor, since the directory may be in another mount namespace.
        let open = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
        found.get_or_insert(Found::Nothing);
        for entry in std::fs::read_dir(&open).with_context(|| format!("list {cache}"))? {
            let name = entry.with_context(|| format!("list {cache}"))?.file_name();
            let what = || format!("{cache}/{}", name.display());
            match read_limited(&open.join(&name), MAX_RESULT).and_then(|content| names_us(&content)) {
                Ok(true) => return Ok(Some(Found::Sandbox(what()))),
                Ok(false) => {}
                // Torn down since it was listed.
                Err(e) if e.kind() == Kind::NotFound => {}
                Err(e) => return Err(e.context(what())),
            }
        }
    }
    Ok(found)
}

/// Whether a cached result's chain names our plugin: it is base64 in `config` (libcni's `cachedInfo`). Files of older
/// libcni hold the result alone; their DEL takes the configuration of the day.
pub fn names_us(content: &[u8]) -> Result<bool> {
    #[derive(serde::Deserialize)]
    struct Cached {
        #[serde(default)]
        config: Option<String>,
    }
    let cached: Cached = serde_json::from_slice(content).context("decode")?;
    let chain =
        BASE64_STANDARD.decode(cached.config.unwrap_or_default()).map_err(|e| invalid!("decode config: {e}"))?;
    Ok(chain.windows(PLUGIN.len()).any(|window| window == PLUGIN.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_that_name_us() {
        let check = |content: &str, expected: Option<bool>| assert_eq!(names_us(content.as_bytes()).ok(), expected);
        let cached = |chain: &str| {
            format!(
                r#"{{"kind":"cniCacheV1","containerId":"x","config":"{}","result":{{}}}}"#,
                BASE64_STANDARD.encode(chain)
            )
        };
        check(&cached(r#"{"plugins":[{"type":"bridge"},{"type":"istio-cni"}]}"#), Some(true));
        check(&cached(r#"{"plugins":[{"type":"bridge"}]}"#), Some(false));
        check(r#"{"cniVersion":"0.3.1","ips":[]}"#, Some(false));
        check(r#"{"config":null}"#, Some(false));
        check("", None);
        check(r#"{"config":"%"}"#, None);
        check(r#"{"config":"aaa"#, None);
    }
}
