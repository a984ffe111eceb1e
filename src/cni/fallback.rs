//! What an ADD does when the agent did not decide: it asks the API server, and goes by what the agent last decided where
//! that one cannot be asked either. A failure to decide is never taken for "not in the mesh".

use super::conf::{NetConf, PodArgs};
use super::event::{Failure, code};
use super::outside::Outside;
use super::{DAEMON_SET, ask};
use crate::error::{Error, Kind, Result};
use crate::pod::decision::{Action, Policy, decide as decide_pod};
use crate::pod::redirection::{self, Redirection};
use crate::pod::selector::EnablementSelectors;
use crate::pod::types::{Namespace, Pod, PodName};
use crate::sys::netns::Netns;
use std::net::IpAddr;
use std::path::Path;

/// Asks the API server that a kubeconfig names for a pod and its namespace.
pub type Api = fn(kubeconfig: &Path, pod: &PodName) -> Result<(Pod, Namespace)>;

/// Redirects a pod with these addresses to its sidecar, with what this host has.
pub type Redirect = fn(netns: &Netns, wanted: &Redirection, ips: &[IpAddr], conf: &NetConf) -> Result<()>;

/// What the plugin does without an agent, given by the front door: one that has an agent never comes near it.
#[derive(Debug, Clone, Copy)]
pub struct Doors {
    /// To the API server.
    pub api: Api,
    /// To the packet filter.
    pub redirect: Redirect,
}

/// What is known of the pod without the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Opinion {
    /// It is provably not in the mesh, for this reason.
    Outside(String),
    /// It is in the ambient mesh.
    Ambient,
    /// It has a sidecar.
    Sidecar(Box<Pod>),
    /// It has one, and could not be redirected to it from here, for this reason.
    Unredirected(String),
    /// It is not known, for this reason.
    Unknown(String),
}

/// Decides with the policy that stands in the configuration.
pub(super) fn opinion(conf: &NetConf, pod: &PodArgs, api: Api) -> Opinion {
    let kubeconfig = conf.run_dir.kubeconfig();
    if pod.namespace.is_empty() {
        return Opinion::Unknown("the runtime does not tell the pod's namespace".to_owned());
    }
    let policy = match policy(conf) {
        Ok(policy) => policy,
        Err(e) => return Opinion::Unknown(e.to_string()),
    };
    if !kubeconfig.exists() {
        let why = format!("the API server cannot be asked: there is no {}", kubeconfig.display());
        return recall(conf, &policy, pod, why);
    }
    let name = PodName { namespace: pod.namespace.clone(), name: pod.name.clone() };
    match api(&kubeconfig, &name) {
        Ok((object, namespace)) => judge(&policy, pod, &object, &namespace),
        // It was asked, and knows better than what was decided earlier.
        Err(e) if e.kind() == Kind::NotFound => Opinion::Unknown(e.to_string()),
        Err(e) => recall(conf, &policy, pod, e.to_string()),
    }
}

/// What the agent decided when it last ran. `why`: the API server does not tell.
fn recall(conf: &NetConf, policy: &Policy, pod: &PodArgs, why: String) -> Opinion {
    match Outside::read(&conf.run_dir) {
        Ok(Some(outside)) if outside.proves(policy, pod) => {
            Opinion::Outside(format!("it was not when the agent last decided ({why})"))
        }
        Ok(_) => Opinion::Unknown(why),
        Err(e) => Opinion::Unknown(format!("{why}; {e}")),
    }
}

/// By the API server's objects. Pure.
fn judge(policy: &Policy, pod: &PodArgs, object: &Pod, namespace: &Namespace) -> Opinion {
    if !pod.uid.is_empty() && pod.uid != object.uid && pod.uid != object.runtime_uid() {
        return Opinion::Unknown(format!("the API server knows another pod {} (uid {})", object.name, object.uid));
    }
    let decision = decide_pod(policy, object, &namespace.labels);
    match decision.action {
        Action::None => Opinion::Outside(decision.reason),
        Action::Ambient => Opinion::Ambient,
        Action::Sidecar => Opinion::Sidecar(Box::new(object.clone())),
    }
}

fn policy(conf: &NetConf) -> Result<Policy> {
    let selectors = match &conf.enablement_selectors {
        serde_json::Value::Null => EnablementSelectors::default(),
        selectors => EnablementSelectors::parse(&selectors.to_string())?,
    };
    Ok(Policy {
        ambient_enabled: conf.ambient_enabled,
        selectors,
        exclude_namespaces: conf.exclude_namespaces.clone(),
        exclude_runtime_classes: conf.exclude_runtime_classes.clone(),
        system_namespace: conf.pod_namespace.clone(),
    })
}

