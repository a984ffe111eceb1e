//! Label selectors with Kubernetes' semantics, and the enablement selectors made of them
//! (`--ambient-enablement-selector`).

use super::types::StringMap;
use super::{field, yaml};
use crate::error::{Context, Result};
use crate::invalid;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fmt::{self, Display};

/// A list of pod and namespace selector pairs, of which any must match.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct EnablementSelectors(Vec<Pair>);

/// Both must match.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Pair {
    pod: LabelSelector,
    namespace: LabelSelector,
}

impl EnablementSelectors {
    /// Parses the YAML (or JSON) list `[{podSelector: …, namespaceSelector: …}]`; an empty text is an empty list. An
    /// unknown key, operator or shape is `Invalid` and names what is allowed.
    pub fn parse(text: &str) -> Result<Self> {
        if text.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        let pairs: Option<Vec<RawPair>> = yaml::document(text)
            .map(|json| json.to_string())
            .and_then(|json| serde_json::from_str(&json).map_err(|e| invalid!("{}", field::describe(&e, &json))))
            .context("not a list of {podSelector: LabelSelector, namespaceSelector: LabelSelector}")?;
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
        self.0.iter().any(|pair| pair.mismatch(pod_labels, namespace_labels).is_none())
    }

    /// Of each pair, whether it matches, or which of its requirements does not hold; for people.
    pub fn verdicts<'a>(&'a self, pod_labels: &'a StringMap, namespace_labels: &'a StringMap) -> Verdicts<'a> {
        Verdicts { selectors: self, pod_labels, namespace_labels }
    }

    /// How many pairs there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Those labels of a namespace that have a say in whether any pair matches.
    pub fn relevant(&self, namespace_labels: StringMap) -> StringMap {
        let asked = |key: &str| self.0.iter().flat_map(|pair| &pair.namespace.0).any(|asks| asks.key == key);
        namespace_labels.into_iter().filter(|(key, _)| asked(key)).collect()
    }

    /// Whether there is no pair at all: then nothing matches.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Pair {
    /// The first requirement that does not hold.
    fn mismatch<'a>(&'a self, pod: &'a StringMap, namespace: &'a StringMap) -> Option<Mismatch<'a>> {
        let of = |whose, selector: &'a LabelSelector, labels: &'a StringMap| {
            selector.unmet(labels).map(|wanted| Mismatch { whose, wanted, found: labels.get(&wanted.key) })
        };
        of("pod", &self.pod, pod).or_else(|| of("namespace", &self.namespace, namespace))
    }
}

/// See [`EnablementSelectors::verdicts`].
#[derive(Debug)]
pub struct Verdicts<'a> {
    selectors: &'a EnablementSelectors,
    pod_labels: &'a StringMap,
    namespace_labels: &'a StringMap,
}

impl Display for Verdicts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, pair) in (1..).zip(&self.selectors.0) {
            f.write_str(if number == 1 { "" } else { "; " })?;
            match pair.mismatch(self.pod_labels, self.namespace_labels) {
                None => write!(f, "selector {number} matches")?,
                Some(mismatch) => write!(f, "selector {number} does not: {mismatch}")?,
            }
        }
        Ok(())
    }
}

/// Why a pair does not match.
struct Mismatch<'a> {
    whose: &'static str,
    wanted: &'a Requirement,
    found: Option<&'a String>,
}

impl Display for Mismatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { whose, wanted: Requirement { key, test }, found } = self;
        match found {
            Some(value) => write!(f, "the {whose}'s label {key} is {value:?}")?,
            None => write!(f, "the {whose} has no label {key}")?,
        }
        let listed = |values: &BTreeSet<String>| values.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        match test {
            Test::In(values) => write!(f, " (wanted: {})", listed(values)),
            Test::NotIn(values) => write!(f, " (wanted: none of {})", listed(values)),
            Test::Exists => f.write_str(" (wanted: any value)"),
            Test::DoesNotExist => f.write_str(" (wanted: no such label)"),
        }
    }
}

