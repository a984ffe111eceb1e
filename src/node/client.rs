//! Asking the agent that runs on this node.

use crate::cni::DAEMON_SET;
use crate::cni::ask::{Request, ask, cause, words};
use crate::error::{Error, Kind, Result};
use crate::sys::clock;
use crate::sys::run_dir::RunDir;
use std::time::Duration;

/// Time for the agent to answer: it does so at once, or is stuck.
const WAIT: Duration = Duration::from_secs(2);

/// The body of the agent's answer to `GET path`. `NoAgent` when nobody answers, or somebody else; what our agent
/// refuses is an error in its own words.
pub fn get(run_dir: &RunDir, path: &str) -> Result<Vec<u8>> {
    let socket = run_dir.plugin_events();
    let response = ask(&socket, &Request::get(path), None, clock::now() + WAIT).map_err(|e| {
        let remedy = match e.errno() {
            Some(libc::EACCES | libc::EPERM) => "only root may ask it: run this command as root".to_owned(),
            _ => format!("is the {DAEMON_SET} pod running on this node? --cni-agent-run-dir names another directory"),
        };
        Error::of(Kind::NoAgent, format_args!("no agent answers on {} ({}); {remedy}", socket.display(), cause(&e)))
    })?;
    match response.status {
        200 => Ok(response.body),
        404 => {
            let remedy =
                "another agent, or an older one, has taken the socket: ask with the executable it was made with";
            Err(Error::of(
                Kind::NoAgent,
                format_args!("what answers on {} does not know {path}; {remedy}", socket.display()),
            ))
        }
        _ => Err(Error::new(words(&response))),
    }
}

/// What an agent of ours says, decoded; `NoAgent` for anything else.
pub fn decode<T: serde::de::DeserializeOwned>(run_dir: &RunDir, body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|e| {
        let socket = run_dir.plugin_events();
        Error::of(
            Kind::NoAgent,
            format_args!("what answers on {} is not an agent of this version ({e})", socket.display()),
        )
    })
}
