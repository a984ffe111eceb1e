//! How a command is called: one description from which its arguments are taken apart and its usage text, its part of
//! the man page and its completion are made.

use super::nearest::nearest;
use crate::config::option::{Flags, Name, Row, Section, Spec, Takes};
use crate::config::value;
use crate::error::{Error, Kind, Result};
use std::ffi::OsString;

/// The option of commands that print for people or for scripts.
pub const JSON: &[Row<bool>] = &[Row {
    spec: Spec {
        name: Name::FlagOnly("json"),
        takes: Takes::Switch,
        default: "",
        section: Section::Command,
        help: "Print JSON, on one line.",
    },
    set: |json, value| {
        *json = value::boolean(value)?;
        Ok(())
    },
}];

/// A command as people see it.
#[derive(Debug)]
pub struct Page {
    /// What follows `ferrule`: `rules [OPTION…] (POD_FILE | --host)`.
    pub synopsis: &'static str,
    /// What it does, in a few sentences.
    pub about: &'static str,
    /// What its one operand may be, if it takes one.
    pub operand: Option<Takes>,
    /// Its options.
    pub specs: Vec<Spec>,
}

/// The arguments of a command, taken apart.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// `--help` is among them: nothing else counts.
    pub help: bool,
    /// Options.
    pub flags: Flags,
    /// What is no option.
    pub operands: Vec<OsString>,
}

/// What somebody wants of a command.
#[derive(Debug)]
pub enum Request<T> {
    /// The usage text, which is in here.
    Help(String),
    /// That the command does this.
    Run(T),
}

impl Page {
    /// Takes arguments apart and has them read, unless they ask for help. An unknown option is a `Usage` error that names
    /// the nearest, and so is an operand where the command takes options only.
    pub fn request<T>(&self, args: &[OsString], read: impl FnOnce(Arguments) -> Result<T>) -> Result<Request<T>> {
        let arguments = scan(args, &self.specs)?;
        if arguments.help {
            return Ok(Request::Help(self.usage()));
        }
        if let (None, Some(operand)) = (self.operand, arguments.operands.first()) {
            let command = self.synopsis.split(' ').next().unwrap_or_default();
            let message = format_args!("unexpected argument {operand:?}; {command} --help lists the options");
            return Err(Error::of(Kind::Usage, message));
        }
        read(arguments).map(Request::Run)
    }

    /// Text of `--help`: every option with its variable and default.
    pub fn usage(&self) -> String {
        let Page { synopsis, about, specs, .. } = self;
        let mut text = format!("Usage: ferrule {synopsis}\n\n{}", wrapped(about, ""));
        if !specs.is_empty() {
            text += "\nA flag wins over its environment variable; an empty variable counts as not set.\n";
        }
        for (section, heading) in Section::ALL {
            let mut members = specs.iter().filter(|spec| spec.section == section).peekable();
            if members.peek().is_some() {
                text += &format!("\n{heading}:\n");
            }
            for spec in members {
                text += &describe(spec);
            }
        }
        text
    }
}

fn scan(args: &[OsString], specs: &[Spec]) -> Result<Arguments> {
    use lexopt::Arg;
    let usage = |e: lexopt::Error| Error::of(Kind::Usage, e);
    let mut found = Arguments::default();
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next().map_err(usage)? {
        let (called, spec) = match arg {
            Arg::Long("help") | Arg::Short('h') => return Ok(Arguments { help: true, ..Arguments::default() }),
            Arg::Long(name) => (format!("--{name}"), specs.iter().find(|spec| spec.name.flag() == Some(name))),
            Arg::Short(letter) => (format!("-{letter}"), specs.iter().find(|spec| spec.name.letter() == Some(letter))),
            Arg::Value(operand) => {
                found.operands.push(operand);
                continue;
            }
        };
        let Some(spec) = spec else { return Err(unknown_option(&called, specs)) };
        let value = match spec.takes {
            Takes::Switch => parser.optional_value().unwrap_or_else(|| "true".into()),
            Takes::Value(_) | Takes::OneOf(_) => parser.value().map_err(usage)?,
        };
        let value = value
            .into_string()
            .map_err(|value| Error::of(Kind::Usage, format_args!("option {called}: {value:?} is not UTF-8")))?;
        if let Some(flag) = spec.name.flag() {
            found.flags.insert(flag, value);
        }
    }
    Ok(found)
}

fn unknown_option(option: &str, specs: &[Spec]) -> Error {
    let flags: Vec<String> = specs.iter().filter_map(|spec| spec.name.flag()).map(|flag| format!("--{flag}")).collect();
    let nearest = nearest(option, flags.iter().map(String::as_str));
    Error::of(Kind::Usage, format_args!("unknown option {option}{nearest}; --help lists all"))
}

fn describe(spec: &Spec) -> String {
    let help = if spec.help.is_empty() { String::new() } else { wrapped(spec.help, "        ") };
    format!("  {}\n        [{}]\n{help}", called(spec), notes(spec))
}

/// An option as it is typed: `-p, --envoy-port PORT`.
pub fn called(spec: &Spec) -> String {
    let letter = spec.name.letter().map_or(String::new(), |letter| format!("-{letter}, "));
    match (spec.name.flag(), spec.takes) {
        (Some(flag), Takes::Switch) => format!("{letter}--{flag}[=BOOL]"),
        (Some(flag), Takes::Value(value)) => format!("{letter}--{flag} {value}"),
        (Some(flag), Takes::OneOf(words)) => format!("{letter}--{flag} {}", words.join("|")),
        (None, Takes::Switch) => "variable only: BOOL".to_owned(),
        (None, Takes::Value(value)) => format!("variable only: {value}"),
        (None, Takes::OneOf(words)) => format!("variable only: {}", words.join("|")),
    }
}

/// Its variable and default: `variable ENVOY_PORT, default 15001`.
pub fn notes(spec: &Spec) -> String {
    let variable = spec.name.variable().map(|name| format!("variable {name}, ")).unwrap_or_default();
    let default = if spec.default.is_empty() { "no default".to_owned() } else { format!("default {}", spec.default) };
    variable + &default
}

/// Breaks a text into lines of at most 100 characters, each after `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = String::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && indent.len() + line.chars().count() + 1 + word.chars().count() > 100 {
            lines += &format!("{indent}{line}\n");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    lines + &format!("{indent}{line}\n")
}
