//! The result of an ADD: prevResult as it came, in the shape of the configuration's `cniVersion`. Pure.
//!
//! Where the versions agree the bytes are not touched. Where they differ only what differs is changed, so keys that
//! nobody here knows survive. The rules are libcni's: before 0.3.0 the first address of each family and the routes of
//! that family; `ips[].version` from 0.3.0 and before 1.0.0.

use super::event::{Failure, code};
use super::version::{Shape, Version};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::json;
use serde_json::value::RawValue;
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
            let mut members = Members::parse(text).map_err(|e| invalid(&e))?;
            members.remove("cniVersion");
            members.0.insert(0, ("cniVersion".to_owned(), string(version.as_str())));
            Ok(members.to_string())
        }
        Some(other) => {
            let from = Version::parse(other).ok_or_else(|| {
                invalid(&format_args!(
                    "has the unknown cniVersion {other:?}; known are {}",
                    super::version::supported()
                ))
            })?;
            let mut members = Members::parse(text).map_err(|e| invalid(&e))?;
            members.set("cniVersion", string(version.as_str()));
            members.convert(from.shape(), version.shape());
            Ok(members.to_string())
        }
    }
}

/// An object's members in order, as they are written: numbers may have more digits than ours could hold. Of a repeated
/// key the last counts.
struct Members(Vec<(String, Box<RawValue>)>);

impl Members {
    fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|e| format!("cannot be read: {e}"))
    }

    fn get(&self, key: &str) -> Option<&RawValue> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_ref())
    }

    fn remove(&mut self, key: &str) -> Option<Box<RawValue>> {
        let at = self.0.iter().position(|(known, _)| known == key)?;
        Some(self.0.remove(at).1)
    }

    /// In the place of what has this key, else at the end.
    fn set(&mut self, key: &str, value: Box<RawValue>) {
        match self.0.iter_mut().find(|(known, _)| known == key) {
            Some((_, known)) => *known = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }

    /// What has this key, under another one and at the head.
    fn rename_to_head(&mut self, key: &str, new: &str) {
        if let Some(value) = self.remove(key) {
            self.0.insert(0, (new.to_owned(), value));
        }
    }

    fn take_array(&mut self, key: &str) -> Vec<Box<RawValue>> {
        self.remove(key).and_then(|value| array(&value)).unwrap_or_default()
    }

    fn convert(&mut self, from: Shape, to: Shape) {
        match (from, to) {
            (Shape::Families, Shape::Families)
            | (Shape::VersionedIps, Shape::VersionedIps)
            | (Shape::Ips, Shape::Ips) => {}
            (_, Shape::Families) => self.part_by_family(),
            (Shape::Families, _) => {
                self.join_families();
                self.version_ips(to == Shape::VersionedIps);
            }
            (_, _) => self.version_ips(to == Shape::VersionedIps),
        }
    }

    /// Gives every address its `version`, or takes it away.
    fn version_ips(&mut self, versioned: bool) {
        let Some(mut ips) = self.get("ips").and_then(array) else { return };
        for item in &mut ips {
            let Ok(mut ip) = Members::parse(item.get()) else { continue };
            if !versioned {
                ip.remove("version");
            } else if let Some(v6) = ip.get("address").and_then(is_v6) {
                ip.set("version", string(if v6 { "6" } else { "4" }));
            }
            *item = raw(ip.to_string());
        }
        self.set("ips", join(&ips));
    }

    fn part_by_family(&mut self) {
        self.remove("interfaces");
        let ips = self.take_array("ips");
        let routes = self.take_array("routes");
        for (family, v6) in [("ip4", false), ("ip6", true)] {
            let ips = ips.iter().filter_map(|ip| Members::parse(ip.get()).ok());
            let Some(mut ip) = ips.into_iter().find(|ip| ip.get("address").and_then(is_v6) == Some(v6)) else {
                continue;
            };
            ip.remove("version");
            ip.remove("interface");
            ip.rename_to_head("address", "ip");
            let of_family = |route: &Members| route.get("dst").and_then(is_v6) == Some(v6);
            let routes = routes.iter().filter(|route| Members::parse(route.get()).is_ok_and(|route| of_family(&route)));
            ip.set("routes", join(routes));
            self.set(family, raw(ip.to_string()));
        }
    }

    fn join_families(&mut self) {
        let mut ips = Vec::new();
        let mut routes = Vec::new();
        for family in ["ip4", "ip6"] {
            let Some(mut ip) = self.remove(family).and_then(|ip| Members::parse(ip.get()).ok()) else { continue };
            routes.extend(ip.take_array("routes"));
            ip.rename_to_head("ip", "address");
            ips.push(raw(ip.to_string()));
        }
        self.set("ips", join(&ips));
        self.set("routes", join(&routes));
    }
}

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (i, (key, value)) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{}:{}", json!(key), value.get())?;
        }
        f.write_str("}")
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
                let mut members = Members(Vec::new());
                while let Some((key, value)) = map.next_entry::<String, _>()? {
                    members.set(&key, value);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// JSON that was put together of JSON.
fn raw(json: String) -> Box<RawValue> {
    RawValue::from_string(json).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

fn string(text: &str) -> Box<RawValue> {
    raw(json!(text).to_string())
}

fn array(value: &RawValue) -> Option<Vec<Box<RawValue>>> {
    serde_json::from_str(value.get()).ok()
}

fn join<'a>(items: impl IntoIterator<Item = &'a Box<RawValue>>) -> Box<RawValue> {
    let items: Vec<&str> = items.into_iter().map(|item| item.get()).collect();
    raw(format!("[{}]", items.join(",")))
}

/// Whether `10.0.0.1/24` or `fd00::1/64` is IPv6; `None` for what is no address.
fn is_v6(address: &RawValue) -> Option<bool> {
    let text: String = serde_json::from_str(address.get()).ok()?;
    let text = text.split_once('/').map_or(text.as_str(), |(address, _)| address);
    text.parse::<IpAddr>().ok().map(|address| address.is_ipv6())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::path::Path;

    fn raw(text: &str) -> Box<RawValue> {
        super::raw(text.to_owned())
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
        let prev = raw(
            r#"{"z":1e999,"cniVersion":"0.4.0","ips":[{"x":1e999}],"a":[1.50,123456789012345678901234567890],"z":0.10}"#,
        );
        let expected =
            r#"{"z":0.10,"cniVersion":"1.0.0","ips":[{"x":1e999}],"a":[1.50,123456789012345678901234567890]}"#;
        assert_eq!(express(Some(&prev), Version::V1_0_0).unwrap(), expected);
    }

    #[test]
    fn what_is_no_result_is_refused() {
        for text in ["[]", "1", "\"x\"", r#"{"cniVersion":"9.0.0"}"#, r#"{"cniVersion":4}"#] {
            assert_eq!(express(Some(&raw(text)), Version::V1_0_0).unwrap_err().code, code::INVALID_CONFIG, "{text}");
        }
        let deep = format!(r#"{{"cniVersion":"0.4.0","ips":{}{}}}"#, "[".repeat(400), "]".repeat(400));
        for version in [Version::V0_4_0, Version::V1_0_0] {
            assert_eq!(express(Some(&raw(&deep)), version).unwrap(), deep.replace("0.4.0", version.as_str()));
        }
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
