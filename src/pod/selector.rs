//! Label selectors with Kubernetes' semantics, and the enablement selectors made of them
//! (`--ambient-enablement-selector`).

use super::types::StringMap;
use crate::error::{Context, Result};
use crate::invalid;
use serde::Deserialize;
use std::collections::BTreeSet;

/// A list of pod and namespace selector pairs, of which any must match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EnablementSelectors(Vec<Pair>);

/// Both must match.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pair {
    pod: LabelSelector,
    namespace: LabelSelector,
}

impl EnablementSelectors {
    /// Parses the YAML (or JSON) list `[{podSelector: …, namespaceSelector: …}]`; an empty text is an empty list. An
    /// unknown key, operator or shape is `Invalid` and names what is allowed.
    pub fn parse(yaml: &str) -> Result<Self> {
        if yaml.trim().is_empty() {
            return Ok(Self::default());
        }
        let options = serde_saphyr::options! { with_snippet: false };
        let pairs: Option<Vec<RawPair>> = serde_saphyr::from_str_with_options(yaml, options).map_err(|e| {
            invalid!("not a list of {{podSelector: LabelSelector, namespaceSelector: LabelSelector}}: {e}")
        })?;
        let pair = |(i, raw): (usize, RawPair)| -> Result<Pair> {
            Ok(Pair {
                pod: LabelSelector::check(raw.pod_selector).with_context(|| format!("[{i}].podSelector"))?,
                namespace: LabelSelector::check(raw.namespace_selector)
                    .with_context(|| format!("[{i}].namespaceSelector"))?,
            })
        };
        pairs.unwrap_or_default().into_iter().enumerate().map(pair).collect::<Result<_>>().map(EnablementSelectors)
    }

    /// Whether any pair matches.
    pub fn matches(&self, pod_labels: &StringMap, namespace_labels: &StringMap) -> bool {
        self.0.iter().any(|pair| pair.pod.matches(pod_labels) && pair.namespace.matches(namespace_labels))
    }

    /// Whether there is no pair at all: then nothing matches.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// `metav1.LabelSelector`: all requirements must hold; without any it matches everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct LabelSelector(Vec<Requirement>);

/// One requirement on one label.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
}

impl LabelSelector {
    fn check(raw: Option<RawSelector>) -> Result<Self> {
        let raw = raw.unwrap_or_default();
        let labels = raw.match_labels.unwrap_or_default();
        let mut requirements: Vec<Requirement> = labels
            .into_iter()
            .map(|(key, value)| Requirement { key, test: Test::In(BTreeSet::from([value])) })
            .collect();
        for expression in raw.match_expressions.unwrap_or_default() {
            requirements.push(expression.check()?);
        }
        Ok(LabelSelector(requirements))
    }

    fn matches(&self, labels: &StringMap) -> bool {
        self.0.iter().all(|requirement| requirement.matches(labels))
    }
}

impl Requirement {
    fn matches(&self, labels: &StringMap) -> bool {
        let value = labels.get(&self.key);
        match &self.test {
            Test::In(values) => value.is_some_and(|v| values.contains(v)),
            Test::NotIn(values) => value.is_none_or(|v| !values.contains(v)),
            Test::Exists => value.is_some(),
            Test::DoesNotExist => value.is_none(),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawPair {
    pod_selector: Option<RawSelector>,
    namespace_selector: Option<RawSelector>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawSelector {
    match_labels: Option<StringMap>,
    match_expressions: Option<Vec<RawExpression>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExpression {
    key: String,
    operator: Operator,
    values: Option<BTreeSet<String>>,
}

#[derive(Deserialize, Debug, Clone, Copy)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl RawExpression {
    /// The API's own rules: a key, values with In and NotIn, none with the others.
    fn check(self) -> Result<Requirement> {
        let RawExpression { key, operator, values } = self;
        let values = values.unwrap_or_default();
        if key.is_empty() {
            return Err(invalid!("matchExpressions: an expression has an empty key"));
        }
        let test = match (operator, values.is_empty()) {
            (Operator::In, false) => Test::In(values),
            (Operator::NotIn, false) => Test::NotIn(values),
            (Operator::Exists, true) => Test::Exists,
            (Operator::DoesNotExist, true) => Test::DoesNotExist,
            (Operator::In | Operator::NotIn, true) => {
                return Err(invalid!("matchExpressions: {key}: operator {operator:?} needs values"));
            }
            (Operator::Exists | Operator::DoesNotExist, false) => {
                return Err(invalid!("matchExpressions: {key}: operator {operator:?} takes no values"));
            }
        };
        Ok(Requirement { key, test })
    }
}
