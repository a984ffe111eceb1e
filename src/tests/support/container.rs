//! A node in a container, as kind makes them: processes and cgroups of its own, in both versions of cgroups, and a
//! directory that shows it as a host's root. Whatever runs there, and every cgroup, goes with the value.

use super::{DEADLINE, eventually};
use ferrule::sys::netns::Netns;
use nix::mount::{MntFlags, umount2};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Hierarchies as they are mounted on a node with both versions of cgroups.
pub const V2: &str = "unified";
/// systemd's own hierarchy, of version 1.
pub const V1: &str = "systemd";

/// The container's first process makes its namespaces, mounts and room for others, in `$1`, in cgroups called `$2`.
const START: &str = r#"set -e
cd "$1"
mount -t cgroup2 none machine/unified
mount -t cgroup -o none,name=systemd none machine/systemd
for hierarchy in unified systemd; do
    mkdir machine/$hierarchy/$2
    echo 0 >machine/$hierarchy/$2/cgroup.procs
done
exec unshare $3 --pid --fork --kill-child sh -ec '
    cd "$1"
    mount -t proc proc proc
    mount -t cgroup2 none sys/fs/cgroup/unified
    mount -t cgroup -o none,name=systemd none sys/fs/cgroup/systemd
    for hierarchy in unified systemd; do
        at=sys/fs/cgroup/$hierarchy$2
        mkdir $at/init.scope
        echo 0 >$at/init.scope/cgroup.procs
    done
    exec sleep 100000' sh "$1" "$4"
"#;

/// See the module.
pub struct Container {
    dir: TempDir,
    name: String,
    /// Its directory in each hierarchy, as it sees it itself; empty where that is the top.
    top: String,
    /// Waits for the first process, which ends with it.
    launcher: Child,
}

impl Container {
    /// With a cgroup namespace: its own directory is the top of each hierarchy.
    pub fn new() -> Self {
        Self::start(true)
    }

    /// Without: it sees the machine's hierarchies, as containers do on a machine with version 1 alone.
    pub fn without_cgroup_namespace() -> Self {
        Self::start(false)
    }

