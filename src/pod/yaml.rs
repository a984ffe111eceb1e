//! YAML as people write it, read as the JSON values it stands for, with bounds: a few lines of aliases of aliases unfold
//! into millions of values.
//!
//! Plain scalars mean what YAML 1.2's core schema says (YAML 1.2.2, section 10.3): `yes` and `on` are text. What a JSON
//! number cannot hold stays text. Errors name the place and never quote the text, which may hold secrets.

use crate::error::{Error, Result};
use crate::invalid;
use granit_parser::{Event, Marker, Parser, ScalarStyle, StrInput, Tag};
use serde_json::{Map, Number, Value};
use std::collections::HashMap;

/// Bytes, about, of the values that are kept for aliases and made of them, in one text.
const MOST_COPIED: usize = 1 << 20;
/// Collections within collections. Readers of JSON take 127.
const DEEPEST: usize = 100;

/// Reads a text of one document at most; none is null.
pub fn document(text: &str) -> Result<Value> {
    let mut documents = documents(text)?;
    match documents.len() {
        0 | 1 => Ok(documents.pop().unwrap_or_default()),
        n => Err(invalid!("{n} documents where one is expected")),
    }
}

/// Reads every document of a text.
pub fn documents(text: &str) -> Result<Vec<Value>> {
    let mut reader = Reader { parser: Parser::new_from_str(text), anchors: HashMap::new(), left: MOST_COPIED };
    let mut documents = Vec::new();
    loop {
        match reader.next()? {
            (Event::StreamEnd, _) => return Ok(documents),
            (Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd, _) => {}
            node => documents.push(reader.value(node, 0)?),
        }
    }
}

/// An event and where it begins.
type Node<'a> = (Event<'a>, Marker);

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    /// The values that aliases may name. One is here when it is complete: none holds itself.
    anchors: HashMap<usize, Value>,
    /// What may still be copied, of [`MOST_COPIED`].
    left: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Node<'a>> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, span.start)),
            Some(Err(e)) => Err(refused(*e.marker(), e.info())),
            None => Err(invalid!("the text ends within a document")),
        }
    }

    fn value(&mut self, (event, at): Node<'a>, depth: usize) -> Result<Value> {
        if depth > DEEPEST {
            return Err(refused(at, "nested too deep"));
        }
        let anchor = event.anchor_id();
        let value = match event {
            Event::Scalar(text, style, _, tag) => scalar(&text, style, tag.as_deref(), at)?,
            Event::SequenceStart(_, _, tag) => {
                own_tag(tag.as_deref(), "seq", at)?;
                self.sequence(depth)?
            }
            Event::MappingStart(_, _, tag) => {
                own_tag(tag.as_deref(), "map", at)?;
                self.mapping(depth)?
            }
            Event::Alias(id) => {
                let value = self.anchors.get(&id).ok_or_else(|| refused(at, "an alias within what it names"))?;
                copy(value, depth, &mut self.left).ok_or_else(|| refused(at, "aliases unfold into too much"))?
            }
            _ => return Err(refused(at, "a value is expected")),
        };
        if let Some(id) = anchor {
            let kept = copy(&value, depth, &mut self.left).ok_or_else(|| refused(at, "an anchor of too much"))?;
            self.anchors.insert(id, kept);
        }
        Ok(value)
    }

    fn sequence(&mut self, depth: usize) -> Result<Value> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::Array(items)),
                node => items.push(self.value(node, depth + 1)?),
            }
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Value> {
        let (mut map, mut merged) = (Map::new(), None);
        loop {
            let (event, at) = self.next()?;
            if event == Event::MappingEnd {
                break;
            }
            let merge = matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let key = self.key((event, at), depth)?;
            let node = self.next()?;
            let value = self.value(node, depth + 1)?;
            let known = match merge {
                true => merged.replace(merge_sources(value, at)?).is_some(),
                false => map.insert(key, value).is_some(),
            };
            if known {
                return Err(refused(at, "a key that was there before"));
            }
        }
        for (key, value) in merged.into_iter().flatten().flatten() {
            map.entry(key).or_insert(value);
        }
        Ok(Value::Object(map))
    }

    /// A key as JSON has it: text. Numbers and truths stay as they are written.
    fn key(&mut self, (event, at): Node<'a>, depth: usize) -> Result<String> {
        let written = event.scalar().map(|(text, _)| text.to_owned());
        match (written, self.value((event, at), depth + 1)?) {
            (_, Value::Null | Value::Array(_) | Value::Object(_)) => Err(refused(at, "a key that is no text")),
            (Some(text), _) | (None, Value::String(text)) => Ok(text),
            (None, value) => Ok(value.to_string()),
        }
    }
}

