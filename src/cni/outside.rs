//! The agent's last word about pods that are not in the mesh: what a plugin goes by that reaches neither the agent nor
//! the API server.
//!
//! Only what was decided about this very pod, by its uid, proves anything. Nothing follows from a namespace: any pod of
//! it may have a label of its own that an enablement selector matches, or an injected sidecar, and of a pod that the
//! agent has never seen a plugin knows neither labels nor annotations.

use super::conf::PodArgs;
use crate::error::{Context, Kind, Result};
use crate::invalid;
use crate::pod::decision::Policy;
use crate::pod::types::PodName;
use crate::sys::file;
use crate::sys::run_dir::RunDir;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A node has some hundred pods; a larger file is not read, and proves nothing.
const MAX_FILE: usize = 1 << 20;
const VERSION: u32 = 1;

/// Pods that were decided not to be in the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outside {
    version: u32,
    /// [`Policy::fingerprint`] of what they were decided by.
    policy: String,
    /// Namespace and name, by the uid that the runtime knows.
    pods: BTreeMap<String, (String, String)>,
}

impl Outside {
    /// These pods, by the uid that the runtime knows, were decided by this policy.
    pub fn new(policy: &Policy, pods: impl IntoIterator<Item = (String, PodName)>) -> Self {
        let pods = pods.into_iter().map(|(uid, name)| (uid, (name.namespace, name.name)));
        Outside { version: VERSION, policy: policy.fingerprint(), pods: pods.collect() }
    }

    /// Whether this pod is one of them, and would be decided by this policy now.
    pub fn proves(&self, policy: &Policy, pod: &PodArgs) -> bool {
        let PodArgs { name, namespace, uid } = pod;
        let known = self.pods.get(uid).is_some_and(|(ns, n)| ns == namespace && n == name);
        known && !uid.is_empty() && self.policy == policy.fingerprint()
    }

    /// As it stands in the file.
    pub fn encode(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).context("encode the pods outside the mesh")
    }

    /// Reads what [`Self::encode`] wrote; anything else is an error. Pure.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let outside: Outside = serde_json::from_slice(bytes)?;
        if outside.version != VERSION {
            return Err(invalid!("version {} where {VERSION} is known", outside.version));
        }
        Ok(outside)
    }

    /// Reads the file; `None` when there is none.
    pub fn read(run_dir: &RunDir) -> Result<Option<Self>> {
        let path = run_dir.outside();
        match file::read_limited(&path, MAX_FILE) {
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            bytes => Self::decode(&bytes?).map(Some).with_context(|| format!("parse {}", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::selector::EnablementSelectors;

    fn policy(selectors: &str) -> Policy {
        Policy {
            ambient_enabled: true,
            selectors: EnablementSelectors::parse(selectors).unwrap(),
            exclude_namespaces: vec!["kube-system".to_owned()],
            exclude_runtime_classes: Vec::new(),
            system_namespace: "istio-system".to_owned(),
        }
    }

    const SELECTORS: &str = "[{podSelector: {matchLabels: {a: b}}}]";

    fn outside() -> Outside {
        let name = PodName { namespace: "plain".to_owned(), name: "web".to_owned() };
        Outside::new(&policy(SELECTORS), [("u".to_owned(), name.clone()), (String::new(), name)])
    }

    #[test]
    fn only_this_very_pod_under_this_very_policy() {
        let check = |policy: &Policy, (namespace, name, uid): (&str, &str, &str), proves: bool| {
            let pod = PodArgs { name: name.to_owned(), namespace: namespace.to_owned(), uid: uid.to_owned() };
            assert_eq!(outside().proves(policy, &pod), proves, "{policy:?} {pod:?}");
        };
        let same = policy(SELECTORS);
        check(&same, ("plain", "web", "u"), true);
        check(&same, ("plain", "web", "v"), false);
        check(&same, ("plain", "web", ""), false);
        check(&same, ("plain", "web-2", "u"), false);
        check(&same, ("other", "web", "u"), false);
        // The same in another notation, and what has no say in it.
        check(&policy(r#"[{"podSelector":{"matchLabels":{"a":"b"}}}]"#), ("plain", "web", "u"), true);
        check(&Policy { system_namespace: "mesh".to_owned(), ..same.clone() }, ("plain", "web", "u"), true);
        for other in [
            policy("[{podSelector: {matchLabels: {a: c}}}]"),
            policy("[{namespaceSelector: {matchLabels: {a: b}}}]"),
            Policy { ambient_enabled: false, ..same.clone() },
            Policy { exclude_namespaces: Vec::new(), ..same },
        ] {
            check(&other, ("plain", "web", "u"), false);
        }
    }

    #[test]
    fn a_file_that_is_not_whole_proves_nothing() {
        let bytes = outside().encode().unwrap();
        assert_eq!(Outside::decode(&bytes).unwrap(), outside());
        for end in 0..bytes.len() {
            assert!(Outside::decode(&bytes[..end]).is_err(), "cut at {end}");
        }
        for text in [r#"{"version":2,"policy":"","pods":{}}"#, r#"{"version":1,"policy":"","pods":{},"more":1}"#, "[]"]
        {
            assert!(Outside::decode(text.as_bytes()).is_err(), "{text}");
        }
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(dir.path());
        assert_eq!(Outside::read(&run_dir).unwrap(), None);
        let write = |bytes: &[u8]| file::replace_volatile(&run_dir.outside(), bytes, file::Mode(0o600)).unwrap();
        write(&bytes);
        assert_eq!(Outside::read(&run_dir).unwrap(), Some(outside()));
        write(&vec![b' '; MAX_FILE + 1]);
        assert!(Outside::read(&run_dir).is_err());
    }
}
