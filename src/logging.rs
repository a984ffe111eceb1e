//! Log lines: text or JSON on standard error, levels per scope, and what keeps a repeating error from flooding.
//!
//! The scope of a line follows from the module that logs it ([`Scope::of`]). A line is one line whatever is in it:
//! control characters are escaped.

use crate::error::{Error, Result};
use crate::invalid;
use crate::sys::clock;
use log::kv::{Key, Value, VisitSource};
use log::{LevelFilter, Log, Metadata, Record};
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How the process logs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// `--log_output_level`.
    pub levels: Levels,
    /// `--log_as_json`.
    pub json: bool,
}

/// The least severe level that each scope still shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Levels {
    /// Scope `cni-agent`.
    pub agent: LevelFilter,
    /// Scope `cni-plugin`.
    pub plugin: LevelFilter,
    /// Scope `default`: everything else.
    pub default: LevelFilter,
}

impl Default for Levels {
    fn default() -> Self {
        Levels { agent: LevelFilter::Info, plugin: LevelFilter::Info, default: LevelFilter::Info }
    }
}

impl Levels {
    /// Parses a comma list of `scope:level`, or of a bare level for scope `default`. Scope `all` is every scope;
    /// scopes that are not known are ignored, as people's manifests name those of Istio.
    pub fn parse(text: &str) -> Result<Self> {
        let mut levels = Levels::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (scope, level) = item.rsplit_once(':').unwrap_or(("default", item));
            let level = parse_level(level).ok_or_else(|| {
                invalid!("level {level:?} in {item:?} is not one of debug, info, warn, error, fatal, none")
            })?;
            match scope {
                "cni-agent" => levels.agent = level,
                "cni-plugin" => levels.plugin = level,
                "default" => levels.default = level,
                "all" => levels = Levels { agent: level, plugin: level, default: level },
                _ => {}
            }
        }
        Ok(levels)
    }

    fn of(&self, scope: Scope) -> LevelFilter {
        match scope {
            Scope::Agent => self.agent,
            Scope::Plugin => self.plugin,
            Scope::Default => self.default,
        }
    }
}

/// A part of the program whose level can be set alone, as in Istio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Agent,
    Plugin,
    Default,
}

impl Scope {
    /// The scope of a record with this target, which is the path of the module that logs.
    fn of(target: &str) -> Self {
        match target.strip_prefix(concat!(env!("CARGO_CRATE_NAME"), "::")) {
            Some("cli::plugin") => Scope::Plugin,
            Some(module) => match module.split("::").next() {
                Some("cni") => Scope::Plugin,
                Some("cli" | "config" | "logging") => Scope::Default,
                _ => Scope::Agent,
            },
            // The front door, and the libraries that we use.
            None => Scope::Default,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Scope::Agent => "cni-agent",
            Scope::Plugin => "cni-plugin",
            Scope::Default => "default",
        }
    }
}

/// A level by its name in options and configurations.
pub fn parse_level(text: &str) -> Option<LevelFilter> {
    match text {
        "debug" => Some(LevelFilter::Debug),
        "info" => Some(LevelFilter::Info),
        "warn" => Some(LevelFilter::Warn),
        "error" => Some(LevelFilter::Error),
        // Nothing of ours is fatal: that is a panic.
        "fatal" | "none" => Some(LevelFilter::Off),
        _ => None,
    }
}

static LOGGER: OnceLock<Logger> = OnceLock::new();

struct Logger(Options);

