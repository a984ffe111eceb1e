//! One door per effect on the machine. Nothing outside this folder spawns a process or a thread, reads the
//! environment or the clock, writes a file or enters a namespace (clippy's `disallowed-methods` holds the doors shut).

pub(crate) mod backoff;
pub mod cgroup;
pub mod clock;
pub mod exchange;
pub mod exec;
pub mod fd;
pub(crate) mod ffi;
pub mod file;
pub mod logfile;
pub mod lookup;
pub(crate) mod mount;
pub mod netlink;
pub mod netns;
pub mod process;
pub(crate) mod random;
pub(crate) mod resolv_conf;
pub mod run_dir;
pub(crate) mod sync;
pub mod tcp;
pub(crate) mod thread;
pub mod unix;
pub mod wakeup;
pub(crate) mod watch;