/// The mappings of a merge key (<https://yaml.org/type/merge.html>), the strongest first.
fn merge_sources(value: Value, at: Marker) -> Result<Vec<Map<String, Value>>> {
    let sources = if let Value::Array(sources) = value { sources } else { vec![value] };
    let map = |source| match source {
        Value::Object(map) => Ok(map),
        _ => Err(refused(at, "<< takes a mapping or a list of them")),
    };
    sources.into_iter().map(map).collect()
}

/// Copies a value that is to stand `depth` deep, if it is not too much or too deep.
fn copy(value: &Value, depth: usize, left: &mut usize) -> Option<Value> {
    *left = left.checked_sub(size_of::<Value>() + value.as_str().map_or(0, str::len))?;
    if depth > DEEPEST {
        return None;
    }
    match value {
        Value::Array(items) => {
            items.iter().map(|item| copy(item, depth + 1, left)).collect::<Option<_>>().map(Value::Array)
        }
        Value::Object(map) => {
            let mut copied = Map::new();
            for (key, value) in map {
                *left = left.checked_sub(size_of::<String>() + key.len())?;
                copied.insert(key.clone(), copy(value, depth + 1, left)?);
            }
            Some(Value::Object(copied))
        }
        _ => Some(value.clone()),
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>, at: Marker) -> Result<Value> {
    let Some(tag) = tag else {
        return Ok(if style == ScalarStyle::Plain { plain(text) } else { Value::from(text) });
    };
    match (tag.core_suffix(), plain(text)) {
        (Some("str"), _) => Ok(Value::from(text)),
        (Some("null"), value @ Value::Null) | (Some("bool"), value @ Value::Bool(_)) => Ok(value),
        (Some("int" | "float"), value @ Value::Number(_)) => Ok(value),
        _ => Err(wrong_tag(at)),
    }
}

/// Fails if a collection has another tag than its own.
fn own_tag(tag: Option<&Tag>, own: &str, at: Marker) -> Result<()> {
    if tag.is_none_or(|tag| tag.core_suffix() == Some(own)) { Ok(()) } else { Err(wrong_tag(at)) }
}

fn wrong_tag(at: Marker) -> Error {
    refused(at, "a tag that does not fit, or is not of YAML's core schema")
}

/// A plain scalar by the core schema.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => number(text).map_or_else(|| Value::from(text), Value::Number),
    }
}

fn number(text: &str) -> Option<Number> {
    for (prefix, radix) in [("0x", 16), ("0o", 8)] {
        if let Some(digits) = text.strip_prefix(prefix) {
            let all = digits.chars().all(|c| c.is_digit(radix));
            return all.then(|| u64::from_str_radix(digits, radix).ok()).flatten().map(Number::from);
        }
    }
    // What begins so is read by Rust as the core schema does; what does not includes Rust's own inf and nan.
    if !text.trim_start_matches(['-', '+']).starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let integer = text.parse::<i64>().map(Number::from).or_else(|_| text.parse::<u64>().map(Number::from));
    integer.ok().or_else(|| text.parse().ok().and_then(Number::from_f64))
}

