//! From `argv` to a command; arguments to flags, and the usage text, both by the option tables.

pub mod agent;
pub mod columns;
pub mod completion;
pub mod doctor;
pub mod explain;
pub mod iptables;
pub mod man;
pub mod page;
pub mod plugin;
pub mod rules;
pub mod running;
pub mod status;
pub mod uninstall;
pub mod wait;

use crate::config::option::Takes;
use crate::error::{Error, Kind, Result};
use page::Page;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// What this process is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Personality {
    /// The daemon.
    Agent,
    /// The CNI plugin, run by a container runtime.
    Plugin,
    /// Shows how the pods of this node stand.
    Status,
    /// Says why a pod is in the mesh or not.
    Explain,
    /// Examines the node.
    Doctor,
    /// Shows the rules of a pod.
    Rules,
    /// Programs, cleans or validates the redirection to a sidecar.
    Iptables,
    /// Waits for a URL.
    Wait,
    /// Takes everything off the node.
    Uninstall,
    /// Prints a script that completes commands and options in a shell.
    Completion,
    /// Prints the man page.
    Man,
    /// Says what it is.
    Version,
    /// Says how it is called.
    Help,
}

/// A command that can be named.
#[derive(Debug)]
pub struct Command {
    /// Its name.
    pub name: &'static str,
    personality: Personality,
    /// What it is for, in one line.
    pub help: &'static str,
    /// How it is called.
    pub page: fn() -> Page,
}

const fn command(name: &'static str, personality: Personality, help: &'static str, page: fn() -> Page) -> Command {
    Command { name, personality, help, page }
}

/// All of them.
pub static COMMANDS: [Command; 13] = [
    command(
        "agent",
        Personality::Agent,
        "the daemon: installs the plugin and enrols the node's pods (also as install-cni)",
        agent::page,
    ),
    command("cni", Personality::Plugin, "the CNI plugin, run by a container runtime (also as istio-cni)", plugin::page),
    command(
        "status",
        Personality::Status,
        "list the pods of this node with their state and why; exit code 0 only when all is well",
        status::page,
    ),
    command("explain", Personality::Explain, "why a pod is in the mesh or not, step by step", explain::page),
    command("doctor", Personality::Doctor, "check the node, one line each, with a remedy", doctor::page),
    command(
        "rules",
        Personality::Rules,
        "print the traffic rules of a pod or of the host; applies nothing",
        rules::page,
    ),
    command(
        "iptables",
        Personality::Iptables,
        "redirect a pod or a machine to its sidecar, clean or validate that (also as istio-iptables)",
        iptables::page,
    ),
    command("wait", Personality::Wait, "wait until a URL answers 200", wait::page),
    command(
        "uninstall",
        Personality::Uninstall,
        "take the plugin and its configuration off the node; --dry-run only lists",
        uninstall::page,
    ),
    command(
        "completion",
        Personality::Completion,
        "print a script that completes commands and options in bash, zsh or fish",
        completion::page,
    ),
    command("man", Personality::Man, "print the man page, for `man -l -`", man::page),
    command("version", Personality::Version, "print the version", version_page),
    command("help", Personality::Help, "print this text, or what a command takes", help_page),
];

fn version_page() -> Page {
    Page { synopsis: "version", about: "Prints the version.", operand: None, specs: Vec::new() }
}

fn help_page() -> Page {
    let about = "Lists the commands, or says what one of them takes.";
    Page { synopsis: "help [COMMAND]", about, operand: Some(Takes::Value("COMMAND")), specs: Vec::new() }
}

/// Text of `ferrule version`.
pub fn version(args: &[OsString]) -> Result<String> {
    let page = version_page();
    let arguments = page.scan_options(args)?;
    Ok(if arguments.help { page.usage() } else { format!("ferrule {}\n", env!("CARGO_PKG_VERSION")) })
}

/// Text of `ferrule help` and `ferrule --help`.
pub fn help(args: &[OsString]) -> Result<String> {
    let page = help_page();
    let arguments = page.scan(args)?;
    match arguments.operands.as_slice() {
        _ if arguments.help => Ok(page.usage()),
        [] => Ok(overview()),
        [word] => command_of(&word.to_string_lossy()).map(|command| (command.page)().usage()),
        [_, more, ..] => {
            Err(Error::of(Kind::Usage, format_args!("unexpected argument {more:?}; help takes one command")))
        }
    }
}

/// Decides by the name the executable was started under, then by its first argument, then by `CNI_COMMAND`. Returns
/// the arguments that are left for the command, too.
pub fn personality(argv: &[OsString], cni_command: bool) -> Result<(Personality, &[OsString])> {
    let (name, args) = argv.split_first().map_or((OsStr::new(""), argv), |(name, args)| (name.as_os_str(), args));
    match Path::new(name).file_name().and_then(OsStr::to_str) {
        Some("install-cni") => {
            return match args.split_first() {
                Some((word, rest)) if word == "version" => Ok((Personality::Version, rest)),
                _ => Ok((Personality::Agent, args)),
            };
        }
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
    command_of(&word).map(|command| (command.personality, rest))
}

fn command_of(word: &str) -> Result<&'static Command> {
    COMMANDS.iter().find(|command| command.name == word).ok_or_else(|| {
        let nearest = nearest(word, COMMANDS.iter().map(|command| command.name));
        unknown_command(&format!("unknown command {word:?}{nearest}"))
    })
}

fn unknown_command(what: &str) -> Error {
    Error::of(Kind::Usage, format_args!("{what}; ferrule --help lists the commands"))
}

/// Text of `ferrule --help`.
fn overview() -> String {
    let mut text =
        "Ferrule, a node agent for service meshes\n\nUsage: ferrule COMMAND [OPTION…]\n\nCommands:\n".to_owned();
    for Command { name, help, .. } in &COMMANDS {
        text += &format!("  {name:<11} {help}\n");
    }
    text += "\nferrule COMMAND --help lists every option of a command, with its environment variable and default.\n";
    text
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
        check(&["install-cni", "version"], false, Some((Personality::Version, 0)));
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
