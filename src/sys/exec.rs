//! The one way to run a program: it cannot hang, and its stderr is never lost.
//!
//! Standard input is fed and the outputs are drained at the same time by polling on the calling thread (never on
//! another: the child asks for `PR_SET_PDEATHSIG`, which fires when the *thread* that spawned it ends). The
//! environment is empty but for what the command names. A deadline kills and reaps.

use crate::error::{Context, Error, Kind, Result};
use crate::sys::{clock, fd, ffi};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, pipe2};
use std::ffi::{CString, OsString};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Most a program may write to standard output.
const MAX_STDOUT: usize = 4 << 20;

/// Most that is kept of standard error.
const MAX_STDERR: usize = 64 << 10;

/// Lines of standard error shown in an error.
const STDERR_LINES: usize = 3;

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
pub fn run_all(commands: &[Command]) -> Vec<Result<Output>> {
    run_all_while(commands, || (), |_| ()).0
}

/// Does as [`run_all`], and something short on the calling thread meanwhile: once while the programs get going, and when one
/// has ended well while others still run, which is told its number.
pub fn run_all_while<T>(
    commands: &[Command],
    meanwhile: impl FnOnce() -> T,
    mut ended: impl FnMut(usize),
) -> (Vec<Result<Output>>, T) {
    let mut running: Vec<_> = commands.iter().map(Running::start).collect();
    running.iter_mut().flatten().for_each(|process| process.input.feed());
    let done = meanwhile();
    loop {
        let mut polled = Vec::new();
        let mut deadline: Option<Instant> = None;
        for process in running.iter().flatten().filter(|process| process.end.is_none()) {
            process.poll_fds(&mut polled);
            deadline = Some(deadline.map_or(process.deadline, |d| d.min(process.deadline)));
        }
        let Some(deadline) = deadline else { break };
        let waited = fd::wait_any(&mut polled, clock::until(deadline));
        drop(polled);
        for process in running.iter_mut().flatten().filter(|process| process.end.is_none()) {
            match &waited {
                Ok(_) => process.step(),
                Err(e) => process.kill(Error::new(e)),
            }
        }
        let runs = |process: &Result<Running<'_>>| process.as_ref().is_ok_and(|process| process.end.is_none());
        if running.iter().any(runs) {
            for (number, process) in running.iter_mut().enumerate() {
                if let Ok(process) = process
                    && let Some(Ok(WaitStatus::Exited(_, 0))) = process.end
                    && !std::mem::replace(&mut process.told, true)
                {
                    ended(number);
                }
            }
        }
    }
    (running.into_iter().zip(commands).map(|(process, command)| process?.finish(command)).collect(), done)
}

/// A child and our ends of its pipes.
struct Running<'a> {
    pid: Pid,
    /// Readable once the child has ended.
    pidfd: OwnedFd,
    input: Input<'a>,
    stdout: Stream,
    stderr: Stream,
    deadline: Instant,
    /// How it ended; `Err` when we killed it, and why.
    end: Option<Result<WaitStatus>>,
    /// That it ended well has been said.
    told: bool,
}

impl<'a> Running<'a> {
    fn start(command: &'a Command) -> Result<Self> {
        Self::spawn(command).with_context(|| format!("run {}", describe(command)))
    }

    fn spawn(command: &'a Command) -> Result<Self> {
        let program = CString::new(command.program.as_os_str().as_bytes())?;
        let arg0 = command.arg0.as_deref().unwrap_or(command.program.as_os_str());
        let args = std::iter::once(arg0).chain(command.args.iter().map(OsString::as_os_str));
        let args = args.map(|arg| CString::new(arg.as_bytes())).collect::<Result<Vec<_>, _>>()?;
        let pair = |(key, value): &(OsString, OsString)| CString::new([key.as_bytes(), value.as_bytes()].join(&b'='));
        let env = command.env.iter().map(pair).collect::<Result<Vec<_>, _>>()?;
        let (stdin_read, stdin_write) = pipe()?;
        let (stdout_read, stdout_write) = pipe()?;
        let (stderr_read, stderr_write) = pipe()?;
        for ours in [&stdin_write, &stdout_read, &stderr_read] {
            fcntl(ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).context("fcntl")?;
        }
        let mut input = Input { pipe: Some(File::from(stdin_write)), rest: &command.stdin };
        // What fits into the pipe is there before the program is, which then need not wait for us.
        input.feed();
        let deadline = clock::now() + command.deadline;
        let (pid, pidfd) = ffi::spawn(&ffi::Spawn {
            program: &program,
            args: &args,
            env: &env,
            stdio: [stdin_read.as_fd(), stdout_write.as_fd(), stderr_write.as_fd()],
        })?;
        let mut running = Running {
            pid,
            pidfd,
            input,
            stdout: Stream::new(stdout_read),
            stderr: Stream::new(stderr_read),
            deadline,
            end: None,
            told: false,
        };
        // The child's own end must be closed first, or a write to a child that closed its input would never fail.
        drop(stdin_read);
        running.input.feed();
        Ok(running)
    }