/// Redirects a pod with a sidecar without the agent: whether that is done. A bad annotation is the pod's own fault,
/// which no retry mends; where something else fails, the agent may still come.
pub(super) fn redirect(
    opinion: &mut Opinion,
    netns: &Netns,
    told: &[IpAddr],
    conf: &NetConf,
    redirect: Redirect,
) -> Result<bool, Failure> {
    let Opinion::Sidecar(object) = opinion else { return Ok(false) };
    let wanted = redirection::of(object)
        .map_err(|e| Failure::new(code::AGENT_REFUSED, format_args!("pod {}: {e}", object.name)))?;
    for warning in &wanted.warnings {
        log::warn!(pod:% = object.name; "{warning}");
    }
    let ips = if told.is_empty() { &object.ips } else { told };
    match redirect(netns, &wanted, ips, conf) {
        Ok(()) => Ok(true),
        Err(e) => {
            *opinion = Opinion::Unredirected(e.to_string());
            Ok(false)
        }
    }
}

/// Why the agent did not decide.
#[derive(Debug)]
pub(super) enum Undecided {
    /// It cannot be reached, or went away or silent before it answered.
    Unreachable(Error),
    /// It kept saying that it is starting; its last words.
    Starting(String),
    /// What serves the socket is not our agent.
    Foreign {
        /// Status of its answer; 200 is Istio's "enrolled".
        status: u16,
        /// The first line of its answer.
        words: String,
    },
}

/// Decides without the agent. A pod that is not provably outside the mesh makes the runtime come again.
pub(super) fn decide(socket: &Path, undecided: &Undecided, opinion: &Opinion) -> Result<(), Failure> {
    let why = match opinion {
        Opinion::Outside(_) => return Ok(()),
        // Istio's own agent says so in this way.
        Opinion::Ambient if matches!(undecided, Undecided::Foreign { status: 200, .. }) => return Ok(()),
        Opinion::Ambient => "the pod is in the ambient mesh".to_owned(),
        Opinion::Sidecar(_) => "the pod has a sidecar".to_owned(),
        Opinion::Unredirected(_) => "the pod has a sidecar, and no traffic would go there".to_owned(),
        Opinion::Unknown(why) => why.clone(),
    };
    let message = match undecided {
        Undecided::Unreachable(e) => not_ready(socket, &ask::cause(e)),
        Undecided::Starting(words) => not_ready(socket, words),
        Undecided::Foreign { status, words } => not_ready(
            socket,
            &format!(
                "answered {status} {words:?}: the agent of another make, which does not know this plugin's question"
            ),
        ),
    };
    let message = match opinion {
        Opinion::Unredirected(why) => {
            format!("the pod cannot be redirected to its sidecar without the node agent: {why}; {message}")
        }
        _ => message,
    };
    Err(Failure {
        details: format!(
            "{why}; the pod is not started without its traffic redirection, the runtime tries again by itself"
        ),
        ..Failure::new(code::TRY_AGAIN_LATER, message)
    })
}

