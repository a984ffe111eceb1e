//! Network namespaces as pods have them: with a path that a plugin can be given.

use ferrule::rules::family::Family;
use ferrule::sys::netlink::set_link_up;
use ferrule::sys::netns::Netns;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A new namespace with `lo` up, bind-mounted to a file; both go with the value.
pub struct PodNetns {
    netns: Netns,
    path: PathBuf,
    _dir: TempDir,
}

impl PodNetns {
    pub fn new() -> Self {
        let netns = Netns::scratch().unwrap();
        netns.enter(|| set_link_up("lo").unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cni-netns");
        File::create(&path).unwrap();
        let source = format!("/proc/self/fd/{}", netns.as_fd().as_raw_fd());
        mount(Some(source.as_str()), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        PodNetns { netns, path, _dir: dir }
    }

    /// The mounted file: `CNI_NETNS`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Runs `f` inside.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        self.netns.enter(f).unwrap()
    }
}

impl Drop for PodNetns {
    fn drop(&mut self) {
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
    }
}

/// Which iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Nft,
    Legacy,
}

impl Backend {
    pub const ALL: [Backend; 2] = [Backend::Nft, Backend::Legacy];

    /// `iptables-nft`, `ip6tables-legacy`, …, followed by `suffix` (`-save`, `-restore` or nothing).
    pub fn program(self, family: Family, suffix: &str) -> String {
        let family = if family == Family::V4 { "iptables" } else { "ip6tables" };
        let backend = if self == Backend::Nft { "nft" } else { "legacy" };
        format!("{family}-{backend}{suffix}")
    }
}

/// What `iptables-save` says inside a namespace, without comments and counters. Empty when there are no tables.
pub fn iptables_save(netns: &Netns, backend: Backend, family: Family) -> String {
    let text = run_in(netns, &backend.program(family, "-save"), &[]);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_once(" [").map_or(line, |(rest, _)| rest)).collect::<Vec<_>>().join("\n")
}

/// What `nft list ruleset` says inside a namespace, without what it has counted.
pub fn nft_list(netns: &Netns) -> String {
    run_in(netns, "nft", &["-s", "list", "ruleset"])
}

/// Runs a program inside a namespace and returns its output; panics when it fails.
#[track_caller]
pub fn run_in(netns: &Netns, program: &str, args: &[&str]) -> String {
    let out = netns.enter(|| Command::new(program).args(args).output()).unwrap();
    let out = out.unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(out.status.success(), "{program} {args:?}: {}: {}", out.status, String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}