    fn poll_fds<'b>(&'b self, fds: &mut Vec<PollFd<'b>>) {
        fds.push(PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN));
        fds.extend(self.input.pipe.iter().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLOUT)));
        let outputs = [&self.stdout.pipe, &self.stderr.pipe];
        fds.extend(outputs.into_iter().flatten().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)));
    }

    /// Moves what can be moved without blocking.
    fn step(&mut self) {
        // Asked before the pipes are drained: what an ended child wrote is then in them.
        let ended = waitpid(self.pid, Some(WaitPidFlag::WNOHANG));
        self.input.feed();
        self.stderr.drain(MAX_STDERR);
        self.stdout.drain(MAX_STDOUT);
        if self.stdout.lost > 0 {
            self.kill(crate::invalid!("it wrote more than {MAX_STDOUT} bytes to standard output"));
            return;
        }
        match ended {
            Ok(WaitStatus::StillAlive) if clock::until(self.deadline).is_zero() => {
                self.kill(Error::of(Kind::TimedOut, "it was killed at its deadline"));
            }
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => {}
            Ok(status) => self.end = Some(Ok(status)),
            Err(e) => self.kill(e.into()),
        }
    }

    /// Kills the child and everything in its process group. It is not reaped yet, so its number is still its own.
    fn kill(&mut self, why: Error) {
        let _ = killpg(self.pid, Signal::SIGKILL);
        while waitpid(self.pid, None) == Err(Errno::EINTR) {}
        self.stderr.drain(MAX_STDERR);
        self.end = Some(Err(why));
    }

    fn finish(mut self, command: &Command) -> Result<Output> {
        let error = match self.end.take() {
            Some(Ok(WaitStatus::Exited(_, 0))) => {
                return Ok(Output { stdout: self.stdout.data, stderr: self.stderr.data });
            }
            Some(Ok(WaitStatus::Exited(_, code))) => Error::of(Kind::ProgramFailed, format_args!("exit status {code}")),
            Some(Ok(WaitStatus::Signaled(_, signal, _))) => {
                Error::of(Kind::ProgramFailed, format_args!("killed by {signal}"))
            }
            Some(Ok(other)) => Error::of(Kind::ProgramFailed, format_args!("{other:?}")),
            Some(Err(why)) => why,
            None => Error::new("it was never waited for"),
        };
        let said = first_lines(&self.stderr.data);
        let kind = error.kind();
        let error = if said.is_empty() { error } else { Error::of(kind, format_args!("{error}: {said}")) };
        Err(error.context(describe(command)))
    }
}

/// What a child is still to be given.
struct Input<'a> {
    /// Closed once nothing is left.
    pipe: Option<File>,
    rest: &'a [u8],
}

impl Input<'_> {
    /// Writes what can be written without blocking.
    fn feed(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        while !self.rest.is_empty() {
            match pipe.write(self.rest) {
                Ok(n) => self.rest = self.rest.get(n..).unwrap_or_default(),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // The program does not want the rest. Its exit status says whether that was right.
                Err(_) => break,
            }
        }
        self.pipe = None;
    }
}

/// One output of a child.
struct Stream {
    pipe: Option<File>,
    data: Vec<u8>,
    /// Bytes beyond the limit, thrown away.
    lost: usize,
}

impl Stream {
    fn new(pipe: OwnedFd) -> Self {
        Stream { pipe: Some(File::from(pipe)), data: Vec::new(), lost: 0 }
    }

    /// Reads what is there.
    fn drain(&mut self, limit: usize) {
        let Some(pipe) = &mut self.pipe else { return };
        let mut chunk = [0; 16 << 10];
        loop {
            match pipe.read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => {
                    let keep = n.min(limit.saturating_sub(self.data.len()));
                    self.data.extend_from_slice(chunk.get(..keep).unwrap_or_default());
                    self.lost += n - keep;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => break,
            }
        }
        self.pipe = None;
    }
}

/// Reading end and writing end, close-on-exec.
fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    pipe2(OFlag::O_CLOEXEC).context("make a pipe")
}

/// The program and its arguments, as a person would type them.
fn describe(command: &Command) -> String {
    let mut text = command.program.display().to_string();
    for arg in &command.args {
        let _ = write!(text, " {}", arg.display());
    }
    text
}

fn first_lines(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).take(STDERR_LINES).collect();
    lines.join("; ")
}