/// `metav1.LabelSelector`: all requirements must hold; without any it matches everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct LabelSelector(pub(super) Vec<Requirement>);

/// One requirement on one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Requirement {
    pub(super) key: String,
    pub(super) test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Test {
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
        match requirements.iter().find(|requirement| !is_label_key(&requirement.key)) {
            Some(Requirement { key, .. }) => Err(invalid!("{key:?} is not the key of a label")),
            None => Ok(LabelSelector(requirements)),
        }
    }

    /// The first requirement that these labels do not meet.
    fn unmet(&self, labels: &StringMap) -> Option<&Requirement> {
        self.0.iter().find(|requirement| !requirement.matches(labels))
    }

    /// Whether all of it holds.
    pub fn matches(&self, labels: &StringMap) -> bool {
        self.unmet(labels).is_none()
    }
}

/// A prefix (a DNS name), a slash, and a name of at most 63 characters; not looked at closer, since no label can have
/// another key.
fn is_label_key(key: &str) -> bool {
    const LONGEST: usize = 253 + 1 + 63;
    let usual = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte);
    !key.is_empty() && key.len() <= LONGEST && key.bytes().all(usual)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> StringMap {
        let pair = |p: &str| p.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())).unwrap();
        text.split(',').filter(|p| !p.is_empty()).map(pair).collect()
    }

    /// The chart's default.
    const CHART: &str = include_str!("../../test-fixtures/pod/chart-selectors.yaml");

    #[test]
    fn matching() {
        let check = |yaml: &str, pod: &str, namespace: &str, want: bool| {
            let selectors = EnablementSelectors::parse(yaml).unwrap();
            assert_eq!(selectors.matches(&labels(pod), &labels(namespace)), want, "{yaml}: {pod} in {namespace}");
        };
        let mode = "istio.io/dataplane-mode";
        check(CHART, &format!("{mode}=ambient"), "", true);
        check(CHART, &format!("{mode}=none"), "", false);
        check(CHART, "", &format!("{mode}=ambient"), true);
        check(CHART, "app=x", &format!("{mode}=ambient,a=b"), true);
        check(CHART, &format!("{mode}=none"), &format!("{mode}=ambient"), false);
        check(CHART, "", &format!("{mode}=none"), false);
        check(CHART, "", "", false);
        // Nothing matches without a selector; everything matches an empty one.
        check("", "a=b", "a=b", false);
        check("[]", "a=b", "a=b", false);
        check("null", "a=b", "a=b", false);
        check("[{}]", "", "", true);
        check("- podSelector:\n", "", "", true);
        check("[{podSelector: {matchLabels: null}, namespaceSelector: {}}]", "", "", true);
        check("[{\"namespaceSelector\":{\"matchLabels\":{\"a\":\"b\"}}}]", "", "a=b", true);
        check("[{podSelector: {matchLabels: {a: b, c: d}}}]", "a=b", "", false);
        check("[{podSelector: {matchLabels: {a: b, c: d}}}]", "a=b,c=d", "", true);
        check(
            "[{podSelector: {matchLabels: {a: b}, matchExpressions: [{key: c, operator: Exists}]}}]",
            "a=b",
            "",
            false,
        );
        check("[{podSelector: {matchLabels: {a: \"\"}}}]", "", "", false);
        check("[{podSelector: {matchLabels: {a: \"\"}}}]", "a=", "", true);
        // The operators, on a label that is right, other, empty and absent.
        for (operator, right, other, empty, absent) in [
            ("In, values: [x, y]", true, false, false, false),
            ("NotIn, values: [x, y]", false, true, true, true),
            ("Exists", true, true, true, false),
            ("DoesNotExist", false, false, false, true),
        ] {
            let yaml = format!("[{{podSelector: {{matchExpressions: [{{key: k, operator: {operator}}}]}}}}]");
            check(&yaml, "k=x", "", right);
            check(&yaml, "k=z", "", other);
            check(&yaml, "k=", "", empty);
            check(&yaml, "j=x", "", absent);
        }
    }

    #[test]
    fn verdicts_name_what_is_missing() {
        let check = |yaml: &str, pod: &str, namespace: &str, want: &str| {
            let selectors = EnablementSelectors::parse(yaml).unwrap();
            assert_eq!(selectors.verdicts(&labels(pod), &labels(namespace)).to_string(), want, "{yaml}");
        };
        check(
            CHART,
            "istio.io/dataplane-mode=none",
            "",
            "selector 1 does not: the pod's label istio.io/dataplane-mode is \"none\" (wanted: ambient); selector 2 does \
             not: the pod's label istio.io/dataplane-mode is \"none\" (wanted: none of none)",
        );
        check(
            CHART,
            "",
            "",
            "selector 1 does not: the pod has no label istio.io/dataplane-mode (wanted: ambient); selector 2 does not: \
             the namespace has no label istio.io/dataplane-mode (wanted: ambient)",
        );
        let operators = "[{podSelector: {matchExpressions: [{key: a, operator: Exists}]}},
                          {namespaceSelector: {matchExpressions: [{key: a, operator: DoesNotExist}]}}, {}]";
        check(
            operators,
            "",
            "a=b",
            "selector 1 does not: the pod has no label a (wanted: any value); selector 2 does not: the namespace's \
             label a is \"b\" (wanted: no such label); selector 3 matches",
        );
    }

    #[test]
    fn of_a_namespace_only_what_is_asked_for_matters() {
        let all = || labels("a=b,istio.io/dataplane-mode=ambient,team=x");
        let check = |yaml: &str, kept: &str| {
            let selectors = EnablementSelectors::parse(yaml).unwrap();
            assert_eq!(selectors.relevant(all()), labels(kept), "{yaml}");
            assert_eq!(selectors.matches(&labels("a=b"), &all()), selectors.matches(&labels("a=b"), &labels(kept)));
        };
        check(CHART, "istio.io/dataplane-mode=ambient");
        check("[{podSelector: {matchLabels: {a: b}}}]", "");
        check(
            "[{namespaceSelector: {matchExpressions: [{key: a, operator: Exists}, {key: c, operator: Exists}]}}]",
            "a=b",
        );
        check("[]", "");
    }

    #[test]
    fn refusals_name_what_is_allowed() {
        let check = |yaml: &str, wants: &[&str]| {
            let error = EnablementSelectors::parse(yaml).unwrap_err();
            assert_eq!(error.kind(), crate::error::Kind::Invalid, "{yaml}");
            for want in wants {
                assert!(error.to_string().contains(want), "{yaml}: {error}");
            }
            assert!(!error.to_string().contains('\n'), "{yaml}: {error}");
            assert!(yaml == "[" || !error.to_string().contains("column"), "{yaml}: {error}");
        };
        check("[{podselector: {}}]", &["podselector", "podSelector", "namespaceSelector"]);
        check("[{podSelector: {labels: {}}}]", &["labels", "matchLabels", "matchExpressions"]);
        check("podSelector: {}", &["list of {podSelector: LabelSelector"]);
        check("[{podSelector: {matchExpressions: [{key: a, operator: in, values: [b]}]}}]", &["in", "NotIn", "Exists"]);
        check("[{podSelector: {matchExpressions: [{key: a, operator: In}]}}]", &["[0].podSelector", "needs values"]);
        check(
            "[{}, {namespaceSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}]",
            &["[1].namespaceSelector", "a: operator Exists takes no values"],
        );
        check("[{podSelector: {matchExpressions: [{key: '', operator: Exists}]}}]", &["empty key"]);
        check("[{podSelector: {matchExpressions: [{operator: Exists}]}}]", &["key"]);
        check(
            "[{}, {podSelector: {matchLabels: {a: 1}}}]",
            &["[1].podSelector.matchLabels.a: invalid type: integer `1`"],
        );
        check("[", &["not a list"]);
    }

    #[test]
    fn a_truncated_text_never_panics() {
        for end in 0..CHART.len() {
            let _ = EnablementSelectors::parse(&CHART[..end]);
        }
    }
}
