//! `agent`, also called `install-cni`: the daemon.

use super::{scan, usage};
use crate::config::Config;
use crate::config::option::{Remark, Spec, Variables};
use crate::config::table;
use crate::error::{Error, Kind, Result};
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

/// Parses the arguments that follow the command.
pub fn parse(args: &[OsString], variables: &Variables) -> Result<Request> {
    let specs: Vec<Spec> = table::TABLE.iter().map(|row| row.spec).collect();
    let arguments = scan(args, &specs)?;
    if arguments.help {
        return Ok(Request::Help(usage("agent [OPTION…]", ABOUT, &specs)));
    }
    if let Some(operand) = arguments.operands.first() {
        return Err(Error::of(
            Kind::Usage,
            format_args!("unexpected argument {operand:?}; agent --help lists the options"),
        ));
    }
    let (config, remarks) = Config::read(&arguments.flags, variables)?;
    Ok(Request::Run(Box::new(config), remarks))
}
