//! Which pods started before the plugin was there.

use crate::pod::failed_init::Termination;
use crate::pod::query::FieldSelector;
use crate::pod::selector::LabelSelector;
use crate::pod::types::Pod;

/// What a broken pod looks like. Whatever is empty (or 0) does not matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// `--repair-sidecar-annotation`: it carries this annotation.
    pub annotation: String,
    /// `--repair-init-container-name`: the container that failed.
    pub container: String,
    /// `--repair-init-container-exit-code`.
    pub exit_code: i32,
    /// `--repair-init-container-termination-message`; blanks around it do not count.
    pub message: String,
    /// `--repair-label-selectors`.
    pub labels: LabelSelector,
    /// `--repair-field-selectors`.
    pub fields: FieldSelector,
}

impl Filter {
    /// The latest failure that shows a pod to be broken. A pod that is going away anyway is not.
    pub fn failure<'a>(&self, pod: &'a Pod) -> Option<&'a Termination> {
        let failed = pod.failed_init.as_deref().filter(|_| !pod.being_deleted)?;
        let annotation = &self.annotation;
        let annotated = annotation.is_empty()
            || pod.annotations.contains_key(annotation)
            || failed.other_annotations.contains(annotation);
        if !annotated || !self.labels.matches(&pod.labels) || !self.fields.matches(pod) {
            return None;
        }
        let any_or = |wanted: &str, found: &str| wanted.trim().is_empty() || wanted.trim() == found.trim();
        failed.failures.iter().find(|failure| {
            any_or(&self.container, &failure.container)
                && any_or(&self.message, &failure.message)
                && (self.exit_code == 0 || self.exit_code == failure.exit_code)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::object::decode_pod;
    use crate::pod::query;

    /// The options' defaults.
    fn usual() -> Filter {
        Filter {
            annotation: "sidecar.istio.io/status".to_owned(),
            container: "istio-validation".to_owned(),
            exit_code: 126,
            ..Filter::default()
        }
    }

    const BROKEN: &str = r#"{
        "metadata": {"name": "web", "namespace": "a", "labels": {"app": "web"},
            "annotations": {"sidecar.istio.io/status": "{}", "example.com/mesh": ""}},
        "spec": {"restartPolicy": "Always"},
        "status": {"phase": "Pending", "initContainerStatuses": [
            {"name": "first", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
            {"name": "istio-validation", "restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
             "lastState": {"terminated": {"exitCode": 126, "reason": "Error", "message": "not redirected\n"}}}]}}"#;

    #[test]
    fn broken_pods_and_others() {
        let check = |filter: Filter, text: &str, want: bool| {
            let pod = decode_pod(text).unwrap();
            assert_eq!(filter.failure(&pod).is_some(), want, "{filter:?} {text}");
        };
        check(usual(), BROKEN, true);
        let with = |change: fn(&mut Filter)| {
            let mut filter = usual();
            change(&mut filter);
            filter
        };
        check(Filter::default(), BROKEN, true);
        check(with(|f| f.annotation = "example.com/mesh".into()), BROKEN, true);
        check(with(|f| f.annotation = "example.com/other".into()), BROKEN, false);
        check(with(|f| f.container = "first".into()), BROKEN, false);
        check(with(|f| f.container = String::new()), BROKEN, true);
        check(with(|f| f.exit_code = 1), BROKEN, false);
        check(with(|f| f.exit_code = 0), BROKEN, true);
        check(with(|f| f.message = " not redirected".into()), BROKEN, true);
        check(with(|f| f.message = "redirected".into()), BROKEN, false);
        check(with(|f| f.labels = query::labels("app=web").unwrap()), BROKEN, true);
        check(with(|f| f.labels = query::labels("app!=web").unwrap()), BROKEN, false);
        check(with(|f| f.fields = FieldSelector::parse("metadata.namespace=a").unwrap()), BROKEN, true);
        check(with(|f| f.fields = FieldSelector::parse("metadata.namespace!=a").unwrap()), BROKEN, false);

        // A Job that is not started again has only a current state.
        let job = BROKEN
            .replace("Always", "Never")
            .replace(r#""state": {"waiting": {"reason": "CrashLoopBackOff"}}"#, "")
            .replace(r#""restartCount": 2, ,"#, "")
            .replace("lastState", "state");
        check(usual(), &job, true);
        // Succeeded since; running again; another end in between; never failed.
        let state = |state: &str| BROKEN.replace(r#"{"waiting": {"reason": "CrashLoopBackOff"}}"#, state);
        check(usual(), &state(r#"{"terminated": {"exitCode": 0, "reason": "Completed"}}"#), false);
        check(usual(), &state(r#"{"running": {"startedAt": "2026-11-30T05:13:08Z"}}"#), true);
        check(usual(), &state(r#"{"terminated": {"exitCode": 137, "reason": "OOMKilled"}}"#), true);
        check(usual(), &BROKEN.replace("126", "0"), false);
        check(usual(), &BROKEN.replace("sidecar.istio.io/status", "sidecar.istio.io/other"), false);
        check(usual(), &BROKEN.replace(r#""name": "web","#, r#""name": "web", "deletionTimestamp": "x","#), false);
        check(usual(), r#"{"metadata": {"name": "web"}}"#, false);
    }
}
