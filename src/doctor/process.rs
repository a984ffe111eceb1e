//! What this process may do, and what it sees of the host.

use super::finding::Finding;
use super::options::Options;
use crate::sys::file::{self, HostRoot};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The capabilities of the agent (capabilities(7)) with their numbers, and what each is for.
const NEEDED: [(u32, &str, &str); 5] = [
    (1, "CAP_DAC_OVERRIDE", "writing to directories of others"),
    (12, "CAP_NET_ADMIN", "rules, routes and sets"),
    (13, "CAP_NET_RAW", "iptables"),
    (19, "CAP_SYS_PTRACE", "finding the namespaces of running pods"),
    (21, "CAP_SYS_ADMIN", "entering the namespaces of pods"),
];

#[derive(Debug)]
pub(super) struct Facts {
    /// Effective capabilities, a bit each.
    capabilities: Option<u64>,
    /// The optional fields of the mount at the pods' namespaces (mount_namespaces(7)), if there is one.
    netns_mount: Option<(String, String)>,
    /// Whether the run dir is the host's: what is made here is seen there. Nothing where that cannot be seen.
    run_dir_shared: Option<bool>,
    run_dir: String,
    /// This process is not on the host's network. Nothing where that cannot be seen.
    pub(super) off_host: Option<bool>,
}

impl Facts {
    pub(super) fn gather(options: &Options) -> Self {
        let root = &options.install.host_root;
        let read = |path: &str| {
            let bytes = file::read_limited(Path::new(path), 4 << 20).ok()?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        let run_dir = options.run_dir.path();
        let (network, networks) = ("proc/1/ns/net", Path::new("/proc/self/ns/net"));
        Facts {
            capabilities: read("/proc/self/status").and_then(|status| effective(&status)),
            // Straight on a host there is nothing between us and it.
            netns_mount: read("/proc/self/mountinfo").filter(|_| root.path() != Path::new("/")).and_then(|mounts| {
                let wanted = ["/var/run/netns", "/run/netns"].map(|path| root.join(path).display().to_string());
                mount(&mounts, &wanted)
            }),
            run_dir_shared: is_the_hosts(run_dir, &HostRoot::new(root.path().join("proc/1/root"))),
            run_dir: run_dir.display().to_string(),
            off_host: identity(networks).zip(identity(&root.join(network))).map(|(ours, hosts)| ours != hosts),
        }
    }

    pub(super) fn judge(&self) -> Vec<Finding> {
        let mut findings = vec![self.capabilities()];
        if let Some((path, optional)) = &self.netns_mount {
            let propagated = optional.contains("shared:") || optional.contains("master:");
            findings.push(if propagated {
                Finding::ok("mounts", &format_args!("{path} follows the host's"))
            } else {
                let finding = format!("{path} is private: namespaces made from now on are not seen there");
                Finding::warn("mounts", &finding, &"mount it with mountPropagation: HostToContainer")
            });
        }
        if self.run_dir_shared == Some(false) {
            let finding = format!("{} is not the host's: the plugin cannot reach the agent there", self.run_dir);
            findings.push(Finding::fail("mounts", &finding, &"mount the host's directory of that name (hostPath)"));
        }
        findings
    }

    fn capabilities(&self) -> Finding {
        const CHECK: &str = "capabilities";
        let Some(bits) = self.capabilities else {
            return Finding::warn(CHECK, &"/proc/self/status does not tell", &"mount /proc");
        };
        let missing: Vec<String> = NEEDED
            .iter()
            .filter(|(number, ..)| bits & (1 << number) == 0)
            .map(|(_, name, used_for)| format!("{name} ({used_for})"))
            .collect();
        if missing.is_empty() {
            return Finding::ok(CHECK, &NEEDED.map(|(_, name, _)| name).join(", "));
        }
        let remedy = "add them to securityContext.capabilities.add of the agent's container; on a host, run as root";
        Finding::fail(CHECK, &format_args!("missing: {}", missing.join(", ")), &remedy)
    }
}

fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// The last mount at one of these places: the place and the optional fields.
fn mount(mountinfo: &str, wanted: &[String]) -> Option<(String, String)> {
    mountinfo.lines().rev().find_map(|line| {
        let (head, _) = line.split_once(" - ")?;
        let mut fields = head.split(' ');
        let place = wanted.iter().find(|place| Some(place.as_str()) == fields.clone().nth(4))?;
        Some((place.clone(), fields.by_ref().skip(6).collect::<Vec<_>>().join(" ")))
    })
}

/// Whether a directory is the one that the host has under its name. Nothing where the host's tree cannot be seen.
fn is_the_hosts(dir: &Path, host: &HostRoot) -> Option<bool> {
    host.open("/").ok()?;
    let ours = identity(dir)?;
    let theirs = host.open(dir).ok().and_then(|dir| dir.metadata().ok());
    Some(theirs.is_some_and(|theirs| (theirs.dev(), theirs.ino()) == ours))
}

/// Device and inode of what a path leads to.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Grade;

    fn facts() -> Facts {
        Facts {
            capabilities: Some((1 << 1) | (1 << 12) | (1 << 13) | (1 << 19) | (1 << 21)),
            netns_mount: None,
            run_dir_shared: None,
            run_dir: "/run/x".to_owned(),
            off_host: None,
        }
    }

    #[test]
    fn capabilities_are_read_and_named() {
        assert_eq!(effective("Name:\tx\nCapInh:\t0\nCapEff:\t000001ffffffffff\n"), Some(0x1ff_ffff_ffff));
        assert_eq!(effective("CapEff:\tx\n"), None);
        assert_eq!(effective(""), None);
        assert_eq!(facts().judge()[0].result, Grade::Ok);
        let lacking = Facts { capabilities: Some(!(1 << 13)), ..facts() };
        assert_eq!(lacking.judge()[0].finding, "missing: CAP_NET_RAW (iptables)");
    }

    #[test]
    fn a_directory_of_our_own_is_not_the_hosts() {
        let host = tempfile::tempdir().unwrap();
        let root = HostRoot::new(host.path());
        let here = tempfile::tempdir().unwrap();
        assert_eq!(is_the_hosts(here.path(), &root), Some(false));
        assert_eq!(is_the_hosts(here.path(), &HostRoot::new("/")), Some(true));
        assert_eq!(is_the_hosts(here.path(), &HostRoot::new(host.path().join("nowhere"))), None);
        assert_eq!(is_the_hosts(&here.path().join("nowhere"), &root), None);
    }

    #[test]
    fn mounts_of_the_host() {
        let mounts = "20 1 0:5 / /host/proc rw - proc proc rw\n\
                      21 1 0:6 /netns /host/var/run/netns rw,relatime master:7 - tmpfs tmpfs rw\n\
                      22 1 0:6 /a /b rw\n";
        let wanted = |path: &str| mount(mounts, &[path.to_owned()]);
        assert_eq!(wanted("/host/var/run/netns"), Some(("/host/var/run/netns".to_owned(), "master:7".to_owned())));
        assert_eq!(wanted("/host/proc"), Some(("/host/proc".to_owned(), String::new())));
        assert_eq!(wanted("/b"), None);
        let private = Facts { netns_mount: wanted("/host/proc"), ..facts() };
        assert_eq!(private.judge()[1].result, Grade::Warn);
        let not_ours = Facts { run_dir_shared: Some(false), ..facts() };
        assert_eq!(not_ours.judge()[1].result, Grade::Fail);
    }
}
