//! One door per effect on the machine. Nothing outside this folder spawns a process or a thread, reads the
//! environment or the clock, writes a file or enters a namespace (clippy's `disallowed-methods` holds the doors shut).

pub mod backoff;
pub mod cgroup;
pub mod clock;
pub mod exchange;
pub mod exec;
pub mod fd;
pub mod ffi;
pub mod file;
pub mod logfile;
pub mod mount;
pub mod netlink;
pub mod netns;
pub mod process;
pub mod random;
pub mod resolv_conf;
pub mod sync;
pub mod tcp;
pub mod thread;
pub mod unix;
pub mod wakeup;
pub mod watch;
