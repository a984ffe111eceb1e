//! Names the field at which a JSON text did not decode, for people who wrote it as YAML or in the middle of a file: a
//! position in it means nothing to them.

/// What serde says of a text of the right syntax, with the path of the field in the place of a position. Other errors
/// stay as they are.
pub fn describe(error: &serde_json::Error, json: &str) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    let Some(what) = text.strip_suffix(&position).filter(|_| error.is_data()) else { return text };
    let line_begins = json.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum::<usize>();
    let path = path_at(json.as_bytes().get(..line_begins + error.column()).unwrap_or_default());
    if path.is_empty() { what.to_owned() } else { format!("{path}: {what}") }
}

enum Step {
    Key(String),
    Index(usize),
}

/// The path of the value at which a JSON text was left.
fn path_at(json: &[u8]) -> String {
    let (mut path, mut key_is_next) = (Vec::new(), false);
    let mut rest = json;
    while let [byte, after @ ..] = rest {
        rest = after;
        match byte {
            b'{' => path.push(Step::Key(String::new())),
            b'[' => path.push(Step::Index(0)),
            b'}' | b']' => drop(path.pop()),
            b',' => {
                if let Some(Step::Index(index)) = path.last_mut() {
                    *index += 1;
                }
            }
            b'"' => {
                let (text, after) = string(rest);
                rest = after;
                if key_is_next && let Some(Step::Key(key)) = path.last_mut() {
                    *key = String::from_utf8_lossy(text).into_owned();
                }
            }
            _ => {}
        }
        if !byte.is_ascii_whitespace() {
            key_is_next = matches!(byte, b'{' | b',') && matches!(path.last(), Some(Step::Key(_)));
        }
    }
    path.iter().enumerate().map(|(depth, step)| step.written(depth == 0)).collect()
}

/// A string up to its quote, which has begun, and what follows.
fn string(json: &[u8]) -> (&[u8], &[u8]) {
    let mut escaped = false;
    let end = json.iter().position(|byte| match byte {
        b'"' if !escaped => true,
        byte => {
            escaped = *byte == b'\\' && !escaped;
            false
        }
    });
    let (text, after) = json.split_at(end.unwrap_or(json.len()));
    (text, after.get(1..).unwrap_or_default())
}

impl Step {
    fn written(&self, first: bool) -> String {
        let plain = |key: &str| key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        match self {
            Step::Index(index) => format!("[{index}]"),
            Step::Key(key) if key.is_empty() => String::new(),
            Step::Key(key) if plain(key) => format!("{}{key}", if first { "" } else { "." }),
            Step::Key(key) => format!("[{key:?}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::BTreeMap;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Thing {
        #[serde(default)]
        _text: String,
        #[serde(default)]
        _labels: BTreeMap<String, String>,
        #[serde(default)]
        _things: Vec<Thing>,
    }

    #[test]
    fn the_field_is_named() {
        let check = |json: &str, want: &str| {
            let error = serde_json::from_str::<Thing>(json).unwrap_err();
            assert_eq!(describe(&error, json), want, "{json}");
        };
        let integer = "invalid type: integer `1`, expected a string";
        check(r#"{"_text":1}"#, &format!("_text: {integer}"));
        check("{\"_things\": [],\n \"_labels\" : {\n  \"a\": \"b\", \"c\": 1}}", &format!("_labels.c: {integer}"));
        check(r#"{"_labels":{"x.io/\"y\\":1}}"#, &format!(r#"_labels["x.io/\\\"y\\\\"]: {integer}"#));
        check(
            r#"{"_things":[{},{"_text":"{[,\"","_things":[{"_text":1}]}]}"#,
            &format!("_things[1]._things[0]._text: {integer}"),
        );
        check(r#"{"_things":[{"_text":{"a":1}}]}"#, "_things[0]._text: invalid type: map, expected a string");
        check(
            r#"{"_things":[{"other":1}]}"#,
            "_things[0].other: unknown field `other`, expected one of `_text`, `_labels`, `_things`",
        );
        check("7", "invalid type: integer `7`, expected struct Thing");
        check(r#"{"_text""#, "EOF while parsing an object at line 1 column 8");
    }

    #[test]
    fn any_text_has_a_path() {
        let text = r#"{"a":[1,{"b\"":null,"c":[[]]}],"é":{"d":2}}"#.as_bytes();
        for end in 0..=text.len() {
            path_at(&text[..end]);
            path_at(&text[end..]);
        }
        assert_eq!(path_at(br#"{"a":[1,{"b":null,"c":[[]"#), "a[1].c[0]");
    }
}
