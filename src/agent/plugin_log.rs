//! Log lines that plugins hand in: printed under the scope `cni-plugin`, with their own time and fields.

use log::kv::{Error, Key, Source, Value, VisitSource};
use log::{Level, Record};
use serde_json::{Map, Value as Json};

/// Prints the body of `POST /log`: a JSON array of strings, each a JSON object. What is not so is printed as it came:
/// a log line must not be lost because it is odd.
pub fn print(body: &[u8]) {
    match serde_json::from_slice::<Vec<String>>(body) {
        Ok(lines) => lines.iter().for_each(|line| print_line(line)),
        Err(e) => log::debug!(target: "cni-plugin", "log lines that cannot be read: {e}"),
    }
}

fn print_line(line: &str) {
    let mut fields = serde_json::from_str::<Map<String, Json>>(line).unwrap_or_default();
    let mut take = |key: &str| match fields.shift_remove(key) {
        Some(Json::String(text)) => Some(text),
        _ => None,
    };
    let message = take("msg").unwrap_or_else(|| line.to_owned());
    let level = take("level");
    take("scope");
    log::logger().log(
        &Record::builder()
            .target("cni-plugin")
            .level(level_of(level.as_deref()))
            .args(format_args!("{message}"))
            .key_values(&Fields(fields))
            .build(),
    );
}

fn level_of(name: Option<&str>) -> Level {
    match name {
        Some("debug" | "trace") => Level::Debug,
        Some("warn" | "warning") => Level::Warn,
        Some("error" | "fatal" | "panic") => Level::Error,
        _ => Level::Info,
    }
}

struct Fields(Map<String, Json>);

impl Source for Fields {
    fn visit<'kvs>(&'kvs self, visitor: &mut dyn VisitSource<'kvs>) -> Result<(), Error> {
        for (key, value) in &self.0 {
            // Its own time, beside the time at which it is printed.
            let key = if key == "time" { "plugin_time" } else { key };
            match value {
                Json::String(text) => visitor.visit_pair(Key::from_str(key), Value::from(text.as_str()))?,
                other => visitor.visit_pair(Key::from_str(key), Value::from_display(other))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_of_both_plugins_are_known() {
        let check = |name, expected| assert_eq!(level_of(name), expected, "{name:?}");
        check(Some("debug"), Level::Debug);
        check(Some("warn"), Level::Warn);
        check(Some("fatal"), Level::Error);
        check(Some("nonsense"), Level::Info);
        check(None, Level::Info);
    }

    #[test]
    fn odd_input_is_no_trouble() {
        for body in ["", "[", "{}", "[1]", r#"["", "text", "{}", "[]", "{\"msg\":1,\"time\":null}"]"#] {
            print(body.as_bytes());
        }
    }
}
