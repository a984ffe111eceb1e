//! Small maps of strings: labels and annotations, of which a node knows thousands.

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Index;

/// A value that others chose, in a message: quoted, its control characters escaped, and cut after [`Quoted::MOST`]
/// characters.
#[derive(Debug, Clone, Copy)]
pub struct Quoted<'a>(pub &'a str);

impl Quoted<'_> {
    /// Characters that are shown.
    const MOST: usize = 100;
}

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(Self::MOST) {
            None => write!(f, "{:?}", self.0),
            Some((end, _)) => write!(f, "{:?}… ({} bytes)", self.0.get(..end).unwrap_or_default(), self.0.len()),
        }
    }
}

/// Labels or annotations, in the order of their keys. As small as its strings: a tree takes half a KiB for two of them,
/// times the namespaces of a cluster.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct StringMap(Box<[(String, String)]>);

impl StringMap {
    /// A map without anything.
    pub fn new() -> Self {
        StringMap::default()
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&String> {
        let at = self.0.binary_search_by(|(k, _)| k.as_str().cmp(key)).ok()?;
        self.0.get(at).map(|(_, value)| value)
    }

    /// Whether the key is there.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Puts a value in, in place of the one that was there.
    pub fn insert(&mut self, key: String, value: String) {
        *self = std::mem::take(self).into_iter().chain([(key, value)]).collect();
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keys and values.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &String)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// Keys.
    pub fn keys(&self) -> impl Iterator<Item = &String> {
        self.iter().map(|(key, _)| key)
    }
}

/// Of a key that comes twice the last counts.
impl FromIterator<(String, String)> for StringMap {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        let sorted: BTreeMap<String, String> = pairs.into_iter().collect();
        StringMap(sorted.into_iter().collect())
    }
}

impl<const N: usize> From<[(String, String); N]> for StringMap {
    fn from(pairs: [(String, String); N]) -> Self {
        pairs.into_iter().collect()
    }
}

impl IntoIterator for StringMap {
    type Item = (String, String);
    type IntoIter = std::vec::IntoIter<(String, String)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_vec().into_iter()
    }
}

/// For keys that are known to be there.
impl Index<&str> for StringMap {
    type Output = String;

    fn index(&self, key: &str) -> &String {
        self.get(key).unwrap_or_else(|| panic!("no key {key:?}"))
    }
}

impl fmt::Debug for StringMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<'de> Deserialize<'de> for StringMap {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = StringMap;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<StringMap, M::Error> {
                std::iter::from_fn(|| map.next_entry().transpose()).collect()
            }
        }
        d.deserialize_map(Pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_as_a_map() {
        let mut map: StringMap = serde_json::from_str(r#"{"b":"1","a":"2","b":"3"}"#).unwrap();
        assert_eq!(format!("{map:?}"), r#"{"a": "2", "b": "3"}"#);
        assert_eq!((map.get("a").map(String::as_str), map.get("c"), map.len()), (Some("2"), None, 2));
        map.insert("aa".into(), "4".into());
        map.insert("b".into(), "5".into());
        assert_eq!(map.keys().collect::<Vec<_>>(), ["a", "aa", "b"]);
        assert_eq!((map["b"].as_str(), map.contains_key("aa"), map.is_empty()), ("5", true, false));
        assert_eq!(map, map.clone().into_iter().rev().collect());
        assert!(serde_json::from_str::<StringMap>(r#"{"a":1}"#).is_err());
        assert!(serde_json::from_str::<StringMap>("[]").is_err());
    }
}