/// Installs the logger, and has panics logged. Once per process.
pub fn start(options: Options) -> Result<()> {
    let levels = &options.levels;
    let most = levels.agent.max(levels.plugin).max(levels.default);
    log::set_logger(LOGGER.get_or_init(|| Logger(options.clone()))).map_err(Error::from)?;
    log::set_max_level(most);
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

/// Prints a line that the plugin logged: one JSON object, its time and its fields kept. Anything else is printed as a
/// message.
pub fn relay(text: &str) {
    if let Some(logger) = LOGGER.get() {
        logger.relay(text);
    }
}

impl Logger {
    fn print(&self, line: &Line) {
        let mut text = if self.0.json { line.json() } else { line.text() };
        text.push('\n');
        // One write for one line; nobody is left to be told when it fails.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    fn relay(&self, text: &str) {
        let line = Line::relayed(text, clock::wall());
        if severity(&line.level) <= self.0.levels.plugin {
            self.print(&line);
        }
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= self.0.levels.of(Scope::of(metadata.target()))
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            self.print(&Line::of(record, clock::wall()));
        }
    }

    fn flush(&self) {}
}

/// A level as another program wrote it; what is not known counts as information.
fn severity(level: &str) -> LevelFilter {
    match level {
        "fatal" | "panic" => LevelFilter::Error,
        other => parse_level(other).unwrap_or(LevelFilter::Info),
    }
}

/// One line before it is rendered.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    level: String,
    time: String,
    scope: String,
    message: String,
    fields: Vec<(String, serde_json::Value)>,
}

/// What a JSON line calls its own parts.
const OWN_KEYS: [&str; 4] = ["level", "time", "scope", "msg"];

impl Line {
    /// The line of a record logged at `time`.
    pub fn of(record: &Record<'_>, time: SystemTime) -> Self {
        let mut fields = Fields(Vec::new());
        // A value that cannot be shown is left out.
        let _ = record.key_values().visit(&mut fields);
        Line {
            level: record.level().as_str().to_ascii_lowercase(),
            time: timestamp(time),
            scope: Scope::of(record.target()).name().to_owned(),
            message: record.args().to_string(),
            fields: fields.0,
        }
    }

    /// A line of the plugin, as it came over the log socket at `time`.
    pub fn relayed(text: &str, time: SystemTime) -> Self {
        let mut line = Line {
            level: "info".to_owned(),
            time: timestamp(time),
            scope: Scope::Plugin.name().to_owned(),
            message: text.to_owned(),
            fields: Vec::new(),
        };
        let Ok(object) = serde_json::from_str::<serde_json::Map<_, _>>(text) else { return line };
        line.message.clear();
        for (key, value) in object {
            let part = match key.as_str() {
                "level" => &mut line.level,
                "time" => &mut line.time,
                "msg" => &mut line.message,
                // It is the plugin's, whatever it says.
                "scope" => continue,
                _ => {
                    line.fields.push((key, value));
                    continue;
                }
            };
            *part = plain(&value);
        }
        line
    }

    /// `{"level":…,"time":…,"scope":…,"msg":…, key: value …}`, without a newline.
    pub fn json(&self) -> String {
        let mut object = serde_json::Map::new();
        for (key, value) in OWN_KEYS.into_iter().zip([&self.level, &self.time, &self.scope, &self.message]) {
            object.insert(key.to_owned(), value.as_str().into());
        }
        for (key, value) in &self.fields {
            let taken = OWN_KEYS.contains(&key.as_str());
            object.insert(if taken { format!("{key}_") } else { key.clone() }, value.clone());
        }
        serde_json::Value::Object(object).to_string()
    }

    /// `time level scope message key=value …`, the first four separated by tabs, without a newline.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for part in [&self.time, &self.level, &self.scope, &self.message] {
            if !text.is_empty() {
                text.push('\t');
            }
            escape(&mut text, part);
        }
        for (i, (key, value)) in self.fields.iter().enumerate() {
            text.push(if i == 0 { '\t' } else { ' ' });
            escape(&mut text, key);
            text.push('=');
            let value = plain(value);
            if value.is_empty() || value.contains([' ', '"', '=']) {
                let _ = write!(text, "{value:?}");
            } else {
                escape(&mut text, &value);
            }
        }
        text
    }
}

/// A string as it is, anything else as JSON.
fn plain(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
}

/// Collects key-values; numbers and booleans stay what they are.
struct Fields(Vec<(String, serde_json::Value)>);

