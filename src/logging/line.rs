//! One line, from what was logged to JSON or text.

use super::scope::{Scope, parse_level};
use crate::sys::clock;
use log::kv::{Key, Value, VisitSource};
use log::{Level, Record};
use std::fmt::Write;
use std::time::SystemTime;

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
            time: clock::rfc3339(time),
            scope: Scope::of(record.target()).name().to_owned(),
            message: record.args().to_string(),
            fields: fields.0,
        }
    }

    /// A line of the plugin, as it came over the log socket at `time`: one JSON object, whose time and fields are
    /// kept. Anything else is the message of a line.
    pub fn relayed(text: &str, time: SystemTime) -> Self {
        let mut line = Line {
            level: "info".to_owned(),
            time: clock::rfc3339(time),
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

    /// How severe it is. Another program's word may be any; one that is not known counts as information.
    pub(super) fn severity(&self) -> Level {
        match self.level.as_str() {
            "fatal" | "panic" => Level::Error,
            other => parse_level(other).and_then(|level| level.to_level()).unwrap_or(Level::Info),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn line(target: &str, message: &str, fields: &[(&str, Value<'_>)]) -> Line {
        let time = UNIX_EPOCH + Duration::new(1_767_323_045, 678_901_000);
        let mut record = Record::builder();
        record.target(target).level(Level::Info).key_values(&fields);
        Line::of(&record.args(format_args!("{message}")).build(), time)
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
    fn severities_of_other_programs() {
        let check = |level: &str, expected: Level| {
            let line = Line::relayed(&format!(r#"{{"level":"{level}"}}"#), UNIX_EPOCH);
            assert_eq!(line.severity(), expected, "{level}");
        };
        check("debug", Level::Debug);
        check("warn", Level::Warn);
        check("error", Level::Error);
        check("fatal", Level::Error);
        check("panic", Level::Error);
        check("none", Level::Info);
        check("loud", Level::Info);
    }
}
