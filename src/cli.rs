//! From `argv` to a command; arguments to flags, and the usage text, both by the option tables.

pub mod agent;
pub mod iptables;
pub mod plugin;
pub mod rules;
pub mod uninstall;
pub mod wait;

use crate::config::option::{Flags, Section, Spec, Takes};
use crate::error::{Error, Kind, Result};
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// What this process is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Personality {
    /// The daemon.
    Agent,
    /// The CNI plugin, run by a container runtime.
    Plugin,
    /// Shows the rules of a pod.
    Rules,
    /// Programs, cleans or validates the redirection to a sidecar.
    Iptables,
    /// Waits for a URL.
    Wait,
    /// Takes everything off the node.
    Uninstall,
    /// Says what it is.
    Version,
    /// Says how it is called.
    Help,
}

/// The commands that can be named, with what they are for.
const COMMANDS: [(&str, Personality, &str); 8] = [
    ("agent", Personality::Agent, "the daemon: installs the plugin and enrols the node's pods (also as install-cni)"),
    ("cni", Personality::Plugin, "the CNI plugin, run by a container runtime (also as istio-cni)"),
    ("rules", Personality::Rules, "print the traffic rules of a pod or of the host; applies nothing"),
    (
        "iptables",
        Personality::Iptables,
        "redirect a pod or a machine to its sidecar, clean or validate that (also as istio-iptables)",
    ),
    ("wait", Personality::Wait, "wait until a URL answers 200"),
    ("uninstall", Personality::Uninstall, "take the plugin and its configuration off the node; --dry-run only lists"),
    ("version", Personality::Version, "print the version"),
    ("help", Personality::Help, "print this text"),
];

/// Decides by the name the executable was started under, then by its first argument, then by `CNI_COMMAND`. Returns
/// the arguments that are left for the command, too.
pub fn personality(argv: &[OsString], cni_command: bool) -> Result<(Personality, &[OsString])> {
    let (name, args) = argv.split_first().map_or((OsStr::new(""), argv), |(name, args)| (name.as_os_str(), args));
    match Path::new(name).file_name().and_then(OsStr::to_str) {
        Some("install-cni") => return Ok((Personality::Agent, args)),
        Some("istio-cni") => return Ok((Personality::Plugin, args)),
        Some("istio-iptables") => return Ok((Personality::Iptables, args)),
        _ => {}
    }
    let Some((word, rest)) = args.split_first() else {
        return if cni_command { Ok((Personality::Plugin, args)) } else { Err(unknown_command("no command")) };
    };
    let word = word.to_string_lossy();
    match word.as_ref() {
        "--help" | "-h" => return Ok((Personality::Help, rest)),
        "--version" | "-V" => return Ok((Personality::Version, rest)),
        _ => {}
    }
    match COMMANDS.iter().find(|(command, ..)| *command == word) {
        Some((_, personality, _)) => Ok((*personality, rest)),
        None => {
            let nearest = nearest(&word, COMMANDS.iter().map(|(command, ..)| *command));
            Err(unknown_command(&format!("unknown command {word:?}{nearest}")))
        }
    }
}

fn unknown_command(what: &str) -> Error {
    Error::of(Kind::Usage, format_args!("{what}; ferrule --help lists the commands"))
}

/// Text of `ferrule --help`.
pub fn overview() -> String {
    let mut text =
        "Ferrule, a node agent for service meshes\n\nUsage: ferrule COMMAND [OPTION…]\n\nCommands:\n".to_owned();
    for (command, _, help) in COMMANDS {
        text += &format!("  {command:<10} {help}\n");
    }
    text += "\nferrule COMMAND --help lists every option of a command, with its environment variable and default.\n";
    text
}

