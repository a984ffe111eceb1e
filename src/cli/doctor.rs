//! `doctor`: is this node as it has to be?
//!
//! Each part gathers facts, and judges them in a pure function: [`kernel`], [`firewall`], [`process`], [`installation`]
//! with [`platform`], [`agent`] with [`gate`], and [`server`]. Nothing is changed on the node; what has to be tried is
//! tried in namespaces that are thrown away.

mod agent;
mod finding;
mod firewall;
mod gate;
mod installation;
mod kernel;
mod platform;
mod process;
mod server;

use super::columns::Colour;
use super::page::{JSON, Page};
use crate::config::doctor::Options;
use crate::config::option::{Variables, fill, specs};
use crate::config::{Config, table};
use crate::error::Result;
use crate::sys::thread;
use finding::Finding;
use std::ffi::OsString;
use std::sync::Arc;
use std::thread::JoinHandle;

pub use finding::Report;

const ABOUT: &str = "Checks the node, one line each, with a remedy where something is wrong: capabilities, kernel \
                     modules, the packet filter, the CNI configuration and its chain, the plugin, the agent and its \
                     sockets, ztunnel, the API server. Nothing is changed. The other options mean what they mean to the \
                     agent; give those that the agent was given. Exit code 1 when a check fails; warnings are none.";

/// What was asked for.
#[derive(Debug)]
pub enum Request {
    /// The usage text.
    Help(String),
    /// An examination.
    Doctor(Box<Doctor>),
}

/// An examination, and how it is shown.
#[derive(Debug)]
pub struct Doctor {
    options: Arc<Options>,
    json: bool,
}

/// How it is called.
pub fn page() -> Page {
    let specs = [specs(JSON), specs(table::TABLE)].concat();
    Page { synopsis: "doctor [OPTION…]", about: ABOUT, operand: None, specs }
}

/// Parses the arguments that follow the command.
pub fn parse(args: &[OsString], variables: &Variables) -> Result<Request> {
    let page = page();
    let arguments = page.scan_options(args)?;
    if arguments.help {
        return Ok(Request::Help(page.usage()));
    }
    let mut json = false;
    fill(JSON, &arguments.flags, variables, &mut json)?;
    let (config, _) = Config::read(&arguments.flags, variables)?;
    Ok(Request::Doctor(Box::new(Doctor { options: Arc::new(config.doctor()), json })))
}

impl Doctor {
    /// Examines the node. What may take time runs side by side.
    pub fn examine(&self) -> Result<Report> {
        let firewall = aside("firewall", &self.options, |options| firewall::Facts::gather(options).judge(options))?;
        let server = aside("api-server", &self.options, |options| server::Facts::gather(options).judge())?;
        let options = &*self.options;
        let kernel = kernel::Facts::gather(options);
        let process = process::Facts::gather(options);
        let installation = installation::Facts::gather(options);
        let agent = agent::Facts::gather(options);

        let mut findings = process.judge();
        findings.extend(kernel.judge(options));
        findings.extend(firewall.join().unwrap_or_else(|_| vec![stuck("packet filter")]));
        findings.extend(installation.judge(options));
        findings.extend(agent.judge(options));
        findings.extend(gate::judge(options, installation.has_gate(), agent.status(), process.off_host));
        findings.extend(server.join().unwrap_or_else(|_| vec![stuck("API server")]));
        Ok(Report(findings))
    }

    /// The report as it is to be shown.
    pub fn text(&self, report: &Report, colour: Colour) -> String {
        if self.json { report.json() } else { report.text(colour) }
    }
}

/// Checks that may take time, on a thread of their own.
fn aside(name: &str, options: &Arc<Options>, check: fn(&Options) -> Vec<Finding>) -> Result<JoinHandle<Vec<Finding>>> {
    let options = Arc::clone(options);
    thread::spawn(name, move || check(&options))
}

fn stuck(check: &str) -> Finding {
    Finding::fail(check, &"the check itself failed", &"please report it, with what was printed before this")
}

/// The options of a node whose agent was given these flags.
#[cfg(test)]
fn options(flags: &[&str]) -> Options {
    let args: Vec<OsString> = flags.iter().map(OsString::from).collect();
    let arguments = page().scan_options(&args).unwrap();
    Config::read(&arguments.flags, &Variables::new()).unwrap().0.doctor()
}
