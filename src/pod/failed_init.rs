//! What the kubelet reports of init containers that failed: kept of a pod only where one did.

use serde::{Deserialize, Deserializer};

/// A pod one of whose init containers has failed, and what race repair judges it by besides what is kept of every pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FailedInit {
    /// `metadata.resourceVersion` of the object that says so; empty in a file.
    pub version: String,
    /// Keys of the annotations that are not kept.
    pub other_annotations: Vec<String>,
    /// `spec.restartPolicy`.
    pub restart_policy: String,
    /// `status.phase`.
    pub phase: String,
    /// Of each container the failures that count, the latest first.
    pub failures: Vec<Termination>,
}

/// An init container that ended without success, and has not ended with success since.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Termination {
    /// The container.
    pub container: String,
    /// Its exit code.
    pub exit_code: i32,
    /// Its last words: what it wrote to its termination log, 4 KiB at most.
    pub message: String,
    /// Tells one run of the container from another.
    pub run: String,
}

/// An entry of `status.initContainerStatuses`.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ContainerStatus {
    name: String,
    #[serde(deserialize_with = "or_default")]
    restart_count: i64,
    #[serde(deserialize_with = "or_default")]
    state: State,
    #[serde(deserialize_with = "or_default")]
    last_state: State,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct State {
    terminated: Option<Terminated>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Terminated {
    exit_code: i32,
    #[serde(deserialize_with = "or_default")]
    reason: String,
    #[serde(deserialize_with = "or_default")]
    message: String,
    #[serde(deserialize_with = "or_default", rename = "containerID")]
    container_id: String,
    #[serde(deserialize_with = "or_default")]
    finished_at: String,
}

impl ContainerStatus {
    /// What counts of it. In its current state a container may have failed for good (`restartPolicy: Never`), or be
    /// about to be started again; one whose last end was a success has not failed.
    pub(super) fn failures(self) -> impl Iterator<Item = Termination> {
        let ContainerStatus { name, restart_count, state, last_state } = self;
        let succeeded = state.terminated.as_ref().is_some_and(Terminated::is_success);
        let ends = [state.terminated, last_state.terminated].into_iter().flatten();
        ends.filter(move |end| !succeeded && !end.is_success()).map(move |end| {
            let named = [end.container_id, end.finished_at].into_iter().find(|name| !name.is_empty());
            Termination {
                container: name.clone(),
                exit_code: end.exit_code,
                message: end.message,
                run: named.unwrap_or_else(|| restart_count.to_string()),
            }
        })
    }
}

impl Terminated {
    fn is_success(&self) -> bool {
        self.exit_code == 0 || self.reason == "Completed"
    }
}

/// `null` counts as absent.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(d: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_as_a_failure() {
        let check = |state: &str, last: &str, want: &[(i32, &str, &str)]| {
            let json = format!(r#"{{"name":"v","restartCount":3,"state":{state},"lastState":{last}}}"#);
            let status: ContainerStatus = serde_json::from_str(&json).unwrap();
            let found: Vec<_> = status.failures().collect();
            let found: Vec<_> = found.iter().map(|f| (f.exit_code, f.message.as_str(), f.run.as_str())).collect();
            assert_eq!(found, want, "{json}");
        };
        let ended = |code: i32, id: &str| {
            let reason = if code == 0 { "Completed" } else { "Error" };
            format!(
                r#"{{"terminated":{{"exitCode":{code},"reason":"{reason}","message":"m{code}","containerID":"{id}",
                    "startedAt":"2026-11-30T05:13:01Z","finishedAt":"2026-11-30T05:13:06Z"}}}}"#
            )
        };
        let waiting = r#"{"waiting":{"reason":"CrashLoopBackOff","message":"back-off 10s"}}"#;
        let running = r#"{"running":{"startedAt":"2026-11-30T05:13:08Z"}}"#;
        check(waiting, &ended(126, "a"), &[(126, "m126", "a")]);
        check(running, &ended(126, "a"), &[(126, "m126", "a")]);
        // A container that is not started again has no last state.
        check(&ended(126, "a"), "{}", &[(126, "m126", "a")]);
        check(&ended(126, "a"), "null", &[(126, "m126", "a")]);
        check(&ended(137, "b"), &ended(126, "a"), &[(137, "m137", "b"), (126, "m126", "a")]);
        // It has succeeded since.
        check(&ended(0, "b"), &ended(126, "a"), &[]);
        check(running, &ended(0, "b"), &[]);
        check(&ended(0, "b"), "{}", &[]);
        check(waiting, "{}", &[]);
        check(running, r#"{"terminated":{"exitCode":1,"finishedAt":"t"}}"#, &[(1, "", "t")]);
        check(running, r#"{"terminated":{"exitCode":1,"message":null}}"#, &[(1, "", "3")]);
        check("{}", "{}", &[]);
    }
}