    fn start(cgroup_namespace: bool) -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let name = format!("ferrule-test-{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        let dir = tempfile::tempdir().unwrap();
        // Users of the node pass through.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let mounts = ["machine/unified", "machine/systemd", "sys/fs/cgroup/unified", "sys/fs/cgroup/systemd", "proc"];
        for mount in mounts {
            fs::create_dir_all(dir.path().join(mount)).unwrap();
        }
        let (flag, top) = if cgroup_namespace { ("--cgroup", String::new()) } else { ("", format!("/{name}")) };
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "sh", "-c", START, "sh"]);
        command.arg(dir.path()).args([&name, flag, &top]).stdin(Stdio::null());
        let container = Container { launcher: command.spawn().unwrap(), dir, name, top };
        let first = container.root().join("proc/1/comm");
        eventually("the container runs (its mounts need root, and a kernel with cgroups of both versions)", || {
            fs::read_to_string(&first).is_ok_and(|comm| comm.trim() == "sleep")
        });
        container
    }

    /// What a host's root directory is to an agent.
    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    /// A directory of a hierarchy, by its path there as the container's processes have it below its own.
    pub fn cgroup(&self, hierarchy: &str, path: &str) -> PathBuf {
        self.root().join(format!("sys/fs/cgroup/{hierarchy}{}{path}", self.top))
    }

    /// Makes such a directory.
    pub fn make_cgroup(&self, hierarchy: &str, path: &str) {
        fs::create_dir_all(self.cgroup(hierarchy, path)).unwrap();
    }

    /// Gives a directory away as systemd and runtimes do: its owner may make others below, and move processes there.
    pub fn delegate(&self, hierarchy: &str, path: &str, user: u32) {
        self.make_cgroup(hierarchy, path);
        let dir = self.cgroup(hierarchy, path);
        for file in ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control", "tasks"] {
            let file = dir.join(file);
            if file.exists() {
                chown(file, Some(user), Some(user)).unwrap();
            }
        }
    }

    /// What nsenter is to enter.
    fn namespaces(&self) -> [String; 2] {
        let of = format!("/proc/{}/ns", self.launcher.id());
        [format!("--pid={of}/pid_for_children"), format!("--cgroup={of}/cgroup")]
    }

    /// A process that enters these cgroups, which are made if need be, and then runs a script for good.
    pub fn run(&self, cgroups: &[(&str, &str)], netns: Option<&Path>, script: &str, args: &[&str]) -> Process<'_> {
        for (hierarchy, path) in cgroups {
            self.make_cgroup(hierarchy, path);
        }
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let file = self.root().join(format!("pid-{}", COUNTER.fetch_add(1, Ordering::Relaxed)));
        // Its cgroups first: where a namespace is a border, nobody comes in from outside once he is in that.
        let enter = |(hierarchy, path): &(&str, &str)| {
            format!("echo 0 >'{}/cgroup.procs'\n", self.cgroup(hierarchy, path).display())
        };
        let enter: String = cgroups.iter().map(enter).collect();
        let mut command = Command::new("sh");
        command.args(["-ec", &format!("{enter}exec nsenter \"$@\""), "sh"]);
        command.args(self.namespaces());
        if let Some(netns) = netns {
            command.arg(format!("--net={}", netns.display()));
        }
        // `$0` is the file for its number in the container.
        let script = format!("set -e\necho $$ >$0.new\nmv $0.new $0\n{script}");
        command.args(["--", "sh", "-c", &script]).arg(&file).args(args).stdin(Stdio::null());
        let child = command.spawn().unwrap();
        let mut number = 0;
        eventually("a process of the container runs", || {
            let text = fs::read_to_string(&file).unwrap_or_default();
            text.trim().parse().map(|pid: u32| number = pid).is_ok()
        });
        Process { container: self, child, number }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
        for mount in ["proc", "sys/fs/cgroup/unified", "sys/fs/cgroup/systemd"] {
            let _ = umount2(&self.root().join(mount), MntFlags::MNT_DETACH);
        }
        for hierarchy in [V2, V1] {
            let machine = self.root().join("machine").join(hierarchy);
            let end = Instant::now() + DEADLINE;
            // The kernel lets go of the last process a moment after its end.
            while !remove_cgroup(&machine.join(&self.name)) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = umount2(&machine, MntFlags::MNT_DETACH);
        }
    }
}

/// Removes a cgroup and all below it; whether it is gone.
fn remove_cgroup(dir: &Path) -> bool {
    let below = fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    for path in below.filter(|path| path.is_dir()) {
        remove_cgroup(&path);
    }
    fs::remove_dir(dir).is_ok() || !dir.exists()
}

/// A process in a container; it ends with the value.
pub struct Process<'a> {
    container: &'a Container,
    child: Child,
    /// In the container.
    number: u32,
}

impl Process<'_> {
    /// A file of its directory in the container's `/proc`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.container.root().join(format!("proc/{}/{name}", self.number))
    }

    /// Its network namespace.
    pub fn netns(&self) -> Netns {
        Netns::open(&self.file("ns/net")).unwrap()
    }

    /// Waits until it is this program; `what` it is for says who did not become one.
    #[track_caller]
    pub fn wait_for(&self, what: &str, program: &str) {
        eventually(&format!("{what}: it runs {program}"), || {
            fs::read_to_string(self.file("comm")).is_ok_and(|comm| comm.trim() == program)
        });
    }

    /// Gives its user namespace these ids, as root and as `newuidmap` would (user_namespaces(7)).
    pub fn map_users(&self, ids: &str) {
        for map in ["gid_map", "uid_map"] {
            fs::write(self.file(map), ids).unwrap();
        }
    }
}

impl Drop for Process<'_> {
    fn drop(&mut self) {
        // nsenter waits for it; whatever it is by now, it has that parent.
        let _ = Command::new("nsenter")
            .args(self.container.namespaces())
            .args(["--", "kill", "-KILL", &self.number.to_string()])
            .output();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
