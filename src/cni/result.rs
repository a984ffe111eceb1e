//! The result of an ADD: prevResult as it came, in the shape of the configuration's `cniVersion`. Pure.
//!
//! Where the versions agree the bytes are not touched. Where they differ only what differs is changed, so keys that
//! nobody here knows survive. The rules are libcni's: before 0.3.0 the first address of each family and the routes of
//! that family; `ips[].version` from 0.3.0 and before 1.0.0.

use super::event::{Failure, code};
use super::version::{Shape, Version};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::fmt;
use std::net::IpAddr;

/// Expresses `prev` (an empty result without one) in `version`; the answer is one JSON object.
pub fn express(prev: Option<&RawValue>, version: Version) -> Result<String, Failure> {
    let Some(prev) = prev else {
        return Ok(json!({"cniVersion": version.as_str(), "dns": {}}).to_string());
    };
    let text = prev.get();
    let invalid = |why: &dyn std::fmt::Display| Failure::new(code::INVALID_CONFIG, format_args!("prevResult {why}"));
    if !text.starts_with('{') {
        return Err(invalid(&"is not a JSON object"));
    }
    #[derive(serde::Deserialize)]
    struct Head {
        #[serde(rename = "cniVersion")]
        cni_version: Option<String>,
    }
    let head: Head = serde_json::from_str(text).map_err(|e| invalid(&format_args!("cannot be read: {e}")))?;
    match head.cni_version.as_deref() {
        Some(same) if same == version.as_str() => Ok(text.to_owned()),
        // The runtime means the configuration's version, as libcni does; a result without one would be taken for 0.1.0.
        None | Some("") => {
            let members = Members::parse(text).map_err(|e| invalid(&e))?;
            let rest = members.0.iter().filter(|(key, _)| key != "cniVersion");
            let rest = rest.map(|(key, value)| (key.as_str(), value.get().to_owned()));
            Ok(print(std::iter::once(("cniVersion", json!(version.as_str()).to_string())).chain(rest)))
        }
        Some(other) => {
            let from = Version::parse(other).ok_or_else(|| {
                invalid(&format_args!(
                    "has the unknown cniVersion {other:?}; known are {}",
                    super::version::supported()
                ))
            })?;
            let members = Members::parse(text).map_err(|e| invalid(&e))?;
            let mut object = members.known().map_err(|e| invalid(&e))?;
            object.insert("cniVersion".to_owned(), version.as_str().into());
            convert(&mut object, from.shape(), version.shape());
            let kept = members.0.iter().filter_map(|(key, value)| {
                if !KNOWN.contains(&key.as_str()) {
                    return Some((key.clone(), value.get().to_owned()));
                }
                object.shift_remove(key).map(|value| (key.clone(), value.to_string()))
            });
            let kept: Vec<_> = kept.collect();
            let new = object.iter().map(|(key, value)| (key.clone(), value.to_string()));
            Ok(print(kept.into_iter().chain(new)))
        }
    }
}

/// What differs between the versions.
const KNOWN: [&str; 6] = ["cniVersion", "interfaces", "ips", "routes", "ip4", "ip6"];

/// An object's members in order, as they are written: numbers may have more digits than ours could hold. Of a repeated
/// key the last counts.
struct Members(Vec<(String, Box<RawValue>)>);

