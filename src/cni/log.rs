//! The plugin's log: one JSON object a line to standard error, to the rolling `RUN/istio-cni.log`, and at the end to
//! the agent (`POST /log` on `log.sock`).
//!
//! A line must never delay or fail what it tells of: files and sockets that are missing, full or slow lose it. Nothing
//! is opened before there is a line to write.

use crate::http::client::encode_request;
use crate::logging;
use crate::sys::exchange::Exchange;
use crate::sys::file::Mode;
use crate::sys::run_dir::RunDir;
use crate::sys::unix::{Connection, SocketType};
use crate::sys::{clock, logfile, sync};
use log::LevelFilter;
use std::io::Write;
use std::sync::Mutex;
use std::time::Duration;

/// Size at which the file rolls over, bytes.
const FILE_LIMIT: u64 = 10 << 20;
/// The agent's socket has this long to take the lines; its answer is not waited for.
const DELIVERY_TIME: Duration = Duration::from_millis(100);
/// Lines kept for the agent; one call writes a handful.
const MAX_LINES: usize = 100;

/// Lines of at least `level` are written from now on: to standard error, and with a run dir to the file and the agent.
pub(super) fn start(level: LevelFilter, run_dir: Option<&RunDir>) {
    sync::lock(&LOG).run_dir = run_dir.cloned();
    logging::start_plugin(Sink);
    log::set_max_level(level);
}

/// Hands the lines to the agent.
pub(super) fn hand_over() {
    let mut log = sync::lock(&LOG);
    let lines = std::mem::take(&mut log.lines);
    if let Some(run_dir) = log.run_dir.as_ref().filter(|_| !lines.is_empty()) {
        let _ = deliver(run_dir, &lines);
    }
}

static LOG: Mutex<PluginLog> = Mutex::new(PluginLog { run_dir: None, lines: Vec::new() });

struct PluginLog {
    run_dir: Option<RunDir>,
    /// Not delivered to the agent yet.
    lines: Vec<String>,
}

/// Where lines go: each comes whole, in one write.
struct Sink;

impl Write for Sink {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let _ = std::io::stderr().write_all(line);
        let mut log = sync::lock(&LOG);
        if let Some(run_dir) = &log.run_dir {
            let _ = logfile::append(&run_dir.plugin_log_file(), line, FILE_LIMIT, Mode(0o600));
            if log.lines.len() < MAX_LINES {
                log.lines.push(String::from_utf8_lossy(line.trim_ascii_end()).into_owned());
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn deliver(run_dir: &RunDir, lines: &[String]) -> crate::error::Result<()> {
    let body = serde_json::to_vec(lines)?;
    let connection = Connection::connect(&run_dir.plugin_logs(), SocketType::Stream, DELIVERY_TIME)?;
    let mut stream = Exchange::new(&connection, clock::now() + DELIVERY_TIME);
    stream.write_all(&encode_request("POST", "/log", "log.sock", &body))?;
    Ok(())
}
