//! Looks at a node from outside and says what is wrong with it.
//!
//! Each part gathers facts, and judges them in a pure function: [`kernel`], [`firewall`], [`process`], [`installation`]
//! with [`platform`], [`agent`] with [`cni_status`], and [`server`]. Nothing is changed on the node; what has to be
//! tried is tried in namespaces that are thrown away.

mod agent;
mod cni_status;
mod finding;
mod firewall;
mod installation;
mod kernel;
mod options;
mod platform;
mod process;
mod server;

pub use finding::{Finding, Grade, Report};
pub use options::Options;

use crate::error::Result;
use crate::sys::thread;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Examines the node. What may take time runs side by side.
pub fn examine(options: &Arc<Options>) -> Result<Report> {
    let firewall = aside("firewall", options, |options| firewall::Facts::gather(options).judge(options))?;
    let server = aside("api-server", options, |options| server::Facts::gather(options).judge())?;
    let kernel = kernel::Facts::gather(options);
    let process = process::Facts::gather(options);
    let installation = installation::Facts::gather(options);
    let agent = agent::Facts::gather(options);

    let mut findings = process.judge();
    findings.extend(kernel.judge(options));
    findings.extend(firewall.join().unwrap_or_else(|_| vec![stuck("packet filter")]));
    findings.extend(installation.judge(options));
    findings.extend(agent.judge(options));
    findings.extend(cni_status::judge(options, installation.has_gate(), agent.status(), process.off_host));
    findings.extend(server.join().unwrap_or_else(|_| vec![stuck("API server")]));
    Ok(Report(findings))
}

/// Checks that may take time, on a thread of their own.
fn aside(name: &str, options: &Arc<Options>, check: fn(&Options) -> Vec<Finding>) -> Result<JoinHandle<Vec<Finding>>> {
    let options = Arc::clone(options);
    thread::spawn(name, move || check(&options))
}

fn stuck(check: &str) -> Finding {
    Finding::fail(check, &"the check itself failed", &"please report it, with what was printed before this")
}
