//! Lists, read as they arrive: one item at a time, never the whole.

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::io::Read;

/// Takes the text of an item.
type Each<'a> = &'a mut dyn FnMut(&str) -> Result<(), serde_json::Error>;

/// `metadata` of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Page {
    /// The version of the whole list, from which to watch.
    pub resource_version: String,
    /// Where the next page begins; empty on the last.
    #[serde(rename = "continue")]
    pub next: String,
}

/// Reads one page; the text of every item goes to `each` as soon as it is there.
pub fn read(reader: &mut dyn Read, each: Each<'_>) -> Result<Page, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_reader(std::io::BufReader::with_capacity(16 << 10, reader));
    let page = json.deserialize_map(ListVisitor(each))?;
    json.end()?;
    if page.resource_version.is_empty() {
        return Err(Error::custom("not a list: no metadata.resourceVersion"));
    }
    Ok(page)
}

struct ListVisitor<'a>(Each<'a>);

impl<'de> Visitor<'de> for ListVisitor<'_> {
    type Value = Page;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Page, M::Error> {
        let mut page = Page::default();
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            match &*key {
                "metadata" => page = map.next_value()?,
                "items" => map.next_value_seed(Items(self.0))?,
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(page)
    }
}

struct Items<'a>(Each<'a>);

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of items")
    }

    // Go writes an empty list as null.
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<(), S::Error> {
        while let Some(item) = items.next_element::<Box<RawValue>>()? {
            (self.0)(item.get()).map_err(Error::custom)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<(&str, &str, &[u32]), &str>) {
        let mut items = Vec::new();
        let got = read(&mut text.as_bytes(), &mut |item| {
            items.push(serde_json::from_str::<u32>(item)?);
            Ok(())
        });
        match (got, expected) {
            (Ok(page), Ok((version, next, expected))) => {
                assert_eq!(
                    (page.resource_version.as_str(), page.next.as_str(), &*items),
                    (version, next, expected),
                    "{text}"
                );
            }
            (Err(e), Err(part)) => assert!(e.to_string().contains(part), "{text}: {e}"),
            (got, expected) => panic!("{text}: {got:?}, wanted {expected:?}"),
        }
    }

    #[test]
    fn pages() {
        check(r#"{"metadata":{"resourceVersion":"7"},"items":[1,2]}"#, Ok(("7", "", &[1, 2])));
        check(
            r#"{"items":[1],"kind":"L","metadata":{"continue":"c","resourceVersion":"7","x":{}}}"#,
            Ok(("7", "c", &[1])),
        );
        check(r#"{"metadata":{"resourceVersion":"7"},"items":null}"#, Ok(("7", "", &[])));
        check(r#"{"metadata":{"resourceVersion":"7"}}"#, Ok(("7", "", &[])));
        check(r#"{"metadata":{},"items":[]}"#, Err("no metadata.resourceVersion"));
        check(r#"{"metadata":{"resourceVersion":"7"},"items":[1]} {}"#, Err("trailing"));
        check(r#"{"metadata":{"resourceVersion":"7"},"items":["a"]}"#, Err("invalid type"));
        check("[]", Err("a list"));
    }

    #[test]
    fn truncated_anywhere_is_an_error() {
        let text = r#"{"kind":"L","metadata":{"resourceVersion":"7","continue":"c"},"items":[1,22,333]}"#;
        for end in 0..text.len() {
            assert!(read(&mut &text.as_bytes()[..end], &mut |_| Ok(())).unwrap_err().is_eof(), "{end}");
        }
    }

    /// Makes a list of namespaces up as it is read, and counts what was read of it.
    struct Endless<'a> {
        items: std::ops::Range<u32>,
        rest: Vec<u8>,
        read: &'a std::cell::Cell<usize>,
    }

    impl Read for Endless<'_> {
        fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
            if self.rest.is_empty() {
                let comma = if self.items.start == 0 { "" } else { "," };
                self.rest = match self.items.next() {
                    Some(i) => format!(r#"{comma}{{"n":{i},"managedFields":["{}"]}}"#, "x".repeat(600)).into_bytes(),
                    None if self.items.end > 0 => {
                        self.items.end = 0;
                        b"]}".to_vec()
                    }
                    None => return Ok(0),
                };
            }
            let n = buf.len().min(self.rest.len());
            buf[..n].copy_from_slice(&self.rest[..n]);
            self.rest.drain(..n);
            self.read.set(self.read.get() + n);
            Ok(n)
        }
    }

    #[test]
    fn items_are_handed_out_as_they_arrive() {
        let (count, read_so_far) = (5000, std::cell::Cell::new(0));
        let head = br#"{"metadata":{"resourceVersion":"7"},"items":["#.to_vec();
        let mut reader = Endless { items: 0..count, rest: head, read: &read_so_far };
        let mut seen = 0;
        read(&mut reader, &mut |item| {
            assert!(item.starts_with(&format!(r#"{{"n":{seen},"#)), "{item}");
            seen += 1;
            let ahead = read_so_far.get() as i64 - i64::from(seen) * 600;
            let limit = (32 << 10) + i64::from(seen) * 40;
            assert!(ahead < limit, "item {seen} only after {ahead} bytes more than it needs");
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, count);
    }
}
