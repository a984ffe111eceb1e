//! `uninstall`: takes the plugin, its configuration and its kubeconfig off the node, without API or agent.

use super::{scan, usage};
use crate::config::Config;
use crate::config::option::{Name, Row, Section, Spec, Takes, Variables, fill};
use crate::config::table;
use crate::error::{Error, Kind, Result};
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

/// Parses the arguments that follow the command.
pub fn parse(args: &[OsString], variables: &Variables) -> Result<Request> {
    let specs: Vec<Spec> = DRY_RUN.iter().map(|row| row.spec).chain(table::TABLE.iter().map(|row| row.spec)).collect();
    let arguments = scan(args, &specs)?;
    if arguments.help {
        return Ok(Request::Help(usage("uninstall [OPTION…]", ABOUT, &specs)));
    }
    if let Some(operand) = arguments.operands.first() {
        let message = format_args!("unexpected argument {operand:?}; uninstall --help lists the options");
        return Err(Error::of(Kind::Usage, message));
    }
    let mut dry = false;
    fill(DRY_RUN, &arguments.flags, variables, &mut dry)?;
    // The remarks are about what an agent would do with the options.
    let (config, _) = Config::read(&arguments.flags, variables)?;
    Ok(Request::Uninstall(Box::new(config.install()), if dry { Run::Dry } else { Run::Real }))
}