/// What a person must know first when the agent is missing.
pub(super) fn not_ready(socket: &Path, why: &str) -> String {
    format!("node agent not ready ({}: {why}); is the {DAEMON_SET} pod running on this node?", socket.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::object::{decode_namespace, decode_pod};
    use crate::sys::file::{self, Mode};
    use crate::sys::run_dir::RunDir;

    const SELECTOR: &str = r#"[{"podSelector":{"matchLabels":{"mesh":"on"}}},
        {"namespaceSelector":{"matchLabels":{"mesh":"on"}}}]"#;

    fn conf(selectors: &str) -> NetConf {
        let text = format!(
            r#"{{"cniVersion":"1.0.0","ambient_enabled":true,"cni_agent_run_dir":"/nowhere",
                 "enablement_selectors":{selectors},"pod_namespace":"istio-system"}}"#
        );
        NetConf::parse(text.as_bytes()).unwrap()
    }

    fn judged(selectors: &str, uid: &str, pod: &str, namespace_labels: &str) -> Opinion {
        let pod = decode_pod(&format!(r#"{{"metadata":{{"name":"web","namespace":"a","uid":"u"{pod}}}}}"#)).unwrap();
        let namespace =
            decode_namespace(&format!(r#"{{"metadata":{{"name":"a","labels":{namespace_labels}}}}}"#)).unwrap();
        let args = PodArgs { name: "web".into(), namespace: "a".into(), uid: uid.into() };
        judge(&policy(&conf(selectors)).unwrap(), &args, &pod, &namespace)
    }

    #[test]
    fn judges_by_the_objects_and_the_policy_of_the_configuration() {
        let outside = |reason: &str| Opinion::Outside(reason.to_owned());
        let none = outside("no enablement selector matches the labels of pod and namespace");
        assert_eq!(judged(SELECTOR, "u", "", "{}"), none);
        assert_eq!(judged(SELECTOR, "", "", "{}"), none);
        assert_eq!(judged(SELECTOR, "u", "", r#"{"mesh":"on"}"#), Opinion::Ambient);
        assert_eq!(judged(SELECTOR, "u", r#","labels":{"mesh":"on"}"#, "{}"), Opinion::Ambient);
        assert!(matches!(judged(SELECTOR, "other", "", "{}"), Opinion::Unknown(_)), "a predecessor of that name");
        let mirror = r#","annotations":{"kubernetes.io/config.hash":"hash"}"#;
        assert_eq!(judged(SELECTOR, "hash", mirror, "{}"), none, "a static pod");
        assert!(matches!(judged("null", "u", "", "{}"), Opinion::Outside(_)));
    }

    #[test]
    fn only_proof_lets_a_pod_through() {
        let undecided = || Undecided::Starting("starting".to_owned());
        let sidecar = || Opinion::Sidecar(Box::new(decode_pod(r#"{"metadata":{"name":"web"}}"#).unwrap()));
        let foreign = |status| Undecided::Foreign { status, words: String::new() };
        let check = |undecided: Undecided, opinion: Opinion, passes: bool| {
            let decided = decide(Path::new("/run/x.sock"), &undecided, &opinion);
            assert_eq!(decided.is_ok(), passes, "{undecided:?} {opinion:?}");
            assert!(decided.err().is_none_or(|failure| failure.code == code::TRY_AGAIN_LATER));
        };
        check(undecided(), Opinion::Outside(String::new()), true);
        check(undecided(), Opinion::Ambient, false);
        check(undecided(), sidecar(), false);
        check(undecided(), Opinion::Unknown(String::new()), false);
        check(foreign(200), Opinion::Ambient, true);
        check(foreign(200), sidecar(), false);
        check(foreign(200), Opinion::Unknown(String::new()), false);
        check(foreign(500), Opinion::Ambient, false);
        check(foreign(500), Opinion::Outside(String::new()), true);
    }

    #[test]
    fn what_was_decided_earlier_counts_only_where_the_api_server_does_not_tell() {
        let dir = tempfile::tempdir().unwrap();
        let mut conf = conf(SELECTOR);
        conf.run_dir = RunDir::new(dir.path());
        let write = |path: &Path, bytes: &[u8]| file::replace_volatile(path, bytes, Mode(0o600)).unwrap();
        let check = |api: Api, uid: &str, outside: bool| {
            let args = PodArgs { name: "web".into(), namespace: "a".into(), uid: uid.into() };
            let opinion = opinion(&conf, &args, api);
            assert_eq!(matches!(opinion, Opinion::Outside(_)), outside, "{opinion:?}");
        };
        let never: Api = |_, _| panic!("asked");
        let silent: Api = |_, _| Err(Error::of(Kind::TimedOut, "silent"));
        let unknown: Api = |_, _| Err(Error::of(Kind::NotFound, "no such pod"));
        check(never, "u", false);
        let pod = PodName { namespace: "a".into(), name: "web".into() };
        let told = Outside::new(&policy(&conf).unwrap(), [("u".to_owned(), pod)]).encode().unwrap();
        write(&conf.run_dir.outside(), &told);
        check(never, "u", true);
        check(never, "v", false);
        write(&conf.run_dir.kubeconfig(), b"");
        check(silent, "u", true);
        check(silent, "v", false);
        check(unknown, "u", false);
        write(&conf.run_dir.outside(), &told[..told.len() - 1]);
        check(silent, "u", false);
    }

    #[test]
    fn without_a_kubeconfig_nobody_is_asked() {
        let args = PodArgs { name: "web".into(), namespace: "a".into(), uid: String::new() };
        let never: Api = |_, _| panic!("asked");
        assert!(matches!(opinion(&conf(SELECTOR), &args, never), Opinion::Unknown(why) if why.contains("/nowhere/")));
    }
}
