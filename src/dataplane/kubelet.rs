//! Which process of the host is the kubelet, by what `/proc` says: native rules tell its probes by the user it runs as,
//! as Istio's do.
//!
//! Anybody may call a process `kubelet`. So only processes in the host's network namespace count, root's before all
//! others, then the one that was the kubelet before, then the oldest.

use super::procfs::start_time;
use crate::error::{Context, Result};
use crate::sys::file::HostRoot;
use crate::sys::netns::NetnsId;
use crate::sys::process::Process;
use std::fmt;
use std::path::Path;

/// What it is called (`/proc/PID/comm`), and whether its command line must speak of the kubelet besides: K3s has it
/// built in, MicroK8s has it in `kubelite`.
const NAMES: [(&str, bool); 5] =
    [("kubelet", true), ("kubelite", true), ("k3s", false), ("k3s-server", false), ("k3s-agent", false)];

/// A process that is taken for the kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kubelet {
    /// Its number.
    pub pid: u32,
    /// The user its sockets belong to.
    pub uid: u32,
    /// Clock ticks from boot to its start.
    start: u64,
}

/// The processes of the host that count as the kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probers {
    /// All that run as the kubelet's user.
    User(Kubelet),
    /// Any: no kubelet was found.
    Any,
}

impl fmt::Display for Probers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Probers::User(Kubelet { pid, uid, .. }) => write!(f, "processes of user {uid}, as process {pid} is"),
            Probers::Any => f.write_str("any process of the host, for no kubelet was found"),
        }
    }
}

/// The kubelet among the processes below `root` that are in the network namespace `host`; `None` if there is none.
/// `known` is the one that was found last: while it runs, no other is looked for.
pub fn find(root: &HostRoot, host: NetnsId, known: Option<Kubelet>) -> Result<Option<Kubelet>> {
    let proc = root.join("/proc");
    if let Some(known) = known
        && look(&proc.join(known.pid.to_string()), host) == Some(known)
    {
        return Ok(Some(known));
    }
    let about = || format!("list the processes in {}", proc.display());
    let mut all = Vec::new();
    for entry in std::fs::read_dir(&proc).with_context(about)? {
        all.extend(look(&entry.with_context(about)?.path(), host));
    }
    Ok(choose(all, known))
}

fn choose(all: Vec<Kubelet>, known: Option<Kubelet>) -> Option<Kubelet> {
    let usual = known.map(|known| known.uid);
    all.into_iter().min_by_key(|one| (one.uid != 0, Some(one.uid) != usual, one.start, one.pid))
}

/// The process of a directory of `/proc`, if it is the kubelet. One that ends meanwhile is none.
fn look(dir: &Path, host: NetnsId) -> Option<Kubelet> {
    let pid = dir.file_name()?.to_str()?.parse().ok()?;
    let process = Process::open(dir).ok()?;
    let name = process.read("comm").ok()?;
    let (_, must_say_so) = NAMES.into_iter().find(|(known, _)| *known == name.trim_end())?;
    if must_say_so && !process.read("cmdline").ok()?.to_lowercase().contains("kubelet") {
        return None;
    }
    if process.netns_id().ok()? != host {
        return None;
    }
    let uid = user(&process.read("status").ok()?)?;
    Some(Kubelet { pid, uid, start: start_time(&process.read("stat").ok()?)? })
}

/// The user for the file system, whom the kernel notes for new sockets, from `/proc/PID/status`: the last of four.
fn user(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_come_first_then_the_known_users_then_the_oldest() {
        let one = |pid, uid, start| Kubelet { pid, uid, start };
        let check = |all: &[Kubelet], known: Option<Kubelet>, want: Option<u32>| {
            assert_eq!(choose(all.to_vec(), known).map(|it| it.pid), want, "{all:?} {known:?}");
        };
        check(&[], None, None);
        check(&[], Some(one(1, 0, 1)), None);
        check(&[one(5, 1000, 1), one(6, 0, 9), one(7, 0, 8)], None, Some(7));
        check(&[one(5, 1000, 1), one(6, 0, 9)], Some(one(4, 1000, 1)), Some(6));
        check(&[one(5, 1000, 1), one(6, 998, 9)], None, Some(5));
        check(&[one(5, 1000, 1), one(6, 998, 9)], Some(one(4, 998, 1)), Some(6));
    }

    #[test]
    fn users() {
        let check = |status: &str, want: Option<u32>| assert_eq!(user(status), want, "{status}");
        check("Name:\tkubelet\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n", Some(4));
        check("Uid:\t1\t2\t3\n", None);
        check("Name:\tUid: 7 7 7 7\n", None);
        check("", None);
    }
}
