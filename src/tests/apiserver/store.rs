//! What the server knows: objects, each change with a resourceVersion, and the history that watches are fed from.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A collection, as it is named in paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Pods,
    Namespaces,
    Nodes,
    Events,
    DaemonSets,
}

impl Kind {
    pub fn of_path(plural: &str) -> Option<Kind> {
        Some(match plural {
            "pods" => Kind::Pods,
            "namespaces" => Kind::Namespaces,
            "nodes" => Kind::Nodes,
            "events" => Kind::Events,
            "daemonsets" => Kind::DaemonSets,
            _ => return None,
        })
    }

    pub fn plural(self) -> &'static str {
        match self {
            Kind::Pods => "pods",
            Kind::Namespaces => "namespaces",
            Kind::Nodes => "nodes",
            Kind::Events => "events",
            Kind::DaemonSets => "daemonsets",
        }
    }

    pub fn singular(self) -> &'static str {
        match self {
            Kind::Pods => "Pod",
            Kind::Namespaces => "Namespace",
            Kind::Nodes => "Node",
            Kind::Events => "Event",
            Kind::DaemonSets => "DaemonSet",
        }
    }

    pub fn api_version(self) -> &'static str {
        if self == Kind::DaemonSets { "apps/v1" } else { "v1" }
    }

    /// `pods`, or `daemonsets.apps` as messages say.
    pub fn qualified(self) -> &'static str {
        if self == Kind::DaemonSets { "daemonsets.apps" } else { self.plural() }
    }
}

/// Namespace (empty for what has none) and name.
pub type Key = (Kind, String, String);

/// One state of one object.
#[derive(Debug)]
pub struct Object {
    pub value: Value,
    /// Without kind and apiVersion, as in a list.
    text: String,
}

impl Object {
    fn new(value: Value) -> Arc<Self> {
        Arc::new(Object { text: value.to_string(), value })
    }

