//! The one way to run a program: it cannot hang, and its stderr is never lost.
//!
//! Standard input is fed and the outputs are drained at the same time by polling on the calling thread (never on
//! another: the child asks for `PR_SET_PDEATHSIG`, which fires when the *thread* that spawned it ends). The
//! environment is empty but for what the command names. A deadline kills and reaps.

use crate::error::Result;
use crate::sys::netns::Netns;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A program to run. `program` is absolute: there is no PATH look-up here (see [`find_program`]).
#[derive(Debug, Clone, Default)]
pub struct Command {
    /// Absolute path.
    pub program: PathBuf,
    /// `argv[0]` when it differs from the program's path (multi-call binaries).
    pub arg0: Option<OsString>,
    /// Arguments after `argv[0]`.
    pub args: Vec<OsString>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Bytes for standard input, closed afterwards.
    pub stdin: Vec<u8>,
    /// From spawn to exit; then SIGKILL.
    pub deadline: Duration,
    /// Become root of this user namespace, then enter this network namespace, before the program starts (see
    /// [`Netns::foreign_user_ns`]). The network namespace of the calling thread otherwise.
    pub join: Option<Join>,
}

/// A user namespace and a network namespace that it owns.
#[derive(Debug, Clone)]
pub struct Join {
    /// The user namespace.
    pub user_ns: Arc<OwnedFd>,
    /// The network namespace.
    pub netns: Arc<Netns>,
}

/// What a program that ended with status 0 wrote.
#[derive(Debug, Clone, Default)]
pub struct Output {
    /// Standard output, at most 4 MiB (more is an error).
    pub stdout: Vec<u8>,
    /// Standard error, at most 64 KiB kept.
    pub stderr: Vec<u8>,
}

/// Runs one program. Errors: `NotFound` (program), `TimedOut`, `ProgramFailed` (status or signal), each naming the
/// program, its arguments, the status and the first lines of stderr.
pub fn run(command: &Command) -> Result<Output> {
    run_all(std::slice::from_ref(command)).pop().unwrap_or_else(|| unreachable!("one command, one result"))
}

/// Runs programs side by side in the calling thread's namespaces and waits for all; results in the given order.
pub fn run_all(_commands: &[Command]) -> Vec<Result<Output>> {
    todo!()
}

/// Looks a program up in a fixed list of directories (`/usr/local/sbin`, `/usr/local/bin`, `/usr/sbin`, `/usr/bin`,
/// `/sbin`, `/bin`), never in `PATH`.
pub fn find_program(_name: &str) -> Option<PathBuf> {
    todo!()
}
