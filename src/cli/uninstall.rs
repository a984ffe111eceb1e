//! `uninstall`: takes the plugin, its configuration and its kubeconfig off the node, without API or agent.

use super::page::Page;
use crate::config::Config;
use crate::config::option::{Name, Row, Section, Spec, Takes, Variables, fill, specs};
use crate::config::table;
use crate::error::Result;
use crate::install::{self, Run};
use crate::pod::overrides;
use std::ffi::OsString;

const ABOUT: &str = "Takes our entry out of the CNI configuration, removes the plugin's kubeconfig, and last the plugin \
                     itself, unless a sandbox still needs it to be torn down. Needs neither API nor agent, prints what \
                     it does, and may be repeated. The other options mean what they mean to the agent; give those that \
                     the agent was given.";

const DRY_RUN: &[Row<bool>] = &[Row {
    spec: Spec {
        name: Name::FlagOnly("dry-run"),
        takes: Takes::Switch,
        default: "",
        section: Section::Command,
        help: "Only print what would be done.",
    },
    set: |dry, value| {
        *dry = overrides::parse_bool(value).ok_or_else(|| "true or false".to_owned())?;
        Ok(())
    },
}];

/// What was asked for.
#[derive(Debug)]
pub enum Request {
    /// The usage text.
    Help(String),
    /// To remove what these options installed.
    Uninstall(Box<install::Options>, Run),
}

/// How it is called.
pub fn page() -> Page {
    let specs = [specs(DRY_RUN), specs(table::TABLE)].concat();
    Page { synopsis: "uninstall [OPTION…]", about: ABOUT, operand: None, specs }
}

/// Parses the arguments that follow the command.
pub fn parse(args: &[OsString], variables: &Variables) -> Result<Request> {
    let page = page();
    let arguments = page.scan_options(args)?;
    if arguments.help {
        return Ok(Request::Help(page.usage()));
    }
    let mut dry = false;
    fill(DRY_RUN, &arguments.flags, variables, &mut dry)?;
    // The remarks are about what an agent would do with the options.
    let (config, _) = Config::read(&arguments.flags, variables)?;
    Ok(Request::Uninstall(Box::new(config.install()), if dry { Run::Dry } else { Run::Real }))
}
