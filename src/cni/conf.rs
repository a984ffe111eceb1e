//! What a runtime passes: the network configuration on standard input and the `K=V;K=V` of `CNI_ARGS`. Pure.
//!
//! An unknown key is ignored, null counts as absent (as for Go), and a value of a wrong type is an error that names
//! its key. prevResult stays the text it came as.

use super::event::{Failure, GcEvent, code};
use super::version::{self, Version};
use crate::logging::parse_level;
use crate::sys::run_dir::RunDir;
use log::LevelFilter;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// Our entry of the chain, with what the runtime added to it.
#[derive(Debug)]
pub struct NetConf {
    /// `cniVersion` of the list.
    pub version: Version,
    /// `cni_agent_run_dir`: where the agent's sockets are, and our log.
    pub run_dir: RunDir,
    /// `ambient_enabled`: the agent enrols pods in the ambient mesh.
    pub ambient_enabled: bool,
    /// `enablement_selectors`: which pods, as the agent's option has it; null without.
    pub enablement_selectors: Value,
    /// `exclude_namespaces`: never touched.
    pub exclude_namespaces: Vec<String>,
    /// `exclude_runtime_classes`: pods of these are never touched.
    pub exclude_runtime_classes: Vec<String>,
    /// `pod_namespace`: the namespace of the agent's own pod.
    pub pod_namespace: String,
    /// `native_nftables`: nf_tables rules instead of iptables.
    pub native_nftables: bool,
    /// `plugin_log_level`, older spelling `log_level`.
    pub log_level: LevelFilter,
    /// `status_gate`: STATUS may fail.
    pub status_gate: bool,
    /// `enable_ambient_detection_retry`: while nobody can tell whether the pod is in the mesh, the API server is asked
    /// again within the same ADD.
    pub enable_ambient_detection_retry: bool,
    /// `prevResult`, byte for byte.
    pub prev_result: Option<Box<RawValue>>,
    /// GC's attachments, not decoded yet: they matter to one verb only.
    attachments: [Option<Box<RawValue>>; 2],
}

/// GC's list: the key of the specification and that of older libcni.
const ATTACHMENTS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

impl NetConf {
    /// Decodes standard input. Fails with [`code::DECODE`] (it is not JSON), [`code::INCOMPATIBLE_VERSION`]
    /// or [`code::INVALID_CONFIG`] (a value).
    pub fn parse(stdin: &[u8]) -> Result<Self, Failure> {
        let fields: Fields<'_> = serde_json::from_slice(stdin).map_err(|e| Failure {
            details: e.to_string(),
            ..Failure::new(code::DECODE, "the network configuration on standard input is not a JSON object")
        })?;
        let text: Option<String> = fields.get("cniVersion")?;
        let text = text.unwrap_or_default();
        let version = Version::parse(&text).ok_or_else(|| Failure {
            details: format!("the configuration is of version {text:?}, the plugin knows {}", version::supported()),
            ..Failure::new(code::INCOMPATIBLE_VERSION, "incompatible CNI versions")
        })?;
        // Istio kept these below `kubernetes` before 1.22.
        let older: Fields<'_> = fields.get("kubernetes")?.unwrap_or_default();
        let exclude_namespaces = match fields.get("exclude_namespaces")? {
            Some(namespaces) => Some(namespaces),
            None => older.get("exclude_namespaces")?,
        };
        let log_level: Option<String> = match fields.get("plugin_log_level")? {
            Some(level) => Some(level),
            None => fields.get("log_level")?,
        };
        let run_dir: Option<String> = fields.get("cni_agent_run_dir")?;
        let [valid, attachments] = ATTACHMENTS;
        Ok(NetConf {
            version,
            run_dir: RunDir::new(run_dir.filter(|dir| !dir.is_empty()).unwrap_or_else(|| RunDir::DEFAULT.to_owned())),
            ambient_enabled: fields.get("ambient_enabled")?.unwrap_or_default(),
            enablement_selectors: fields.get("enablement_selectors")?.unwrap_or_default(),
            exclude_namespaces: exclude_namespaces.unwrap_or_default(),
            exclude_runtime_classes: fields.get("exclude_runtime_classes")?.unwrap_or_default(),
            pod_namespace: fields.get("pod_namespace")?.unwrap_or_default(),
            native_nftables: fields.get("native_nftables")?.unwrap_or_default(),
            // A level that nobody knows is no reason to fail a pod.
            log_level: log_level.and_then(|level| parse_level(&level)).unwrap_or(LevelFilter::Info),
            status_gate: fields.get("status_gate")?.unwrap_or_default(),
            enable_ambient_detection_retry: fields.get("enable_ambient_detection_retry")?.unwrap_or_default(),
            prev_result: fields.raw("prevResult"),
            attachments: [fields.raw(valid), fields.raw(attachments)],
        })
    }

    /// The attachments that are still valid, for GC. A list that is null or missing is empty; one that cannot be read
    /// is an error, since an attachment missing from it would be taken for gone.
    pub fn valid_attachments(&self) -> Result<GcEvent, Failure> {
        #[derive(Deserialize)]
        struct Attachment {
            #[serde(rename = "containerID")]
            container_id: String,
        }
        let mut container_ids = Vec::new();
        for (key, raw) in ATTACHMENTS.iter().zip(&self.attachments) {
            let Some(raw) = raw else { continue };
            let list: Vec<Attachment> = serde_json::from_str(raw.get()).map_err(|e| bad_value(key, &e))?;
            container_ids.extend(list.into_iter().map(|attachment| attachment.container_id));
        }
        container_ids.sort_unstable();
        container_ids.dedup();
        Ok(GcEvent { container_ids })
    }
}