/// Looks a program up in a fixed list of directories (`/usr/local/sbin`, `/usr/local/bin`, `/usr/sbin`, `/usr/bin`,
/// `/sbin`, `/bin`), never in `PATH`.
pub fn find_program(name: &str) -> Option<PathBuf> {
    const DIRS: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let executable = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    DIRS.iter().map(|dir| Path::new(dir).join(name)).find(executable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        Command {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            deadline: Duration::from_secs(20),
            ..Command::default()
        }
    }

    fn failure(command: &Command) -> (Kind, String) {
        let e = run(command).unwrap_err();
        (e.kind(), e.to_string())
    }

    #[test]
    fn large_input_and_output_flow_at_the_same_time() {
        // Larger than any pipe, both ways: a one-sided copy would wait for ever.
        let stdin: Vec<u8> = (0..1_000_000_u32).map(|n| n as u8).collect();
        let out = run(&Command { stdin: stdin.clone(), ..sh("tee /dev/stderr") }).unwrap();
        assert!(out.stdout == stdin);
        assert_eq!(out.stderr.len(), MAX_STDERR);
    }

    #[test]
    fn the_environment_is_what_the_command_says() {
        let env = vec![("A".into(), "b c".into())];
        let out = run(&Command { env, program: "/usr/bin/env".into(), args: vec![], ..sh("") }).unwrap();
        assert_eq!(out.stdout, b"A=b c\n");
    }

    #[test]
    fn failures_say_program_status_and_stderr() {
        let (kind, text) = failure(&sh("echo one >&2; echo >&2; echo two >&2; exit 3"));
        assert_eq!(kind, Kind::ProgramFailed);
        assert_eq!(text, "/bin/sh -c echo one >&2; echo >&2; echo two >&2; exit 3: exit status 3: one; two");
        let (kind, text) = failure(&sh("kill -9 $$"));
        assert_eq!((kind, text.contains("killed by SIGKILL")), (Kind::ProgramFailed, true), "{text}");
        let (kind, text) = failure(&Command { program: "/no/such".into(), ..sh("") });
        assert_eq!((kind, text.starts_with("run /no/such -c")), (Kind::NotFound, true), "{text}");
    }

    #[test]
    fn who_ends_well_before_the_last_is_told() {
        let mut told = Vec::new();
        let commands = [sh("exit 0"), sh("sleep 0.5"), sh("exit 3"), Command { program: "/no/such".into(), ..sh("") }];
        let (results, done) = run_all_while(&commands, || 7, |number| told.push(number));
        assert_eq!((told, done), (vec![0], 7));
        assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, false, false]);
    }

    #[test]
    fn the_deadline_kills_what_the_program_started_too() {
        let begin = clock::now();
        let (kind, text) = failure(&Command {
            deadline: Duration::from_millis(200),
            ..sh("echo hello >&2; sleep 1000 & echo $! >&2; wait")
        });
        assert_eq!(kind, Kind::TimedOut);
        assert!(begin.elapsed() < Duration::from_secs(5));
        let sleeper = text.rsplit("; ").next().unwrap();
        let stat = format!("/proc/{sleeper}/stat");
        // Orphaned and killed: gone, or a zombie until its new parent reaps it.
        let end = clock::now() + Duration::from_secs(5);
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(clock::now() < end, "{text}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_child_left_behind_with_our_pipes_does_not_hold_us() {
        let begin = clock::now();
        let out = run(&sh("sleep 30 & echo done")).unwrap();
        assert_eq!(out.stdout, b"done\n");
        assert!(begin.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn input_that_is_not_wanted_is_no_error() {
        let stdin = vec![b'x'; 1_000_000];
        assert_eq!(run(&Command { stdin: stdin.clone(), ..sh("exec <&-; echo ok") }).unwrap().stdout, b"ok\n");
        assert_eq!(failure(&Command { stdin, ..sh("exit 4") }).0, Kind::ProgramFailed);
    }

    #[test]
    fn too_much_output_is_an_error() {
        let (kind, text) = failure(&sh("yes"));
        assert_eq!(kind, Kind::Invalid, "{text}");
    }

    #[test]
    fn several_run_side_by_side_and_answer_in_order() {
        // The first waits for what the second writes.
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo").display().to_string();
        nix::unistd::mkfifo(fifo.as_str(), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let results = run_all(&[sh(&format!("cat {fifo}")), sh(&format!("echo x > {fifo}; echo y")), sh("exit 1")]);
        let kinds: Vec<_> = results.into_iter().map(|r| r.map(|o| o.stdout).map_err(|e| e.kind())).collect();
        assert_eq!(kinds, [Ok(b"x\n".to_vec()), Ok(b"y\n".to_vec()), Err(Kind::ProgramFailed)]);
        assert!(run_all(&[]).is_empty());
    }

    #[test]
    fn signals_are_unblocked_in_the_child() {
        let blocked = crate::sys::thread::run_scoped("blocker", || {
            nix::sys::signal::SigSet::all().thread_block().unwrap();
            run(&sh("grep SigBlk /proc/self/status")).unwrap().stdout
        });
        assert_eq!(String::from_utf8(blocked.unwrap()).unwrap(), "SigBlk:\t0000000000000000\n");
    }

    #[test]
    fn programs_are_found_in_fixed_places() {
        assert!(find_program("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(find_program("no-such-program"), None);
    }
}