    pub fn name(&self) -> &str {
        self.value["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub fn namespace(&self) -> &str {
        self.value["metadata"]["namespace"].as_str().unwrap_or_default()
    }

    /// The object as an item of a list.
    pub fn item(&self, metadata_only: bool) -> String {
        if metadata_only { self.whole(Kind::Pods, true) } else { self.text.clone() }
    }

    /// Alone, or in an event.
    pub fn whole(&self, kind: Kind, metadata_only: bool) -> String {
        if metadata_only {
            let metadata = &self.value["metadata"];
            return format!(
                r#"{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{metadata}}}"#
            );
        }
        format!(r#"{{"kind":"{}","apiVersion":"{}",{}"#, kind.singular(), kind.api_version(), &self.text[1..])
    }
}

/// What happened to an object.
#[derive(Debug, Clone)]
pub struct Change {
    pub version: u64,
    pub key: Key,
    pub before: Option<Arc<Object>>,
    /// None: deleted.
    pub after: Option<Arc<Object>>,
    /// The last state with the version of the deletion.
    pub last: Arc<Object>,
}

#[derive(Debug)]
pub struct Store {
    pub version: u64,
    /// Watches from before this version are too old.
    pub oldest: u64,
    pub objects: BTreeMap<Key, Arc<Object>>,
    history: Vec<Change>,
    /// Pages still to come, by resourceVersion and a number.
    pub pages: BTreeMap<(u64, u64), Vec<Arc<Object>>>,
    made: u64,
}

/// Events that are kept.
const HISTORY: usize = 20_000;

impl Default for Store {
    fn default() -> Self {
        Store {
            version: 200,
            oldest: 200,
            objects: BTreeMap::new(),
            history: Vec::new(),
            pages: BTreeMap::new(),
            made: 0,
        }
    }
}

impl Store {
    /// Creates or replaces; fills in what a server fills in.
    pub fn put(&mut self, kind: Kind, mut value: Value) -> Arc<Object> {
        self.made += 1;
        let made = self.made;
        let metadata = value["metadata"].as_object_mut().expect("an object has metadata");
        let text =
            |m: &Map<String, Value>, key: &str| m.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        if text(metadata, "name").is_empty() {
            let name = format!("{}{made:05x}", text(metadata, "generateName"));
            metadata.insert("name".into(), name.into());
        }
        if kind == Kind::Namespaces {
            let name = text(metadata, "name");
            metadata.entry("labels").or_insert_with(|| json!({}))["kubernetes.io/metadata.name"] = name.into();
        }
        let key = (kind, text(metadata, "namespace"), text(metadata, "name"));
        let before = self.objects.get(&key).cloned();
        if let Some(uid) = before.as_ref().map(|b| b.value["metadata"]["uid"].clone()) {
            metadata.entry("uid").or_insert(uid);
        }
        metadata.entry("uid").or_insert_with(|| format!("00000000-0000-4000-8000-{made:012x}").into());
        metadata.entry("creationTimestamp").or_insert_with(|| "2026-11-30T05:13:08Z".into());
        if before.as_ref().is_some_and(|b| b.value["metadata"]["uid"] != metadata["uid"]) {
            // Another object under the same name: the old one goes first.
            self.remove(&key);
            return self.put(kind, value);
        }
        self.version += 1;
        value["metadata"]["resourceVersion"] = self.version.to_string().into();
        let object = Object::new(value);
        self.objects.insert(key.clone(), object.clone());
        let last = object.clone();
        self.record(Change { version: self.version, key, before, after: Some(object.clone()), last });
        object
    }

    pub fn remove(&mut self, key: &Key) -> Option<Arc<Object>> {
        let before = self.objects.remove(key)?;
        self.version += 1;
        let mut value = before.value.clone();
        value["metadata"]["resourceVersion"] = self.version.to_string().into();
        let last = Object::new(value);
        let change =
            Change { version: self.version, key: key.clone(), before: Some(before), after: None, last: last.clone() };
        self.record(change);
        Some(last)
    }

    fn record(&mut self, change: Change) {
        self.history.push(change);
        if self.history.len() > 2 * HISTORY {
            self.history.drain(..HISTORY);
            self.oldest = self.oldest.max(self.history[0].version - 1);
        }
    }

    /// Changes after a version.
    pub fn since(&self, version: u64) -> &[Change] {
        let from = self.history.partition_point(|change| change.version <= version);
        &self.history[from..]
    }
}

/// RFC 7386.
pub fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let target = target.as_object_mut().expect("just made one");
    for (key, value) in patch {
        if value.is_null() {
            target.shift_remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
    // A server drops maps that became empty.
    target.retain(|key, value| {
        key != "annotations" && key != "labels" || value.as_object().is_some_and(|m| !m.is_empty())
    });
}

/// A selector of a query, of labels or of fields.
#[derive(Debug, Clone, Default)]
pub struct Selector {
    fields: Vec<(String, bool, String)>,
    labels: Vec<(String, bool, Option<String>)>,
}

impl Selector {
    /// `a=b,c!=d` of fields; `a=b,c!=d,e,!f` of labels.
    pub fn parse(fields: &str, labels: &str) -> Self {
        let pair = |part: &str| -> Option<(String, bool, String)> {
            let (key, value) = part.split_once('=')?;
            let key = key.trim_end_matches('=');
            Some((key.trim_end_matches('!').to_owned(), !key.ends_with('!'), value.trim_start_matches('=').to_owned()))
        };
        let parts = |text: &str| text.split(',').filter(|p| !p.is_empty()).map(str::to_owned).collect::<Vec<_>>();
        Selector {
            fields: parts(fields).iter().filter_map(|p| pair(p)).collect(),
            labels: parts(labels)
                .iter()
                .map(|p| match pair(p) {
                    Some((key, equal, value)) => (key, equal, Some(value)),
                    None => (p.trim_start_matches('!').to_owned(), !p.starts_with('!'), None),
                })
                .collect(),
        }
    }

    pub fn matches(&self, object: &Object) -> bool {
        let field = |path: &str| {
            path.split('.').fold(&object.value, |value, part| &value[part]).as_str().unwrap_or_default().to_owned()
        };
        let label = |key: &str| object.value["metadata"]["labels"][key].as_str();
        self.fields.iter().all(|(path, equal, value)| (field(path) == *value) == *equal)
            && self.labels.iter().all(|(key, wanted, value)| match value {
                Some(value) => (label(key) == Some(value)) == *wanted,
                None => label(key).is_some() == *wanted,
            })
    }
}