fn bad_value(key: &str, why: &dyn std::fmt::Display) -> Failure {
    Failure::new(code::INVALID_CONFIG, format_args!("the network configuration's {key} has a bad value: {why}"))
}

/// A JSON object whose values are decoded one by one, so that an error can name its key.
#[derive(Default, Deserialize)]
#[serde(transparent)]
struct Fields<'a>(#[serde(borrow)] BTreeMap<String, &'a RawValue>);

impl<'a> Fields<'a> {
    fn get<T: Deserialize<'a>>(&self, key: &str) -> Result<Option<T>, Failure> {
        self.0.get(key).map_or(Ok(None), |raw| serde_json::from_str(raw.get()).map_err(|e| bad_value(key, &e)))
    }

    fn raw(&self, key: &str) -> Option<Box<RawValue>> {
        self.0.get(key).filter(|raw| raw.get() != "null").map(|raw| (*raw).to_owned())
    }
}

/// The keys of `CNI_ARGS` that mean something here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodArgs {
    /// `K8S_POD_NAME`; empty when the sandbox is no pod.
    pub name: String,
    /// `K8S_POD_NAMESPACE`; empty from podman.
    pub namespace: String,
    /// `K8S_POD_UID`; absent before containerd 1.6 and from podman.
    pub uid: String,
}

impl PodArgs {
    /// Reads `K=V;K=V`: in any order, unknown keys and pieces without `=` ignored, the last of a repeated key counts.
    pub fn parse(args: &str) -> Self {
        let mut pod = PodArgs::default();
        for (key, value) in args.split(';').filter_map(|piece| piece.split_once('=')) {
            match key.trim() {
                "K8S_POD_NAME" => value.trim().clone_into(&mut pod.name),
                "K8S_POD_NAMESPACE" => value.trim().clone_into(&mut pod.namespace),
                "K8S_POD_UID" => value.trim().clone_into(&mut pod.uid),
                _ => {}
            }
        }
        pod
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"{"cniVersion":"0.4.0","name":"net","type":"istio-cni","plugin_log_level":"debug",
        "cni_agent_run_dir":"/run/x","ambient_enabled":true,"enablement_selectors":[{"podSelector":{}}],
        "exclude_namespaces":["kube-system"],"pod_namespace":"istio-system","native_nftables":true,"status_gate":true,
        "enable_ambient_detection_retry":true,"unknown":[{"a":1}],"runtimeConfig":{"dns":null},
        "prevResult":{"cniVersion": "0.4.0",  "x":1.50},"cni.dev/valid-attachments":[{"containerID":"b","ifname":"eth0"}],
        "cni.dev/attachments":[{"containerID":"b"},{"containerID":"a","ifname":"eth0"}]}"#;