/// Text of `ferrule cni --help`.
pub fn plugin_usage() -> String {
    usage(
        "cni",
        "The CNI plugin, run by a container runtime. It has no options: the runtime's call is in the variables \
         CNI_COMMAND, CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME and CNI_ARGS, and the network configuration on standard \
         input. Without CNI_COMMAND it says what it is and which protocol versions it speaks.",
        &[],
    )
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

/// Takes arguments apart by the options a command has. An unknown option is a `Usage` error that names the nearest.
pub fn scan(args: &[OsString], specs: &[Spec]) -> Result<Arguments> {
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

/// A question after the candidate that takes the fewest edits, or nothing if none is near.
fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    let best = candidates.map(|candidate| (distance(word, candidate), candidate)).min();
    match best {
        Some((edits, candidate)) if edits <= word.len().max(candidate.len()) / 2 => {
            format!(" (did you mean {candidate}?)")
        }
        _ => String::new(),
    }
}

/// Edits (Levenshtein) between two words, in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut next = vec![i + 1];
        let mut left = i + 1;
        for (pair, y) in row.windows(2).zip(b.bytes()) {
            if let [diagonal, above] = *pair {
                left = (above + 1).min(left + 1).min(diagonal + usize::from(x != y));
                next.push(left);
            }
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

/// Text of `--help` of a command: every option with its variable and default.
pub fn usage(synopsis: &str, about: &str, specs: &[Spec]) -> String {
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

fn describe(spec: &Spec) -> String {
    let variable = spec.name.variable();
    let letter = spec.name.letter().map_or(String::new(), |letter| format!("-{letter}, "));
    let called = match (spec.name.flag(), spec.takes) {
        (Some(flag), Takes::Switch) => format!("{letter}--{flag}[=BOOL]"),
        (Some(flag), Takes::Value(value)) => format!("{letter}--{flag} {value}"),
        (Some(flag), Takes::OneOf(words)) => format!("{letter}--{flag} {}", words.join("|")),
        (None, Takes::Switch) => "variable only: BOOL".to_owned(),
        (None, Takes::Value(value)) => format!("variable only: {value}"),
        (None, Takes::OneOf(words)) => format!("variable only: {}", words.join("|")),
    };
    let mut notes = variable.map(|name| format!("variable {name}, ")).unwrap_or_default();
    notes += &if spec.default.is_empty() { "no default".to_owned() } else { format!("default {}", spec.default) };
    let help = if spec.help.is_empty() { String::new() } else { wrapped(spec.help, "        ") };
    format!("  {called}\n        [{notes}]\n{help}")
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

#[cfg(test)]
mod tests {
    use super::*;

    fn os(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn who_we_are() {
        let check = |argv: &[&str], cni_command: bool, want: Option<(Personality, usize)>| {
            let argv = os(argv);
            let got = personality(&argv, cni_command).ok().map(|(personality, rest)| (personality, rest.len()));
            assert_eq!(got, want, "{argv:?} {cni_command}");
        };
        check(&["/opt/cni/bin/istio-cni"], true, Some((Personality::Plugin, 0)));
        check(&["istio-cni", "rules"], false, Some((Personality::Plugin, 1)));
        check(&["/usr/local/bin/install-cni", "--log_as_json"], true, Some((Personality::Agent, 1)));
        check(&["ferrule", "agent", "--ambient-enabled"], true, Some((Personality::Agent, 1)));
        check(&["ferrule", "cni"], false, Some((Personality::Plugin, 0)));
        check(&["/usr/local/bin/istio-iptables", "-p", "15001"], true, Some((Personality::Iptables, 2)));
        check(&["ferrule"], true, Some((Personality::Plugin, 0)));
        check(&["./ferrule", "rules", "--host"], false, Some((Personality::Rules, 1)));
        check(&["ferrule", "--help"], true, Some((Personality::Help, 0)));
        check(&["ferrule", "--version"], false, Some((Personality::Version, 0)));
        check(&["anything", "version"], false, Some((Personality::Version, 0)));
        check(&["ferrule"], false, None);
        check(&["ferrule", "rulse"], true, None);
        check(&[], true, Some((Personality::Plugin, 0)));
        check(&[], false, None);
        let error = personality(&os(&["ferrule", "rulse"]), false).unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown command \"rulse\" (did you mean rules?); ferrule --help lists the commands"
        );
    }

    #[test]
    fn edits() {
        for (a, b, want) in [("", "", 0), ("a", "", 1), ("", "ab", 2), ("kitten", "sitting", 3), ("rulse", "rules", 2)]
        {
            assert_eq!(distance(a, b), want, "{a} {b}");
        }
    }
}
