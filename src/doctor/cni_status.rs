//! The one combination that can cost a node: CNI STATUS fails while the agent or ztunnel is missing, and one of them is
//! not on the host's network. A kubelet whose network is not ready starts no such pod, so it never becomes ready.

use super::finding::Finding;
use super::options::Options;
use crate::cni::is_agent_pod;
use crate::node::view::Status;

/// `installed`: the entry on the node has the gate. `off_host`: this process is not on the host's network.
pub(super) fn judge(
    options: &Options,
    installed: bool,
    status: Option<&Status>,
    off_host: Option<bool>,
) -> Vec<Finding> {
    const CHECK: &str = "status gate";
    const REMEDY: &str = "unset --cni-status-gate, or run both on the host's network (hostNetwork: true)";
    if !installed && !options.install.entry.status_gate {
        return vec![Finding::ok(CHECK, &"off")];
    }
    let mut off = Vec::new();
    if options.switch_to_host_ns {
        off.push("the agent (ALLOW_SWITCH_TO_HOST_NS is set)".to_owned());
    } else if off_host == Some(true) {
        off.push("this process".to_owned());
    }
    let agents = pods(status, &options.own_namespace, is_agent_pod);
    let ztunnels = pods(status, &options.system_namespace, |name| name.starts_with("ztunnel-"));
    let elsewhere = agents.iter().chain(&ztunnels).filter(|(_, host_network)| !host_network);
    off.extend(elsewhere.map(|(name, _)| name.clone()));
    if !off.is_empty() {
        let danger = "a kubelet whose network is not ready does not start them, and this one never gets ready again";
        let finding = format!("on, and refused: not on the host's network: {}; {danger}", off.join(", "));
        return vec![Finding::fail(CHECK, &finding, &REMEDY)];
    }
    if agents.is_empty() || ztunnels.is_empty() && options.ambient {
        let finding = "on, and it cannot be seen here whether agent and ztunnel are on the host's network";
        return vec![Finding::warn(CHECK, &finding, &REMEDY)];
    }
    vec![Finding::ok(CHECK, &"on; agent and ztunnel are on the host's network")]
}

/// The pods whose names begin so, and whether they are on the host's network.
fn pods(status: Option<&Status>, namespace: &str, wanted: fn(&str) -> bool) -> Vec<(String, bool)> {
    let pods = status.map_or(&[][..], |status| &status.pods);
    let wanted = pods.iter().filter(|pod| pod.namespace == namespace && wanted(&pod.name));
    wanted.map(|pod| (format!("{namespace}/{}", pod.name), pod.host_network)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Grade;
    use crate::doctor::options::options;
    use crate::node::view::{PodState, PodStatus};

    fn status(pods: &[(&str, bool)]) -> Status {
        let pods = pods.iter().map(|(name, host_network)| PodStatus {
            uid: (*name).to_owned(),
            namespace: "istio-system".to_owned(),
            name: (*name).to_owned(),
            state: PodState::None,
            reason: String::new(),
            seconds: 0,
            ips: Vec::new(),
            host_network: *host_network,
            netns: None,
            redirection: None,
            preceded: false,
            unheard: false,
        });
        Status {
            version: String::new(),
            ambient: true,
            source: String::new(),
            ready: true,
            reasons: Vec::new(),
            unread: Vec::new(),
            no_ztunnel: None,
            probers: None,
            ztunnels: Vec::new(),
            pods: pods.collect(),
        }
    }

    #[test]
    fn the_gate_is_refused_where_it_may_cost_the_node() {
        use Grade::{Fail, Ok, Warn};
        let check = |flags: &[&str], installed, pods: Option<&[(&str, bool)]>, off_host, want: Grade| {
            let found = judge(&options(flags), installed, pods.map(status).as_ref(), off_host);
            assert_eq!(found.iter().map(|finding| finding.result).collect::<Vec<_>>(), [want], "{found:?}");
        };
        let both: &[(&str, bool)] = &[("istio-cni-node-a", true), ("ztunnel-b", true), ("web", false)];
        let on = ["--ambient-enabled", "--cni-status-gate"];
        check(&[], false, None, Some(true), Ok);
        check(&on, false, Some(both), Some(false), Ok);
        check(&["--ambient-enabled"], true, Some(both), None, Ok);
        check(&on, false, None, None, Warn);
        check(&on, false, Some(&both[..1]), Some(false), Warn);
        check(&on, true, Some(both), Some(true), Fail);
        check(&on, false, Some(&[("istio-cni-node-a", true), ("ztunnel-b", false)]), None, Fail);
        check(&["--ambient-enabled"], true, Some(&[("istio-cni-node-a", false)]), None, Fail);
    }
}
