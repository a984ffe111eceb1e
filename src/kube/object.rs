//! Kubernetes objects besides pods and namespaces, reduced to what we need.

use crate::pod::types::StringMap;
use serde::Deserialize;

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "RawNode")]
pub struct Node {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.labels`.
    pub labels: StringMap,
}

/// A DaemonSet, as far as it says whether a pod of it belongs on a node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "RawDaemonSet")]
pub struct DaemonSet {
    /// `metadata.deletionTimestamp` is set.
    pub being_deleted: bool,
    /// Required node affinity of its pods. None: any node. Some: a node that any of the terms fits.
    pub node_terms: Option<Vec<NodeTerm>>,
}

/// `NodeSelectorTerm`: all requirements must hold; one without any fits no node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeTerm {
    /// On labels.
    #[serde(deserialize_with = "or_default")]
    pub match_expressions: Vec<Requirement>,
    /// On fields, of which there is one: `metadata.name`.
    #[serde(deserialize_with = "or_default")]
    pub match_fields: Vec<Requirement>,
}

/// `NodeSelectorRequirement`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Requirement {
    /// Label key or field.
    pub key: String,
    /// In, NotIn, Exists, DoesNotExist, Gt, Lt.
    pub operator: String,
    /// Values.
    #[serde(default, deserialize_with = "or_default")]
    pub values: Vec<String>,
}

impl DaemonSet {
    /// Whether a pod of it belongs on this node: it exists to stay, and its required node affinity fits.
    pub fn wants(&self, node: &Node) -> bool {
        !self.being_deleted && self.node_terms.as_ref().is_none_or(|terms| terms.iter().any(|term| term.fits(node)))
    }
}

impl NodeTerm {
    fn fits(&self, node: &Node) -> bool {
        let some = !self.match_expressions.is_empty() || !self.match_fields.is_empty();
        let fields = |key: &str| (key == "metadata.name").then_some(node.name.as_str());
        some && self.match_expressions.iter().all(|r| r.holds(node.labels.get(&r.key).map(String::as_str)))
            && self.match_fields.iter().all(|r| r.holds(fields(&r.key)))
    }
}

impl Requirement {
    fn holds(&self, value: Option<&str>) -> bool {
        let among = |value: &str| self.values.iter().any(|v| v == value);
        let numbers = || Some((value?.parse::<i64>().ok()?, self.values.first()?.parse::<i64>().ok()?));
        match self.operator.as_str() {
            "In" => value.is_some_and(among),
            "NotIn" => !value.is_some_and(among),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => numbers().is_some_and(|(have, bound)| have > bound),
            "Lt" => numbers().is_some_and(|(have, bound)| have < bound),
            // An operator of a later Kubernetes: doubt must not take anything off the node.
            _ => true,
        }
    }
}

#[derive(Deserialize)]
struct RawNode {
    metadata: Metadata,
}

impl From<RawNode> for Node {
    fn from(raw: RawNode) -> Self {
        Node { name: raw.metadata.name, labels: raw.metadata.labels }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    #[serde(default, deserialize_with = "or_default")]
    labels: StringMap,
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize)]
struct RawDaemonSet {
    metadata: Metadata,
    spec: DaemonSetSpec,
}

#[derive(Deserialize)]
struct DaemonSetSpec {
    template: Template,
}

#[derive(Deserialize)]
struct Template {
    #[serde(default, deserialize_with = "or_default")]
    spec: TemplateSpec,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct TemplateSpec {
    affinity: Option<Affinity>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Affinity {
    node_affinity: Option<NodeAffinity>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct NodeAffinity {
    required_during_scheduling_ignored_during_execution: Option<NodeSelector>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeSelector {
    #[serde(default, deserialize_with = "or_default")]
    node_selector_terms: Vec<NodeTerm>,
}

impl From<RawDaemonSet> for DaemonSet {
    fn from(raw: RawDaemonSet) -> Self {
        let required = raw.spec.template.spec.affinity.and_then(|a| a.node_affinity);
        let required = required.and_then(|n| n.required_during_scheduling_ignored_during_execution);
        DaemonSet {
            being_deleted: raw.metadata.deletion_timestamp.is_some(),
            node_terms: required.map(|r| r.node_selector_terms),
        }
    }
}

/// `null` counts as absent.
fn or_default<'de, D: serde::Deserializer<'de>, T: Deserialize<'de> + Default>(d: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(labels: &[(&str, &str)]) -> Node {
        Node { name: "node-r".into(), labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect() }
    }

    fn check(affinity: &str, labels: &[(&str, &str)], expected: bool) {
        let text =
            format!(r#"{{"metadata":{{"name":"d"}},"spec":{{"template":{{"spec":{{"affinity":{affinity}}}}}}}}}"#);
        let set: DaemonSet = serde_json::from_str(&text).unwrap();
        assert_eq!(set.wants(&node(labels)), expected, "{affinity} {labels:?}");
    }

    #[test]
    fn fits_by_required_node_affinity_only() {
        let required = |terms: &str| {
            format!(
                r#"{{"nodeAffinity":{{"requiredDuringSchedulingIgnoredDuringExecution":{{"nodeSelectorTerms":{terms}}}}}}}"#
            )
        };
        check("null", &[], true);
        check("{}", &[], true);
        check(r#"{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1}]}}"#, &[], true);
        check(&required("[]"), &[], false);
        check(&required("[{}]"), &[], false);
        let one = |r: &str| required(&format!(r#"[{{"matchExpressions":[{r}]}}]"#));
        check(&one(r#"{"key":"a","operator":"In","values":["1","2"]}"#), &[("a", "2")], true);
        check(&one(r#"{"key":"a","operator":"In","values":["1","2"]}"#), &[], false);
        check(&one(r#"{"key":"a","operator":"NotIn","values":["1"]}"#), &[], true);
        check(&one(r#"{"key":"a","operator":"NotIn","values":["1"]}"#), &[("a", "1")], false);
        check(&one(r#"{"key":"a","operator":"Exists"}"#), &[("a", "")], true);
        check(&one(r#"{"key":"a","operator":"DoesNotExist","values":null}"#), &[("a", "")], false);
        check(&one(r#"{"key":"a","operator":"Gt","values":["3"]}"#), &[("a", "10")], true);
        check(&one(r#"{"key":"a","operator":"Lt","values":["3"]}"#), &[("a", "10")], false);
        check(&one(r#"{"key":"a","operator":"Gt","values":["x"]}"#), &[("a", "10")], false);
        let fields = |name: &str| {
            required(&format!(r#"[{{"matchFields":[{{"key":"metadata.name","operator":"In","values":["{name}"]}}]}}]"#))
        };
        check(&fields("node-r"), &[], true);
        check(&fields("other"), &[], false);
        check(
            &required(
                r#"[{"matchExpressions":[{"key":"a","operator":"Exists"}]},{"matchExpressions":[{"key":"b","operator":"Exists"}]}]"#,
            ),
            &[("b", "")],
            true,
        );
        check(
            &required(r#"[{"matchExpressions":[{"key":"a","operator":"Exists"},{"key":"b","operator":"Exists"}]}]"#),
            &[("b", "")],
            false,
        );
    }

    #[test]
    fn one_that_is_being_deleted_wants_no_node() {
        let text = r#"{"metadata":{"name":"d","deletionTimestamp":"2026-11-30T05:13:20Z"},"spec":{"template":{}}}"#;
        let set: DaemonSet = serde_json::from_str(text).unwrap();
        assert!(set.being_deleted && !set.wants(&node(&[])));
    }
}
