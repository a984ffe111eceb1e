//! Log lines: text or JSON on standard error, levels per scope, and what keeps a repeating error from flooding.
//!
//! `env_logger` filters and writes; what a line looks like is decided in [`line`](Line). The scope of a line follows
//! from the module that logs it. A line is one line whatever is in it: control characters are escaped.

mod line;
mod repeat;
mod scope;

pub use line::Line;
pub(crate) use repeat::{News, Repeat};
pub use scope::Levels;
pub(crate) use scope::parse_level;

use crate::error::{Error, Result};
use crate::sys::clock;
use env_logger::{Builder, Target};
use log::{Level, LevelFilter};
use scope::{MODULES, Scope};
use std::io::Write;

/// How the process logs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// `--log_output_level`.
    pub levels: Levels,
    /// `--log_as_json`.
    pub json: bool,
}

/// The target of a line that the plugin handed over: the record's text is that line.
const RELAYED: &str = concat!(env!("CARGO_CRATE_NAME"), "::cni relayed");

/// Installs the logger, and has panics logged. Once per process.
pub fn start(options: Options) -> Result<()> {
    let Options { levels, json } = options;
    let mut builder = Builder::new();
    builder.filter_level(levels.of(Scope::Default));
    for (module, scope) in MODULES {
        builder.filter_module(module, levels.of(scope));
    }
    builder.target(Target::Stderr).format(move |out, record| {
        let line = match record.target() {
            RELAYED => Line::relayed(&record.args().to_string(), clock::wall()),
            _ => Line::of(record, clock::wall()),
        };
        writeln!(out, "{}", if json { line.json() } else { line.text() })
    });
    builder.try_init().map_err(Error::from)?;
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let payload = panic.payload();
        let said =
            payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let said = said.unwrap_or("no message");
        log::error!(at = place.as_str(); "panic: {said}");
    }));
    Ok(())
}

/// Installs the plugin's logger: one JSON object a line, each in one write to `sink`. What is logged is for
/// [`log::set_max_level`] to say afterwards. A second call changes nothing.
pub(crate) fn start_plugin(sink: impl Write + Send + 'static) {
    let mut builder = Builder::new();
    builder.filter_level(LevelFilter::Trace).target(Target::Pipe(Box::new(sink)));
    builder.format(|out, record| writeln!(out, "{}", Line::of(record, clock::wall()).json()));
    // Fails only when a logger is installed already.
    let _ = builder.try_init();
}

/// Logs what was noticed before the logger was there, in scope `default`.
pub fn tell(remarks: &[(Level, String)]) {
    for (level, text) in remarks {
        log::log!(*level, "{text}");
    }
}

/// Prints a line that the plugin logged: one JSON object, its time and its fields kept. Anything else is printed as a
/// message.
pub(crate) fn relay(text: &str) {
    let level = Line::relayed(text, clock::wall()).severity();
    log::log!(target: RELAYED, level, "{text}");
}
