//! Whether the API server answers, where there is one.

use super::finding::Finding;
use super::options::Options;
use crate::error::{Kind, Result};
use crate::kube::client::{Client, Patience};
use crate::kube::config::Config;
use std::time::Duration;

/// For its answer: people wait for it.
const WAIT: Duration = Duration::from_secs(2);

type Answer = Result<(), (Kind, String)>;

#[derive(Debug)]
pub(super) struct Facts {
    /// The server and its answer; nothing when none is configured.
    asked: Option<(String, Answer)>,
    /// Pods come from it.
    cluster: bool,
}

impl Facts {
    pub(super) fn gather(options: &Options) -> Self {
        let ask = |api| -> (String, Result<()>) {
            let config = match Config::load(api) {
                Ok(config) => config,
                Err(e) => return ("its configuration".to_owned(), Err(e)),
            };
            let server = config.server().to_owned();
            let answer = Client::new(config).get_namespace(&options.own_namespace, Patience::once(WAIT));
            (server, answer.map(drop))
        };
        let asked = options.api.as_ref().map(ask);
        let asked = asked.map(|(server, answer)| (server, answer.map_err(|e| (e.kind(), e.to_string()))));
        Facts { asked, cluster: options.cluster }
    }

    pub(super) fn judge(&self) -> Vec<Finding> {
        const CHECK: &str = "API server";
        let Some((server, answer)) = &self.asked else {
            return if self.cluster {
                let finding = "none is known: neither KUBERNETES_SERVICE_HOST nor KUBECONFIG is set";
                vec![Finding::warn(CHECK, &finding, &"run doctor in the agent's container, or set KUBECONFIG")]
            } else {
                Vec::new()
            };
        };
        vec![match answer {
            Ok(()) | Err((Kind::NotFound, _)) => Finding::ok(CHECK, &format_args!("{server} answers")),
            Err((Kind::Unauthorized, e)) => Finding::fail(
                CHECK,
                &format_args!("{server}: {e}"),
                &"the credential has expired or is another cluster's",
            ),
            Err((Kind::Forbidden, e)) => {
                let remedy = "grant the agent's ServiceAccount get, list and watch of pods and namespaces";
                Finding::fail(CHECK, &format_args!("{server}: {e}"), &remedy)
            }
            Err((_, e)) => Finding::fail(
                CHECK,
                &format_args!("{server}: {e}"),
                &"is it up, and is it reachable from this network namespace? Pods that are enrolled stay so",
            ),
        }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Grade;

    #[test]
    fn an_answer_is_an_answer() {
        let check = |answer: Option<Result<(), Kind>>, cluster, want: &[Grade]| {
            let asked = answer.map(|a| ("https://a".to_owned(), a.map_err(|kind| (kind, "e".to_owned()))));
            let found = Facts { asked, cluster }.judge();
            assert_eq!(found.iter().map(|finding| finding.result).collect::<Vec<_>>(), want);
        };
        check(None, false, &[]);
        check(None, true, &[Grade::Warn]);
        check(Some(Ok(())), true, &[Grade::Ok]);
        check(Some(Err(Kind::NotFound)), true, &[Grade::Ok]);
        for kind in [Kind::Unauthorized, Kind::Forbidden, Kind::TimedOut, Kind::Other] {
            check(Some(Err(kind)), true, &[Grade::Fail]);
        }
    }
}