impl<'kvs> VisitSource<'kvs> for Fields {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), log::kv::Error> {
        let json = if let Some(n) = value.to_u64() {
            n.into()
        } else if let Some(n) = value.to_i64() {
            n.into()
        } else if let Some(b) = value.to_bool() {
            b.into()
        } else if let Some(n) = value.to_f64() {
            n.into()
        } else {
            value.to_string().into()
        };
        self.0.push((key.as_str().to_owned(), json));
        Ok(())
    }
}

/// RFC 3339 in UTC with microseconds: `2026-01-02T03:04:05.678901Z`.
pub fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Days to a date in the proleptic Gregorian calendar, in years that begin in March (so that a leap day is the
    // last of its year) and eras of 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let micros = since.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// An error that may repeat: said when its cause changes, and again after a while with how often it happened since.
#[derive(Debug)]
pub struct Repeat {
    remind: Duration,
    current: Option<Failing>,
}

#[derive(Debug)]
struct Failing {
    cause: String,
    since: Instant,
    said: Instant,
    /// How often since it was last said.
    unsaid: u64,
    times: u64,
}

/// What is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovered {
    /// How often it failed, whatever the cause.
    pub times: u64,
    /// From the first failure to the recovery.
    pub lasted: Duration,
}

impl Repeat {
    /// Says the same cause again every `remind` ([`Duration::MAX`]: never).
    pub fn new(remind: Duration) -> Self {
        Repeat { remind, current: None }
    }

    /// It failed. `Some(times)` when that is to be said now: how often this cause came since it was last said, 1 for
    /// a new one.
    pub fn failed(&mut self, cause: &str, now: Instant) -> Option<u64> {
        let (since, times) = self.current.as_ref().map_or((now, 0), |failing| (failing.since, failing.times));
        match &mut self.current {
            Some(failing) if failing.cause == cause => {
                failing.times += 1;
                failing.unsaid += 1;
                if now.saturating_duration_since(failing.said) < self.remind {
                    return None;
                }
                failing.said = now;
                Some(std::mem::take(&mut failing.unsaid))
            }
            other => {
                *other = Some(Failing { cause: cause.to_owned(), since, said: now, unsaid: 0, times: times + 1 });
                Some(1)
            }
        }
    }

