//! `agent`, also called `install-cni`: the daemon.

use super::page::Page;
use crate::config::Config;
use crate::config::option::{Remark, Variables, specs};
use crate::config::table;
use crate::error::Result;
use std::ffi::OsString;

const ABOUT: &str = "The node agent: puts the CNI plugin on the node and keeps it there, programs traffic rules inside \
                     pods and hands their network namespaces to ztunnel, until SIGTERM.";

/// What was asked for.
#[derive(Debug)]
pub enum Request {
    /// The usage text.
    Help(String),
    /// To run; with what is to be said once there is a log.
    Run(Box<Config>, Vec<Remark>),
}

/// How it is called.
pub fn page() -> Page {
    Page { synopsis: "agent [OPTION…]", about: ABOUT, operand: None, specs: specs(table::TABLE) }
}

/// Parses the arguments that follow the command.
pub fn parse(args: &[OsString], variables: &Variables) -> Result<Request> {
    let page = page();
    let arguments = page.scan_options(args)?;
    if arguments.help {
        return Ok(Request::Help(page.usage()));
    }
    let (config, remarks) = Config::read(&arguments.flags, variables)?;
    Ok(Request::Run(Box::new(config), remarks))
}
