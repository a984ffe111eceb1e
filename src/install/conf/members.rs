//! JSON objects as Go's `encoding/json` reads them: libcni, containerd and CRI-O read configurations with it, and who
//! reads more strictly takes another file for the primary than they do.
//!
//! Source: Go's package `encoding/json` ("Unmarshal"), and libcni's `NetworkConfFromBytes` and `types.PluginConf`.

use crate::error::Result;
use crate::invalid;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// Bytes that are no UTF-8 stand in a text as characters from here on, one each; they come from the private use area.
const STRAY: u32 = 0x0010_FF00;

/// A file's bytes as text that [`encode`] turns into the same bytes. Go takes a byte that is no UTF-8 for U+FFFD
/// inside a string and goes on; such bytes are carried along.
///
/// # Errors
///
/// The text has one of the 128 private characters that stand for stray bytes.
pub fn decode(bytes: &[u8]) -> Result<String> {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        if let Some(taken) = chunk.valid().chars().find(|c| stray(*c).is_some()) {
            return Err(invalid!("has the private character U+{:X}, which is not supported here", u32::from(taken)));
        }
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().filter_map(|byte| char::from_u32(STRAY + u32::from(*byte))));
    }
    Ok(text)
}

/// The bytes that [`decode`] made this text of.
pub fn encode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for c in text.chars() {
        match stray(c) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

fn stray(c: char) -> Option<u8> {
    u32::from(c).checked_sub(STRAY).and_then(|byte| u8::try_from(byte).ok()).filter(|byte| *byte >= 0x80)
}

/// An object's members as they stand in the text, duplicates included.
#[derive(Debug)]
pub(super) struct Members<'a>(pub(super) Vec<(&'a RawValue, &'a RawValue)>);

impl<'a> Members<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self> {
        serde_json::from_str(text)
            .map_err(|e| if e.is_data() { invalid!("is no JSON object") } else { invalid!("is not JSON: {e}") })
    }

    /// The members as Go prints a map that was read from them: one per key, the last, in the order of the keys' bytes.
    pub(super) fn marshalled(&self) -> Self {
        let mut members: Vec<(String, (&RawValue, &RawValue))> = Vec::new();
        for member in &self.0 {
            let key = unquoted(member.0).unwrap_or_default();
            members.retain(|(other, _)| *other != key);
            members.push((key, *member));
        }
        members.sort_by(|(one, _), (other, _)| one.cmp(other));
        Members(members.into_iter().map(|(_, member)| member).collect())
    }

    /// A map's member: the last of exactly that name.
    pub(super) fn member(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().rev().find(|(key, _)| unquoted(key).as_deref() == Some(name)).map(|(_, value)| *value)
    }

    /// A struct's field: the last of that name in any case; `null` leaves what was there.
    pub(super) fn field(&self, name: &str) -> Option<&'a RawValue> {
        let named = self.0.iter().rev().filter(|(key, value)| is_field(key, name) && value.get() != "null");
        named.map(|(_, value)| *value).next()
    }

    /// A field that is a string.
    pub(super) fn string(&self, name: &str) -> Result<Option<String>> {
        self.field(name).map(|value| string(name, value)).transpose()
    }
}

/// Whether a key names a field of a Go struct: in any case, by Unicode's simple folding.
pub(super) fn is_field(key: &RawValue, name: &str) -> bool {
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    unquoted(key).is_some_and(|key| key.chars().map(fold).eq(name.chars().map(fold)))
}

/// A string's content.
pub(super) fn string(name: &str, value: &RawValue) -> Result<String> {
    unquoted(value).ok_or_else(|| invalid!("has a {name} that is no string"))
}

/// Reads what libcni's `types.PluginConf` takes of a plugin's members: its type, and whether it has an `ipam`.
pub(super) fn plugin(members: &Members<'_>) -> Result<(String, bool)> {
    for name in ["cniVersion", "name"] {
        members.string(name)?;
    }
    if let Some(capabilities) = members.field("capabilities") {
        let flags: Option<Vec<_>> = object(capabilities);
        let is_flag = |value: &&RawValue| matches!(value.get(), "true" | "false" | "null");
        if !flags.is_some_and(|flags| flags.iter().all(is_flag)) {
            return Err(invalid!("has capabilities that are not all true or false"));
        }
    }
    let ipam = members.field("ipam");
    if let Some(ipam) = ipam {
        nested("ipam", ipam)?.string("type").map_err(|e| e.context("ipam"))?;
    }
    if let Some(dns) = members.field("dns") {
        let dns = nested("dns", dns)?;
        dns.string("domain").map_err(|e| e.context("dns"))?;
        for name in ["nameservers", "search", "options"] {
            let strings =
                dns.field(name).is_none_or(|value| serde_json::from_str::<Vec<Option<Text>>>(value.get()).is_ok());
            strings.then_some(()).ok_or_else(|| invalid!("has a dns whose {name} are no strings"))?;
        }
    }
    if let Some(result) = members.field("prevResult") {
        nested("prevResult", result)?;
    }
    let kind = members.string("type")?.filter(|kind| !kind.is_empty()).ok_or_else(|| invalid!("has no type"))?;
    Ok((kind, ipam.is_some()))
}