    /// It worked. What is over, when it had failed before.
    pub fn worked(&mut self, now: Instant) -> Option<Recovered> {
        let failing = self.current.take()?;
        Some(Recovered { times: failing.times, lasted: now.saturating_duration_since(failing.since) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use log::Level;

    fn line(target: &str, message: &str, fields: &[(&str, Value<'_>)]) -> Line {
        let time = UNIX_EPOCH + Duration::new(1_767_323_045, 678_901_000);
        let mut record = Record::builder();
        record.target(target).level(Level::Info).key_values(&fields);
        Line::of(&record.args(format_args!("{message}")).build(), time)
    }

    #[test]
    fn levels_are_parsed() {
        use LevelFilter::{Debug, Error, Info, Off, Warn};
        let check = |text: &str, agent, plugin, default| {
            assert_eq!(Levels::parse(text).unwrap(), Levels { agent, plugin, default }, "{text}");
        };
        check("", Info, Info, Info);
        check("default:info", Info, Info, Info);
        check("debug", Info, Info, Debug);
        check("all:warn", Warn, Warn, Warn);
        check("all:none,cni-agent:debug", Debug, Off, Off);
        check(" cni-plugin:fatal , ads:debug,default:error", Info, Off, Error);
        for bad in ["loud", "all:", "cni-agent:trace", "nobody:loud", "default:Info"] {
            let text = Levels::parse(bad).unwrap_err().to_string();
            assert!(text.contains("not one of debug, info, warn, error, fatal, none"), "{text}");
        }
    }

    #[test]
    fn scopes_follow_from_modules() {
        let check = |target: &str, scope: &str| assert_eq!(Scope::of(target).name(), scope, "{target}");
        check(module_path!(), "default");
        check("ferrule", "default");
        check("ferrule::node::run", "cni-agent");
        check("ferrule::zds", "cni-agent");
        check("ferrule::cni", "cni-plugin");
        check("ferrule::cni::plugin", "cni-plugin");
        check("ferrule::cli::plugin", "cni-plugin");
        check("ferrule::cli::iptables", "default");
        check("rustls::client", "default");
        check("ferrules::cni", "default");
    }

    #[test]
    fn lines_render_as_json_and_as_text() {
        let check = |line: Line, json: &str, text: &str| {
            assert_eq!(line.json(), json);
            assert_eq!(line.text(), text);
        };
        check(
            line(
                "ferrule::node::state",
                "pod enrolled",
                &[("uid", Value::from("a-b")), ("n", Value::from(-3)), ("ok", true.into())],
            ),
            r#"{"level":"info","time":"2026-01-02T03:04:05.678901Z","scope":"cni-agent","msg":"pod enrolled","uid":"a-b","n":-3,"ok":true}"#,
            "2026-01-02T03:04:05.678901Z\tinfo\tcni-agent\tpod enrolled\tuid=a-b n=-3 ok=true",
        );
        check(
            line("rustls::client", "a\n\"b\"\u{1b}", &[("msg", Value::from("x y\n")), ("k\n", Value::from(""))]),
            r#"{"level":"info","time":"2026-01-02T03:04:05.678901Z","scope":"default","msg":"a\n\"b\"\u001b","msg_":"x y\n","k\n":""}"#,
            "2026-01-02T03:04:05.678901Z\tinfo\tdefault\ta\\n\"b\"\\u{1b}\tmsg=\"x y\\n\" k\\n=\"\"",
        );
    }

    #[test]
    fn lines_of_the_plugin_keep_time_and_fields() {
        let time = UNIX_EPOCH;
        let check = |text: &str, json: &str| assert_eq!(Line::relayed(text, time).json(), json);
        check(
            r#"{"level":"error","time":"2025-01-01T00:00:00Z","msg":"no\nroute","scope":"x","pod":"a","n":1}"#,
            r#"{"level":"error","time":"2025-01-01T00:00:00Z","scope":"cni-plugin","msg":"no\nroute","pod":"a","n":1}"#,
        );
        check(
            "not json",
            r#"{"level":"info","time":"1970-01-01T00:00:00.000000Z","scope":"cni-plugin","msg":"not json"}"#,
        );
        // What the agent prints it can read again.
        let printed = line("ferrule::cni::plugin", "m", &[("k", Value::from("v"))]);
        assert_eq!(Line::relayed(&printed.json(), time), printed);
    }

    #[test]
    fn timestamps_are_utc() {
        let check = |seconds: u64, expected: &str| {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), format!("{expected}.000000Z"));
        };
        check(0, "1970-01-01T00:00:00");
        check(951_782_399, "2000-02-28T23:59:59");
        check(951_782_400, "2000-02-29T00:00:00");
        check(951_868_800, "2000-03-01T00:00:00");
        check(4_107_542_400, "2100-03-01T00:00:00");
        check(1_735_689_599, "2024-12-31T23:59:59");
    }

    #[test]
    fn repeats_are_counted_and_not_said() {
        let start = clock::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut repeat = Repeat::new(Duration::from_secs(60));
        assert_eq!(repeat.worked(at(0)), None);
        assert_eq!(repeat.failed("a", at(0)), Some(1));
        assert_eq!(repeat.failed("a", at(1)), None);
        assert_eq!(repeat.failed("b", at(2)), Some(1));
        assert_eq!(repeat.failed("b", at(3)), None);
        assert_eq!(repeat.failed("b", at(62)), Some(2));
        assert_eq!(repeat.failed("b", at(63)), None);
        assert_eq!(repeat.worked(at(64)), Some(Recovered { times: 6, lasted: Duration::from_secs(64) }));
        assert_eq!(repeat.failed("b", at(65)), Some(1));
        assert_eq!(Repeat::new(Duration::MAX).failed("a", at(0)), Some(1));
    }
}
