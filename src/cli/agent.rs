//! `agent`, also called `install-cni`: the daemon.

use super::page::{Page, Request};
use crate::config::Config;
use crate::config::option::{Remark, Variables, specs};
use crate::config::table;
use crate::error::Result;
use std::ffi::OsString;

const ABOUT: &str = "The node agent: puts the CNI plugin on the node and keeps it there, programs traffic rules inside \
                     pods and hands their network namespaces to ztunnel, until SIGTERM.";

/// How it is called.
pub fn page() -> Page {
    Page { synopsis: "agent [OPTION…]", about: ABOUT, operand: None, specs: specs(table::TABLE) }
}

/// Parses the arguments that follow the command: the configuration, and what is to be said once there is a log.
pub fn parse(args: &[OsString], variables: &Variables) -> Result<Request<(Config, Vec<Remark>)>> {
    page().request(args, |arguments| Config::read(&arguments.flags, variables))
}
