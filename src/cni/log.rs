//! The plugin's log: one JSON object a line to standard error, to the rolling `RUN/istio-cni.log`, and at the end to
//! the agent (`POST /log` on `log.sock`).
//!
//! A line must never delay or fail what it tells of: files and sockets that are missing, full or slow lose it. Nothing
//! is opened before there is a line to write.

use crate::http::client::encode_request;
use crate::logging::Line;
use crate::sys::exchange::Exchange;
use crate::sys::file::Mode;
use crate::sys::unix::{Connection, SocketType};
use crate::sys::{clock, logfile};
use log::{LevelFilter, Log, Metadata, Record};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Size at which the file rolls over, bytes.
const FILE_LIMIT: u64 = 10 << 20;
/// The agent's socket has this long to take the lines; its answer is not waited for.
const DELIVERY_TIME: Duration = Duration::from_millis(100);
/// Lines kept for the agent; one call writes a handful.
const MAX_LINES: usize = 100;

/// Lines of at least `level` are written from now on: to standard error, and with a run dir to the file and the agent.
pub(super) fn start(level: LevelFilter, run_dir: Option<&Path>) {
    LOG.0.lock().unwrap_or_else(PoisonError::into_inner).run_dir = run_dir.map(Path::to_path_buf);
    // Fails only when it is installed already.
    let _ = log::set_logger(&LOG);
    log::set_max_level(level);
}

static LOG: PluginLog = PluginLog(Mutex::new(State { run_dir: None, lines: Vec::new() }));

struct PluginLog(Mutex<State>);

struct State {
    run_dir: Option<PathBuf>,
    /// Not delivered to the agent yet.
    lines: Vec<String>,
}

impl Log for PluginLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let line = Line::of(record, clock::wall()).json();
        let whole = format!("{line}\n");
        let _ = std::io::stderr().write_all(whole.as_bytes());
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(run_dir) = &state.run_dir {
            let _ = logfile::append(&run_dir.join("istio-cni.log"), whole.as_bytes(), FILE_LIMIT, Mode(0o600));
            if state.lines.len() < MAX_LINES {
                state.lines.push(line);
            }
        }
    }

    /// Hands the lines to the agent.
    fn flush(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = std::mem::take(&mut state.lines);
        if let Some(run_dir) = state.run_dir.as_deref().filter(|_| !lines.is_empty()) {
            let _ = deliver(run_dir, &lines);
        }
    }
}

fn deliver(run_dir: &Path, lines: &[String]) -> crate::error::Result<()> {
    let body = serde_json::to_vec(lines)?;
    let connection = Connection::connect(&run_dir.join("log.sock"), SocketType::Stream, DELIVERY_TIME)?;
    let mut stream = Exchange::new(&connection, clock::now() + DELIVERY_TIME);
    stream.write_all(&encode_request("POST", "/log", "log.sock", &body))?;
    Ok(())
}