fn nested<'a>(name: &str, value: &'a RawValue) -> Result<Members<'a>> {
    Members::parse(value.get()).map_err(|_| invalid!("has a {name} that is no object"))
}

fn object(value: &RawValue) -> Option<Vec<&RawValue>> {
    Members::parse(value.get()).ok().map(|members| members.0.into_iter().map(|(_, value)| value).collect())
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Vec<(&'de RawValue, &'de RawValue)>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Collect).map(Members)
    }
}

/// A string. A surrogate without its other half counts as unknown characters, as in Go.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Lenient;
        impl Visitor<'_> for Lenient {
            type Value = String;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<String, E> {
                Ok(String::from_utf8_lossy(bytes).into_owned())
            }
        }
        deserializer.deserialize_bytes(Lenient).map(Text)
    }
}

pub(super) fn unquoted(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok().map(|Text(text)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_as_they_were() {
        for bytes in [&b""[..], b"plain", "\u{e4}\u{1f600}".as_bytes(), b"a\xff\xfeb\x80", b"\xe4\xb8", b"\xed\xa0\x80"]
        {
            let text = decode(bytes).unwrap();
            assert_eq!(encode(&text), bytes);
        }
        decode("\u{10ff80}".as_bytes()).unwrap_err();
        // The neighbours of the private range stand for themselves.
        for text in ["\u{10ff7f}", "\u{10feff}"] {
            assert_eq!(decode(text.as_bytes()).unwrap(), text);
        }
    }

    #[test]
    fn fields_are_read_as_go_reads_them() {
        let read = |text: &str| {
            let members = Members::parse(text)?;
            plugin(&members).map(|(kind, _)| kind)
        };
        for (text, expected) in [
            (r#"{"type":"a"}"#, "a"),
            (r#"{"Type":"a"}"#, "a"),
            (r#"{"TYPE":"a","type":null}"#, "a"),
            (r#"{"type":"a","tYpe":"b"}"#, "b"),
            (r#"{"t\u0079pe":"a"}"#, "a"),
            (r#"{"type":"a","capabilities":{"x":true,"y":null},"dns":{"search":["a",null]},"ipam":null}"#, "a"),
            ("{\"type\":\"a\",\"x\":\"\u{10ffff}\"}", "a"),
        ] {
            assert_eq!(read(text).unwrap(), expected, "{text}");
        }
        for text in [
            "{}",
            r#"{"type":""}"#,
            r#"{"type":1}"#,
            r#"{"type":"a","name":[]}"#,
            r#"{"type":"a","cniVersion":1.0}"#,
            r#"{"type":"a","capabilities":{"x":1}}"#,
            r#"{"type":"a","capabilities":[]}"#,
            r#"{"type":"a","ipam":"host-local"}"#,
            r#"{"type":"a","ipam":{"Type":false}}"#,
            r#"{"type":"a","dns":[]}"#,
            r#"{"type":"a","dns":{"nameservers":"10.0.0.1"}}"#,
            r#"{"type":"a","prevResult":""}"#,
        ] {
            read(text).unwrap_err();
        }
    }

    #[test]
    fn a_printed_map_has_each_key_once_in_order() {
        let members = Members::parse(r#"{"type":"a","Type":"b","type":"c"}"#).unwrap();
        assert_eq!(plugin(&members).unwrap().0, "c");
        assert_eq!(plugin(&members.marshalled()).unwrap().0, "c");
        let members = Members::parse(r#"{"type":"a","Type":"b"}"#).unwrap();
        assert_eq!(plugin(&members).unwrap().0, "b");
        assert_eq!(plugin(&members.marshalled()).unwrap().0, "a");
    }

    #[test]
    fn half_a_surrogate_is_a_character() {
        let members = Members::parse(r#"{"name":"a\ud800","type":"b","\udfff":1}"#).unwrap();
        assert_eq!(plugin(&members).unwrap().0, "b");
        assert!(members.string("name").unwrap().unwrap().starts_with('a'));
    }
}
