//! An option: its name on the command line and in the environment, its default, and how its value is taken over.
//!
//! Tables of options are the one source for parsing, the environment and the usage text.

use crate::error::{Error, Kind, Result};
use std::collections::BTreeMap;

/// The environment, as `main` read it.
pub type Variables = BTreeMap<String, String>;
/// Values of flags, by name without dashes; of a repeated flag the last one.
pub type Flags = BTreeMap<&'static str, String>;

/// How an option is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// A flag, and the variable of that name in upper case with `_` for `-`.
    Flag(&'static str),
    /// The same, with a letter besides.
    Lettered(char, &'static str),
    /// A flag of one command, without variable.
    FlagOnly(&'static str),
    /// A variable without flag.
    Variable(&'static str),
}

impl Name {
    /// The flag, without dashes.
    pub fn flag(self) -> Option<&'static str> {
        match self {
            Name::Flag(name) | Name::Lettered(_, name) | Name::FlagOnly(name) => Some(name),
            Name::Variable(_) => None,
        }
    }

    /// The letter.
    pub fn letter(self) -> Option<char> {
        match self {
            Name::Lettered(letter, _) => Some(letter),
            Name::Flag(_) | Name::FlagOnly(_) | Name::Variable(_) => None,
        }
    }

    /// The variable.
    pub fn variable(self) -> Option<String> {
        match self {
            Name::Flag(name) | Name::Lettered(_, name) => Some(name.to_uppercase().replace('-', "_")),
            Name::FlagOnly(_) => None,
            Name::Variable(name) => Some(name.to_owned()),
        }
    }
}

/// What an option takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// A boolean; the flag without a value means true.
    Switch,
    /// A value, described by one word in the usage text.
    Value(&'static str),
    /// One of these words.
    OneOf(&'static [&'static str]),
}

/// Where an option stands in the usage text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// What only this command has.
    Command,
    /// Which pods, and how their traffic is redirected.
    Ambient,
    /// The plugin and its configuration on the node.
    Installation,
    /// The node, the cluster, files and sockets.
    Environment,
    /// Logs, metrics, health.
    Observability,
    /// Race repair.
    Repair,
    /// Accepted because people's manifests carry them.
    Ignored,
}

impl Section {
    /// In the order of the usage text, with their headings.
    pub const ALL: [(Section, &'static str); 7] = [
        (Section::Command, "Options of this command"),
        (Section::Ambient, "Ambient mode"),
        (Section::Installation, "Installation"),
        (Section::Environment, "Node, files and sockets"),
        (Section::Observability, "Logs, metrics and health"),
        (Section::Repair, "Race repair (with --pod-source=kubernetes)"),
        (Section::Ignored, "Accepted for compatibility, without effect"),
    ];
}

/// Everything about an option but what it does.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    /// How it is called.
    pub name: Name,
    /// What it takes.
    pub takes: Takes,
    /// The default as a person would write it; empty: there is none.
    pub default: &'static str,
    /// Where it stands in the usage text.
    pub section: Section,
    /// What it means.
    pub help: &'static str,
}

/// What is allowed, where a value is not.
pub type Expected = String;

/// A row of an option table: fills its part of a `T`.
#[derive(Debug, Clone, Copy)]
pub struct Row<T> {
    /// What it is.
    pub spec: Spec,
    /// Takes a value over, or says what is allowed.
    pub set: fn(&mut T, &str) -> Result<(), Expected>,
}

/// What the rows of a table are.
pub fn specs<T>(table: &[Row<T>]) -> Vec<Spec> {
    table.iter().map(|row| row.spec).collect()
}

/// Something to be said once there is a log.
pub type Remark = (log::Level, String);

/// Fills `target` row by row: flag before variable before default. A variable that is empty counts as not set; one
/// of the form `tcp://…` is what Kubernetes injects for a Service of that name and is ignored with a warning.
pub fn fill<T>(table: &[Row<T>], flags: &Flags, variables: &Variables, target: &mut T) -> Result<Vec<Remark>> {
    let mut remarks = Vec::new();
    for row in table {
        let flag = row.spec.name.flag().and_then(|flag| flags.get_key_value(flag));
        let variable = row.spec.name.variable().and_then(|name| variables.get(&name).map(|value| (name, value)));
        let (origin, value) = match (flag, variable) {
            (Some((flag, value)), _) => (format!("option --{flag}"), value.as_str()),
            (None, Some((name, value))) if value.starts_with("tcp://") => {
                let why = "Kubernetes sets it for a Service of that name";
                remarks.push((log::Level::Warn, format!("environment variable {name}={value} is ignored: {why}")));
                ("default".to_owned(), row.spec.default)
            }
            (None, Some((name, value))) if !value.is_empty() => {
                (format!("environment variable {name}"), value.as_str())
            }
            _ if row.spec.default.is_empty() => continue,
            _ => ("default".to_owned(), row.spec.default),
        };
        (row.set)(target, value).map_err(|expected| {
            Error::of(Kind::Usage, format_args!("{origin}: {value:?} is not allowed; expected {expected}"))
        })?;
        if row.spec.section == Section::Ignored && origin != "default" {
            remarks.push((log::Level::Debug, format!("{origin} is accepted for compatibility and has no effect")));
        }
    }
    Ok(remarks)
}