    #[test]
    fn every_key_is_read() {
        let conf = NetConf::parse(FULL.as_bytes()).unwrap();
        assert_eq!((conf.version, conf.run_dir.path().to_str()), (Version::V0_4_0, Some("/run/x")));
        assert!(conf.ambient_enabled && conf.native_nftables && conf.status_gate);
        assert!(conf.enable_ambient_detection_retry);
        assert_eq!(
            (conf.exclude_namespaces.as_slice(), conf.pod_namespace.as_str()),
            (&["kube-system".to_owned()][..], "istio-system")
        );
        assert_eq!((conf.log_level, conf.enablement_selectors.is_array()), (LevelFilter::Debug, true));
        assert_eq!(conf.prev_result.as_ref().unwrap().get(), r#"{"cniVersion": "0.4.0",  "x":1.50}"#);
        assert_eq!(conf.valid_attachments().unwrap().container_ids, ["a", "b"]);
    }

    #[test]
    fn absent_null_and_older_keys_have_their_meaning() {
        for text in
            ["{}", r#"{"cniVersion":null,"cni_agent_run_dir":null,"exclude_namespaces":null,"prevResult":null}"#]
        {
            let conf = NetConf::parse(text.as_bytes()).unwrap();
            assert_eq!((conf.version, conf.run_dir.path().to_str()), (Version::V0_1_0, Some(RunDir::DEFAULT)));
            assert!(conf.prev_result.is_none() && conf.exclude_namespaces.is_empty() && !conf.status_gate);
            assert_eq!(conf.log_level, LevelFilter::Info);
            assert!(conf.valid_attachments().unwrap().container_ids.is_empty());
        }
        let older = r#"{"log_level":"warn","kubernetes":{"exclude_namespaces":["a"],"kubeconfig":"/x"}}"#;
        let conf = NetConf::parse(older.as_bytes()).unwrap();
        assert_eq!((conf.log_level, conf.exclude_namespaces), (LevelFilter::Warn, vec!["a".to_owned()]));
    }

    #[test]
    fn what_is_wrong_has_its_code_and_names_the_key() {
        let check = |text: &str, code: u32, part: &str| {
            let failure = NetConf::parse(text.as_bytes()).unwrap_err();
            assert_eq!(failure.code, code, "{text}");
            assert!(failure.message.contains(part) || failure.details.contains(part), "{text}: {failure:?}");
        };
        for text in ["", "[]", "null", "{", "\"x\"", "{}x", "\u{0}"] {
            check(text, code::DECODE, "standard input");
        }
        check(r#"{"cniVersion":"1.2.0"}"#, code::INCOMPATIBLE_VERSION, "1.2.0");
        for key in [
            "cniVersion",
            "cni_agent_run_dir",
            "ambient_enabled",
            "exclude_namespaces",
            "pod_namespace",
            "native_nftables",
            "plugin_log_level",
            "log_level",
            "status_gate",
            "enable_ambient_detection_retry",
            "kubernetes",
        ] {
            check(&format!(r#"{{"{key}":[7]}}"#), code::INVALID_CONFIG, key);
        }
        for list in ["7", "{}", r#"[{}]"#, r#"[{"containerID":7}]"#, "[null]"] {
            let conf = NetConf::parse(format!(r#"{{"cni.dev/valid-attachments":{list}}}"#).as_bytes()).unwrap();
            assert_eq!(conf.valid_attachments().unwrap_err().code, code::INVALID_CONFIG, "{list}");
        }
    }

    #[test]
    fn a_configuration_cut_anywhere_is_an_error() {
        for end in 0..FULL.len() {
            assert_eq!(NetConf::parse(&FULL.as_bytes()[..end]).unwrap_err().code, code::DECODE, "cut at {end}");
        }
    }

    #[test]
    fn args_are_read_liberally() {
        let check = |args: &str, name: &str, namespace: &str, uid: &str| {
            let expected = PodArgs { name: name.into(), namespace: namespace.into(), uid: uid.into() };
            assert_eq!(PodArgs::parse(args), expected, "{args:?}");
        };
        check(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_UID=u;K8S_POD_INFRA_CONTAINER_ID=c",
            "p",
            "ns",
            "u",
        );
        check("K8S_POD_NAME=a=b;;x;=;K8S_POD_NAME", "a=b", "", "");
        check("K8S_POD_NAME=a;K8S_POD_NAME=b;FOO=1", "b", "", "");
        check("", "", "", "");
    }
}