impl Members {
    fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|e| format!("cannot be read: {e}"))
    }

    fn known(&self) -> Result<Map<String, Value>, String> {
        let known = self.0.iter().filter(|(key, _)| KNOWN.contains(&key.as_str()));
        let decode = |value: &RawValue| serde_json::from_str(value.get());
        known
            .map(|(key, value)| Ok((key.clone(), decode(value).map_err(|e| format!("has a bad {key}: {e}"))?)))
            .collect()
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Members, M::Error> {
                let mut members: Vec<(String, Box<RawValue>)> = Vec::new();
                while let Some((key, value)) = map.next_entry()? {
                    match members.iter_mut().find(|(known, _)| *known == key) {
                        Some((_, known)) => *known = value,
                        None => members.push((key, value)),
                    }
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// One JSON object of keys and the texts of their values.
fn print<K: AsRef<str>>(members: impl Iterator<Item = (K, String)>) -> String {
    let members = members.map(|(key, value)| format!("{}:{value}", json!(key.as_ref())));
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}

fn convert(object: &mut Map<String, Value>, from: Shape, to: Shape) {
    match (from, to) {
        (Shape::Families, Shape::Families) | (Shape::VersionedIps, Shape::VersionedIps) | (Shape::Ips, Shape::Ips) => {}
        (_, Shape::Families) => to_families(object),
        (Shape::Families, _) => {
            from_families(object);
            version_ips(object, to == Shape::VersionedIps);
        }
        (_, _) => version_ips(object, to == Shape::VersionedIps),
    }
}

/// Gives every address its `version`, or takes it away.
fn version_ips(object: &mut Map<String, Value>, versioned: bool) {
    let Some(ips) = object.get_mut("ips").and_then(Value::as_array_mut) else { return };
    for ip in ips.iter_mut().filter_map(Value::as_object_mut) {
        if !versioned {
            ip.shift_remove("version");
        } else if let Some(v6) = ip.get("address").and_then(is_v6) {
            ip.insert("version".to_owned(), if v6 { "6" } else { "4" }.into());
        }
    }
}

fn to_families(object: &mut Map<String, Value>) {
    object.shift_remove("interfaces");
    let ips = take_array(object, "ips");
    let routes = take_array(object, "routes");
    for (family, v6) in [("ip4", false), ("ip6", true)] {
        let first = ips.iter().filter_map(Value::as_object).find(|ip| ip.get("address").and_then(is_v6) == Some(v6));
        let Some(mut ip) = first.cloned() else { continue };
        for key in ["version", "interface"] {
            ip.shift_remove(key);
        }
        if let Some(address) = ip.shift_remove("address") {
            ip.shift_insert(0, "ip".to_owned(), address);
        }
        let routes = routes.iter().filter(|route| route.get("dst").and_then(is_v6) == Some(v6)).cloned();
        ip.insert("routes".to_owned(), routes.collect());
        object.insert(family.to_owned(), Value::Object(ip));
    }
}

fn from_families(object: &mut Map<String, Value>) {
    let mut ips = Vec::new();
    let mut routes = Vec::new();
    for family in ["ip4", "ip6"] {
        let Some(Value::Object(mut ip)) = object.shift_remove(family) else { continue };
        routes.extend(take_array(&mut ip, "routes"));
        if let Some(address) = ip.shift_remove("ip") {
            ip.shift_insert(0, "address".to_owned(), address);
        }
        ips.push(Value::Object(ip));
    }
    object.insert("ips".to_owned(), Value::Array(ips));
    object.insert("routes".to_owned(), Value::Array(routes));
}

fn take_array(object: &mut Map<String, Value>, key: &str) -> Vec<Value> {
    match object.shift_remove(key) {
        Some(Value::Array(array)) => array,
        _ => Vec::new(),
    }
}

/// Whether `10.0.0.1/24` or `fd00::1/64` is IPv6; `None` for what is no address.
fn is_v6(address: &Value) -> Option<bool> {
    let text = address.as_str()?;
    let text = text.split_once('/').map_or(text, |(address, _)| address);
    text.parse::<IpAddr>().ok().map(|address| address.is_ipv6())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn an_agreeing_result_keeps_its_bytes() {
        for version in Version::ALL {
            let text =
                format!("{{ \"x\" : [1.50, 1e3,\"\\u00e9\"],\n\"cniVersion\":\"{version}\",\t\"ips\" : [], \"x\":2 }}");
            assert_eq!(express(Some(&raw(&text)), version).unwrap(), text);
        }
    }

    #[test]
    fn without_a_result_there_is_an_empty_one() {
        assert_eq!(express(None, Version::V0_2_0).unwrap(), r#"{"cniVersion":"0.2.0","dns":{}}"#);
        assert_eq!(express(Some(&raw("{}")), Version::V1_1_0).unwrap(), r#"{"cniVersion":"1.1.0"}"#);
    }

    #[test]
    fn a_result_without_version_has_that_of_the_configuration() {
        let prev = raw(r#"{"ips":[{"address":"10.0.0.1/24"}],"z":1}"#);
        let expected = r#"{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1/24"}],"z":1}"#;
        assert_eq!(express(Some(&prev), Version::V1_0_0).unwrap(), expected);
    }

    #[test]
    fn what_nobody_knows_keeps_its_digits() {
        let prev =
            raw(r#"{"z":1e999,"cniVersion":"0.4.0","ips":[],"a":[1.50,123456789012345678901234567890],"z":0.10}"#);
        let expected = r#"{"z":0.10,"cniVersion":"1.0.0","ips":[],"a":[1.50,123456789012345678901234567890]}"#;
        assert_eq!(express(Some(&prev), Version::V1_0_0).unwrap(), expected);
    }

    #[test]
    fn what_is_no_result_is_refused() {
        for text in ["[]", "1", "\"x\"", r#"{"cniVersion":"9.0.0"}"#, r#"{"cniVersion":4}"#] {
            assert_eq!(express(Some(&raw(text)), Version::V1_0_0).unwrap_err().code, code::INVALID_CONFIG, "{text}");
        }
        let deep = format!(r#"{{"cniVersion":"0.4.0","ips":{}{}}}"#, "[".repeat(400), "]".repeat(400));
        assert!(express(Some(&raw(&deep)), Version::V1_0_0).is_err());
        assert_eq!(express(Some(&raw(&deep)), Version::V0_4_0).unwrap(), deep);
    }

    /// `test-fixtures/cni/results.json`: one result in every shape, and what each becomes in each of the others.
    #[test]
    fn results_change_their_shape_as_libcni_does() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("test-fixtures/cni/results.json");
        let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert!(cases.len() >= 6);
        for case in cases {
            for version in case["versions"].as_array().unwrap() {
                let version = Version::parse(version.as_str().unwrap()).unwrap();
                let got = express(Some(&raw(&case["from"].to_string())), version).unwrap();
                let mut expected = case["to"].clone();
                expected["cniVersion"] = version.as_str().into();
                assert_eq!(serde_json::from_str::<Value>(&got).unwrap(), expected, "{} to {version}", case["name"]);
            }
        }
    }
}
