//! Whether a stop is an upgrade, after which a successor comes, or the end of the agent on this node.
//!
//! Only proof removes anything: what was installed keeps mesh pods from starting without their redirection, and an API
//! server that does not answer says nothing about our future.

use crate::cni::DAEMON_SET;
use crate::error::{Error, Kind};
use crate::kube::client::{Client, Patience};
use crate::sys::clock;
use std::time::Duration;

/// Questions, and the pause between them. All of them fit into the time a kubelet gives us by default.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);
const ASK: Patience = Patience::once(Duration::from_secs(2));

/// What becomes of what was installed, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It stays.
    Stays(String),
    /// It goes.
    Goes(String),
}

/// Decides what a stop is by the DaemonSet in our `namespace` and its wish for our `node`.
pub fn run(client: &Client, namespace: &str, node: &str) -> Verdict {
    let mut last = String::new();
    for number in 0..TRIES {
        if number > 0 {
            clock::sleep(PAUSE);
        }
        match ask(client, namespace, node) {
            Ok(verdict) => return verdict,
            Err(e) => last = e.to_string(),
        }
    }
    Verdict::Stays(format!("the API server did not tell ({last})"))
}

/// An error is no answer.
fn ask(client: &Client, namespace: &str, node: &str) -> Result<Verdict, Error> {
    let name = format!("daemonset {namespace}/{DAEMON_SET}");
    let set = match client.get_daemon_set(namespace, DAEMON_SET, ASK) {
        // Its grants went before it: an uninstallation that is under way.
        Err(e) if matches!(e.kind(), Kind::NotFound | Kind::Unauthorized | Kind::Forbidden) => {
            return Ok(Verdict::Goes(e.to_string()));
        }
        set => set?,
    };
    if set.being_deleted {
        return Ok(Verdict::Goes(format!("{name} is being deleted")));
    }
    if set.node_terms.is_none() {
        return Ok(Verdict::Stays(format!("{name} is there to stay")));
    }
    match client.get_node(node, ASK) {
        Ok(node) if set.wants(&node) => Ok(Verdict::Stays(format!("{name} is there to stay and wants this node"))),
        Ok(_) => Ok(Verdict::Goes(format!("the node affinity of {name} does not fit this node any more"))),
        // The DaemonSet is there; that it does not want this node is not proven.
        Err(e) if matches!(e.kind(), Kind::Unauthorized | Kind::Forbidden) => {
            Ok(Verdict::Stays(format!("{name} is there, and this node's labels cannot be read ({e})")))
        }
        Err(e) if e.kind() == Kind::NotFound => Ok(Verdict::Stays(format!("{name} is there ({e})"))),
        Err(e) => Err(e),
    }
}
