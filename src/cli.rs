//! From `argv` to a command; arguments to flags, and the usage text, both by the option tables.

pub mod agent;
pub mod columns;
mod command;
pub mod completion;
pub mod doctor;
pub mod explain;
pub mod iptables;
pub mod man;
mod nearest;
pub mod page;
pub mod plugin;
pub mod rules;
pub mod status;
pub mod uninstall;
pub mod wait;

use crate::config::option::Takes;
use crate::error::{Error, Kind, Result};
use command::command;
use nearest::nearest;
use page::{Page, Request};
use std::ffi::{OsStr, OsString};
use std::path::Path;

pub use command::{Command, Personality};

/// All commands.
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

/// Text of `ferrule completion`.
pub fn completion(args: &[OsString]) -> Result<Request<String>> {
    completion::page().request(args, |arguments| completion::text(&arguments.operands, &COMMANDS))
}

/// Text of `ferrule man`.
pub fn man(args: &[OsString]) -> Result<Request<String>> {
    man::page().request(args, |_| Ok(man::text(&COMMANDS)))
}

/// Text of `ferrule version`.
pub fn version(args: &[OsString]) -> Result<Request<String>> {
    version_page().request(args, |_| Ok(format!("ferrule {}\n", env!("CARGO_PKG_VERSION"))))
}

/// Text of `ferrule help` and `ferrule --help`.
pub fn help(args: &[OsString]) -> Result<Request<String>> {
    help_page().request(args, |arguments| match arguments.operands.as_slice() {
        [] => Ok(overview()),
        [word] => command_of(&word.to_string_lossy()).map(|command| (command.page)().usage()),
        [_, more, ..] => {
            Err(Error::of(Kind::Usage, format_args!("unexpected argument {more:?}; help takes one command")))
        }
    })
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
}