fn refused(at: Marker, why: impl std::fmt::Display) -> Error {
    invalid!("line {}, column {}: {why}", at.line(), at.col() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn plain_scalars() {
        let check =
            |text: &str, want: Value| assert_eq!(document(&format!("- {text}")).unwrap(), json!([want]), "{text}");
        for text in ["", "~", "null", "Null", "NULL", "!!null ''"] {
            check(text, Value::Null);
        }
        for (text, want) in [("true", true), ("True", true), ("FALSE", false), ("!!bool 'true'", true)] {
            check(text, json!(want));
        }
        for (text, want) in
            [("0", 0), ("-17", -17), ("+1", 1), ("010", 10), ("0x1F", 31), ("0o17", 15), ("!!int '1'", 1)]
        {
            check(text, json!(want));
        }
        for (text, want) in [("1.5", 1.5), (".5", 0.5), ("-5.", -5.0), ("1e3", 1e3), ("1E-2", 0.01)] {
            check(text, json!(want));
        }
        check("18446744073709551615", json!(u64::MAX));
        check("123456789012345678901234567890", json!(123456789012345678901234567890.0));
        let texts = ["yes", "on", "No", "tRUE", "1_000", "0b1", "0x", "0o8", "0x+1", "0xffffffffffffffffff", "1:30"];
        for text in
            texts.into_iter().chain([".", "+", "--1", "1.2.3", "inf", "nan", ".inf", ".nan", "1e999", "10.0.0.5"])
        {
            check(text, json!(text));
        }
        for text in ["'1'", "\"1\"", "!!str 1", "|-\n  1"] {
            check(text, json!("1"));
        }
    }

    #[test]
    fn documents_and_collections() {
        let check = |text: &str, want: Value| assert_eq!(Value::from(documents(text).unwrap()), want, "{text}");
        check("", json!([]));
        check("# nothing\n", json!([]));
        check("a: 1\n---\n---\n- b\n...\n", json!([{"a": 1}, null, ["b"]]));
        check("\u{feff}{\"a\": [1, true, null, \"x\\u00e9\"]}", json!([{"a": [1, true, null, "x\u{e9}"]}]));
        check("!!map {a: !!seq [1]}", json!([{"a": [1]}]));
        check("{1: a, true: b, 1.50: c, 0x10: d}", json!([{"1": "a", "true": "b", "1.50": "c", "0x10": "d"}]));
        check("&a foo: *a", json!([{"foo": "foo"}]));
        check("a: &x {b: 1}\nc: {<<: *x, d: 2}", json!([{"a": {"b": 1}, "c": {"d": 2, "b": 1}}]));
        check("{<<: [{b: 1}, {b: 2, z: 3, k: 4}], k: 5}", json!([{"k": 5, "b": 1, "z": 3}]));
        check("'<<': {a: 1}", json!([{"<<": {"a": 1}}]));
        assert_eq!(document("").unwrap(), Value::Null);
        assert_eq!(document("a").unwrap(), json!("a"));
    }

    #[test]
    fn refusals_name_the_place() {
        let check = |text: &str, want: &str| assert_eq!(document(text).unwrap_err().to_string(), want, "{text}");
        check("a: 1\n---\nb: 2", "2 documents where one is expected");
        check("b: 1\na: 1\na: 2", "line 3, column 1: a key that was there before");
        check("{<<: {}, <<: {}}", "line 1, column 10: a key that was there before");
        check("<<: 1", "line 1, column 1: << takes a mapping or a list of them");
        check("~: x", "line 1, column 1: a key that is no text");
        check("? [a]\n: b", "line 1, column 3: a key that is no text");
        check("a: &x [*x]", "line 1, column 8: an alias within what it names");
        check("a: *x", "line 1, column 4: while parsing node, found unknown anchor");
        check("a: !x b", "line 1, column 7: a tag that does not fit, or is not of YAML's core schema");
        check("a: !!int b", "line 1, column 10: a tag that does not fit, or is not of YAML's core schema");
        check("a: !!map [b]", "line 1, column 10: a tag that does not fit, or is not of YAML's core schema");
        check("[a, b", "line 1, column 1: unclosed bracket '['");
    }

    #[test]
    fn aliases_are_read_and_bombs_refused() {
        assert_eq!(document("a: &x [1]\nb: *x\n").unwrap(), json!({"a": [1], "b": [1]}));
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
        for n in 1..8 {
            let before = vec![format!("*a{}", n - 1); 9].join(",");
            bomb += &format!("a{n}: &a{n} [{before}]\n");
        }
        let anchors = (0..90).map(|n| format!("&a{n} [")).collect::<String>() + &"x,".repeat(2000) + &"]".repeat(90);
        let long = format!("a: &a {}\nb: [{}]", "x".repeat(10_000), "*a,".repeat(200));
        for text in [&bomb, &format!("a: 1\n---\n{bomb}"), &anchors, &long] {
            let error = documents(text).unwrap_err().to_string();
            assert!(error.contains("too much"), "{error}");
        }
    }

    #[test]
    fn depth_is_bounded_with_and_without_aliases() {
        let nested = |n: usize, inner: &str| format!("{}{inner}{}", "[".repeat(n), "]".repeat(n));
        assert!(document(&nested(DEEPEST, "x")).is_ok());
        assert!(document(&nested(DEEPEST + 1, "x")).is_err());
        assert!(document(&nested(100_000, "")).is_err());
        let twice = |n| format!("a: &a {}\nb: {}", nested(n, "x"), nested(n, "*a"));
        assert!(document(&twice(DEEPEST / 2 - 1)).is_ok());
        assert!(document(&twice(DEEPEST / 2 + 1)).is_err());
    }

    #[test]
    fn errors_quote_nothing_and_are_one_line() {
        for text in ["{hunter2: 1, hunter2: 2}", "*hunter2", "!hunter2 x", "<<: hunter2", "'hunter2", "hunter2: a: b"] {
            let error = document(text).unwrap_err().to_string();
            assert!(!error.contains("hunter2") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_truncated_text_never_panics() {
        let text =
            "%YAML 1.2\n---\na: &x {b: !!int '1', \"\\u00e9\": [2, 'y']}\nc: {<<: *x}\n? |\n  k\n: >-\n  v\n...\n";
        for end in 0..text.len() {
            let _ = documents(&text[..end]);
        }
    }
}
