//! Selectors in the one-line syntax of the API's `labelSelector` and `fieldSelector` parameters
//! (`--repair-label-selectors`, `--repair-field-selectors`).

use super::selector::{LabelSelector, Requirement, Test};
use super::types::Pod;
use crate::error::Result;
use crate::invalid;
use std::collections::BTreeSet;

/// Parses `a=b,c!=d,e in (f,g),h notin (i),j,!k`: all must hold, an empty text matches everything. Fails with `Invalid`
/// and says what it did not understand.
pub fn labels(text: &str) -> Result<LabelSelector> {
    terms(text)?.into_iter().map(requirement).collect::<Result<_>>().map(LabelSelector)
}

/// What is between the commas that are not inside parentheses.
fn terms(text: &str) -> Result<Vec<&str>> {
    let mut terms = Vec::new();
    let (mut inside, mut start) = (false, 0);
    for (at, c) in text.char_indices() {
        match (c, inside) {
            ('(', false) => inside = true,
            (')', true) => inside = false,
            ('(', true) | (')', false) => return Err(invalid!("{text:?}: parentheses do not match")),
            (',', false) => {
                terms.extend(text.get(start..at));
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(invalid!("{text:?}: parentheses do not match"));
    }
    terms.extend(text.get(start..));
    Ok(terms.into_iter().map(str::trim).filter(|term| !term.is_empty()).collect())
}

fn requirement(term: &str) -> Result<Requirement> {
    let (key, test) = if let Some((key, equal, value)) = equality(term) {
        let values = BTreeSet::from([value.to_owned()]);
        (key, if equal { Test::In(values) } else { Test::NotIn(values) })
    } else if let Some(list) = term.strip_suffix(')') {
        let (head, list) = list.split_once('(').unwrap_or_default();
        let values = list.split(',').map(|value| value.trim().to_owned()).collect();
        match head.trim().split_once(char::is_whitespace).map(|(key, operator)| (key, operator.trim())) {
            Some((key, "in")) => (key, Test::In(values)),
            Some((key, "notin")) => (key, Test::NotIn(values)),
            _ => return Err(invalid!("{term:?}: expected KEY in (A,B) or KEY notin (A,B)")),
        }
    } else if let Some(key) = term.strip_prefix('!') {
        (key.trim(), Test::DoesNotExist)
    } else {
        (term, Test::Exists)
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '-' | '_');
    if key.is_empty() || !key.chars().all(plain) {
        return Err(invalid!("{term:?}: expected KEY=VALUE, KEY!=VALUE, KEY in (A,B), KEY notin (A,B), KEY or !KEY"));
    }
    Ok(Requirement { key: key.to_owned(), test })
}

/// `KEY=VALUE`, `KEY==VALUE` or `KEY!=VALUE`.
fn equality(term: &str) -> Option<(&str, bool, &str)> {
    let (key, value) = term.split_once('=')?;
    let (key, equal) = key.strip_suffix('!').map_or((key, true), |key| (key, false));
    Some((key.trim(), equal, value.strip_prefix('=').unwrap_or(value).trim()))
}

/// Requirements on fields of a pod: all must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<(Field, bool, String)>);

/// A field that can be selected by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Name,
    Namespace,
    ServiceAccount,
    HostNetwork,
    RestartPolicy,
    Phase,
    PodIp,
}

impl Field {
    /// Of those of the API the ones that are known of a pod that failed, but for its node: that is ours.
    const NAMES: [(&str, Field); 7] = [
        ("metadata.name", Field::Name),
        ("metadata.namespace", Field::Namespace),
        ("spec.serviceAccountName", Field::ServiceAccount),
        ("spec.hostNetwork", Field::HostNetwork),
        ("spec.restartPolicy", Field::RestartPolicy),
        ("status.phase", Field::Phase),
        ("status.podIP", Field::PodIp),
    ];

    fn of(self, pod: &Pod) -> String {
        let failed = pod.failed_init.as_deref();
        match self {
            Field::Name => pod.name.name.clone(),
            Field::Namespace => pod.name.namespace.clone(),
            Field::ServiceAccount => pod.service_account.clone(),
            Field::HostNetwork => pod.host_network.to_string(),
            Field::RestartPolicy => failed.map_or_else(String::new, |failed| failed.restart_policy.clone()),
            Field::Phase => failed.map_or_else(String::new, |failed| failed.phase.clone()),
            Field::PodIp => pod.ips.first().map_or_else(String::new, ToString::to_string),
        }
    }
}

impl FieldSelector {
    /// Parses `metadata.namespace!=a,status.phase=Pending`. Fails with `Invalid` and names the fields there are.
    pub fn parse(text: &str) -> Result<Self> {
        let terms = text.split(',').map(str::trim).filter(|term| !term.is_empty());
        let parse = |term| {
            let (name, equal, value) =
                equality(term).ok_or_else(|| invalid!("{term:?}: expected FIELD=VALUE or FIELD!=VALUE"))?;
            let field = Field::NAMES.iter().find(|(known, _)| *known == name).map(|(_, field)| *field);
            let known = || Field::NAMES.map(|(name, _)| name).join(", ");
            Ok((field.ok_or_else(|| invalid!("{term:?}: the fields are {}", known()))?, equal, value.to_owned()))
        };
        terms.map(parse).collect::<Result<_>>().map(FieldSelector)
    }

    /// Whether all of it holds for a pod one of whose init containers has failed.
    pub fn matches(&self, pod: &Pod) -> bool {
        self.0.iter().all(|(field, equal, value)| (field.of(pod) == *value) == *equal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::object::decode_pod;
    use crate::pod::types::StringMap;

    #[test]
    fn label_selectors() {
        let check = |selector: &str, pairs: &[(&str, &str)], want: bool| {
            let map: StringMap = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            assert_eq!(labels(selector).unwrap().matches(&map), want, "{selector} {pairs:?}");
        };
        for (selector, with, without) in [
            ("", true, true),
            ("app=web", true, false),
            ("app == web", true, false),
            ("app!=web", false, true),
            ("app in (web, db)", true, false),
            ("app notin (web,db)", false, true),
            ("app", true, false),
            ("! app", false, true),
            ("app,app in (db)", false, false),
            (" app=web , example.com/x!=y ", true, false),
        ] {
            check(selector, &[("app", "web")], with);
            check(selector, &[("other", "web")], without);
        }
        for wrong in ["a in b", "a in (b", "a)", "a ((b))", "=b", "!", "a b", "a>5", "a of (b)", "(b)"] {
            let text = labels(wrong).unwrap_err().to_string();
            assert!(text.contains(&format!("{wrong:?}")), "{wrong}: {text}");
        }
    }

    #[test]
    fn field_selectors() {
        let pod = decode_pod(
            r#"{"metadata":{"name":"a","namespace":"b"},"spec":{"restartPolicy":"Never"},"status":{"phase":"Failed",
               "podIP":"10.0.0.1","initContainerStatuses":[{"name":"v","state":{"terminated":{"exitCode":1}}}]}}"#,
        )
        .unwrap();
        let check = |selector: &str, want| assert_eq!(FieldSelector::parse(selector).unwrap().matches(&pod), want);
        check("", true);
        check("metadata.name=a,metadata.namespace==b", true);
        check("metadata.namespace!=b", false);
        check("spec.restartPolicy=Never, status.phase=Failed,status.podIP=10.0.0.1", true);
        check("spec.restartPolicy=Always", false);
        check("spec.hostNetwork=false,spec.serviceAccountName=default", true);
        for wrong in ["metadata.name", "metadata.labels=a", "spec.nodeName=x"] {
            let text = FieldSelector::parse(wrong).unwrap_err().to_string();
            assert!(text.contains(wrong), "{text}");
        }
    }
}
