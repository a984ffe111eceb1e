//! What a container runtime passes to the plugin.

use super::text;
use ferrule::cni::conf::{NetConf, PodArgs};
use ferrule::cni::event::code;
use ferrule::cni::result::express;
use ferrule::cni::version::Version;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// Everything that a runtime passes.
pub fn cni(input: &[u8]) {
    conf(input);
    args(input);
    result(input);
}

/// The configuration on standard input: prevResult keeps its bytes, refusals have the specification's codes.
fn conf(input: &[u8]) {
    let conf = match NetConf::parse(input) {
        Ok(conf) => conf,
        Err(failure) => {
            assert!(matches!(failure.code, code::INCOMPATIBLE_VERSION | code::DECODE | code::INVALID_CONFIG));
            return;
        }
    };
    assert!(!conf.run_dir.path().as_os_str().is_empty());
    if let Some(prev) = &conf.prev_result {
        assert!(text(input).unwrap().contains(prev.get()), "{}", prev.get());
    }
    match conf.valid_attachments() {
        Ok(gc) => assert!(gc.container_ids.is_sorted_by(|a, b| a < b)),
        Err(failure) => assert_eq!(failure.code, code::INVALID_CONFIG),
    }
    for version in Version::ALL {
        if let Ok(result) = express(conf.prev_result.as_deref(), version) {
            let head: BTreeMap<String, Box<RawValue>> = serde_json::from_str(&result).unwrap();
            assert_eq!(head["cniVersion"].get(), format!("{:?}", version.as_str()));
        }
    }
}

/// `CNI_ARGS`: what is read is found again when it is written plainly.
fn args(input: &[u8]) {
    let Some(args) = text(input) else { return };
    let pod = PodArgs::parse(args);
    let PodArgs { name, namespace, uid } = &pod;
    for value in [name, namespace, uid] {
        assert!(value.trim() == value && !value.contains(';') && args.contains(value.as_str()), "{value:?}");
    }
    let plain = format!("K8S_POD_UID={uid};IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}");
    assert_eq!(PodArgs::parse(&plain), pod);
    assert_eq!(PodArgs::parse(&format!("{args};{plain}")), pod, "the last of a repeated key counts");
}

/// The members of a result that no version gives a meaning to, as they are written.
fn unknown(result: &str) -> Option<BTreeMap<String, String>> {
    const KNOWN: [&str; 6] = ["cniVersion", "interfaces", "ips", "routes", "ip4", "ip6"];
    let members: BTreeMap<String, Box<RawValue>> = serde_json::from_str(result).ok()?;
    let members = members.into_iter().filter(|(key, _)| !KNOWN.contains(&key.as_str()));
    Some(members.map(|(key, value)| (key, value.get().to_owned())).collect())
}

/// A result in every version: keys that nobody knows survive, and changing the shape twice changes no more.
fn result(input: &[u8]) {
    let Some(prev) = text(input).and_then(|text| serde_json::from_str::<Box<RawValue>>(text).ok()) else { return };
    let original = unknown(prev.get());
    for version in Version::ALL {
        let got = match express(Some(&prev), version) {
            Ok(got) => got,
            Err(failure) => {
                assert_eq!(failure.code, code::INVALID_CONFIG);
                continue;
            }
        };
        assert_eq!(Some(unknown(&got).unwrap()), original, "{version}");
        let head: BTreeMap<String, Box<RawValue>> = serde_json::from_str(&got).unwrap();
        assert_eq!(head["cniVersion"].get(), format!("{:?}", version.as_str()));
        let same = RawValue::from_string(got.clone()).unwrap();
        assert_eq!(express(Some(&same), version).unwrap(), got, "its own version again");
        let there_and_back = |result: &RawValue| {
            let there = RawValue::from_string(express(Some(result), Version::V0_4_0).unwrap()).unwrap();
            RawValue::from_string(express(Some(&there), Version::V1_0_0).unwrap()).unwrap()
        };
        let once = there_and_back(&same);
        assert_eq!(there_and_back(&once).get(), once.get(), "{version}");
    }
}
