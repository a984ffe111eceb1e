//! Cgroups as the node has them: whose view is read, and who owns a directory (cgroup_namespaces(7), cgroups(7)).

use super::file::HostRoot;
use super::thread;
use crate::error::{Context, Kind, Result};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sched::CloneFlags;
use nix::sys::stat::{Mode, fstat, stat};
use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, fstatfs};
use std::path::Path;

/// Runs `f` where paths in `/proc/PID/cgroup` are as the process sees them whose cgroup namespace file this is: the
/// kernel writes them relative to the root of the reader's. On a thread that is thrown away, unless it is ours anyway.
/// Fails with `NotFound` where there is no such file: a kernel before 4.6, which knows one view only.
pub fn as_seen_from<T: Send>(namespace: &Path, f: impl FnOnce() -> T + Send) -> Result<T> {
    let what = || format!("enter the cgroup namespace {}", namespace.display());
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let fd = open(namespace, flags, Mode::empty()).with_context(what)?;
    let theirs = fstat(&fd).with_context(what)?;
    let ours = stat("/proc/thread-self/ns/cgroup").with_context(what)?;
    if (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino) {
        return Ok(f());
    }
    thread::run_scoped("cgroupns", || {
        #[expect(clippy::disallowed_methods, reason = "this is the door; the thread is thrown away")]
        nix::sched::setns(&fd, CloneFlags::CLONE_NEWCGROUP).with_context(what)?;
        Ok(f())
    })?
}

/// User id of the owner of a cgroup's directory, as `/proc/PID/cgroup` names it: with the controllers of its hierarchy
/// (empty in version 2) and its path there. `None` where this file system cannot be seen: neither below the host root
/// nor through the root directory of process 1.
pub fn owner(root: &HostRoot, controllers: &str, path: &str) -> Result<Option<u32>> {
    let mounts: &[&str] = match controllers {
        "" => &["unified", ""],
        named => &[named.strip_prefix("name=").unwrap_or(named)],
    };
    let first = HostRoot::new(root.join("/proc/1/root"));
    for (root, mount) in [root, &first].into_iter().flat_map(|root| mounts.iter().map(move |mount| (root, mount))) {
        let dir = match root.open(format!("/sys/fs/cgroup/{mount}{path}")) {
            Ok(dir) => dir,
            Err(e) if matches!(e.kind(), Kind::NotFound) => continue,
            Err(e) if matches!(e.errno(), Some(errno) if errno == Errno::EACCES as i32) => continue,
            Err(e) => return Err(e),
        };
        let kind = fstatfs(&dir).context("fstatfs of a cgroup")?.filesystem_type();
        let wanted = if controllers.is_empty() { CGROUP2_SUPER_MAGIC } else { CGROUP_SUPER_MAGIC };
        // Something else has the place of that mount.
        if kind == wanted {
            return Ok(Some(fstat(&dir).context("fstat of a cgroup")?.st_uid));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ones_own_view_needs_no_thread() {
        let here = std::thread::current().id();
        assert_eq!(as_seen_from(Path::new("/proc/self/ns/cgroup"), || std::thread::current().id()).unwrap(), here);
        assert_eq!(as_seen_from(Path::new("/proc/0/ns/cgroup"), || ()).unwrap_err().kind(), Kind::NotFound);
        assert!(as_seen_from(Path::new("/dev/null"), || ()).is_err());
    }

    #[test]
    fn what_is_no_cgroup_file_system_has_no_owner() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("sys/fs/cgroup/unified/a")).unwrap();
        std::fs::create_dir_all(dir.path().join("sys/fs/cgroup/memory/a")).unwrap();
        let root = HostRoot::new(dir.path());
        for (controllers, path) in [("", "/a"), ("memory", "/a"), ("name=systemd", "/a"), ("", "/../../../../proc")] {
            assert_eq!(owner(&root, controllers, path).unwrap(), None, "{controllers} {path}");
        }
    }
}
