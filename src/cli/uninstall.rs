//! `uninstall`: takes the plugin, its configuration and its kubeconfig off the node, and what the agent changed in the
//! packet filter, without API or agent.

use super::page::{Page, Request};
use crate::config::Config;
use crate::config::option::{Name, Row, Section, Spec, Takes, Variables, fill, specs};
use crate::config::table;
use crate::error::Result;
use crate::install::{self, Run};
use crate::node::Site;
use crate::pod::overrides;
use std::ffi::OsString;

const ABOUT: &str = "Takes our entry out of the CNI configuration, removes the plugin's kubeconfig, then the plugin \
                     itself, unless a sandbox still needs it to be torn down, and last the rules and probe sets of the \
                     host. Needs neither API nor agent, prints what it does, and may be repeated. The other options mean \
                     what they mean to the agent; give those that the agent was given.";

#[derive(Default)]
struct Wishes {
    dry: bool,
    pods: bool,
}

const WISHES: &[Row<Wishes>] = &[
    Row {
        spec: switch("dry-run", "Only print what would be done."),
        set: |wishes, value| boolean(value).map(|on| wishes.dry = on),
    },
    Row {
        spec: switch("pods", "Also take the rules out of the pods that are in the mesh; else those keep them."),
        set: |wishes, value| boolean(value).map(|on| wishes.pods = on),
    },
];

const fn switch(name: &'static str, help: &'static str) -> Spec {
    Spec { name: Name::FlagOnly(name), takes: Takes::Switch, default: "", section: Section::Command, help }
}

fn boolean(value: &str) -> std::result::Result<bool, String> {
    overrides::parse_bool(value).ok_or_else(|| "true or false".to_owned())
}

/// What to remove.
#[derive(Debug)]
pub struct Uninstall {
    /// What these options installed.
    pub installed: install::Options,
    /// What the agent left in this node's packet filter.
    pub site: Site,
    /// In the pods as well.
    pub pods: bool,
    /// Whether to do it.
    pub run: Run,
}

/// How it is called.
pub fn page() -> Page {
    let specs = [specs(WISHES), specs(table::TABLE)].concat();
    Page { synopsis: "uninstall [OPTION…]", about: ABOUT, operand: None, specs }
}

/// Parses the arguments that follow the command.
pub fn parse(args: &[OsString], variables: &Variables) -> Result<Request<Uninstall>> {
    page().request(args, |arguments| {
        let mut wishes = Wishes::default();
        fill(WISHES, &arguments.flags, variables, &mut wishes)?;
        // The remarks are about what an agent would do with the options.
        let (config, _) = Config::read(&arguments.flags, variables)?;
        let run = if wishes.dry { Run::Dry } else { Run::Real };
        Ok(Uninstall { installed: config.install(), site: config.site_to_clear(), pods: wishes.pods, run })
    })
}
