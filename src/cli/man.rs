//! `man`: the manual page, made of what every command says of itself. Source: man(7), groff_char(7).

use super::agent;
use super::command::Command;
use super::page::{Page, notes};
use crate::config::option::{Section, Spec, Takes};

const ABOUT: &str = "Prints the man page in roff: man -l - shows it. To install it, write it to \
                     /usr/local/share/man/man8/ferrule.8.";

/// How it is called.
pub fn page() -> Page {
    Page { synopsis: "man", about: ABOUT, operand: None, specs: Vec::new() }
}

const DESCRIPTION: &str = "Ferrule is a node agent for service meshes. On every node of a cluster it installs a CNI \
                           plugin and keeps it installed, programs traffic rules inside the network namespaces of pods, \
                           hands these namespaces to ztunnel, and repairs what is not as it should be. One executable \
                           is all of it: the command, or the name it is started under, says what it does.";

const EXIT_CODES: [(&str, &str); 5] = [
    ("0", "Done; all is well."),
    (
        "1",
        "It failed, or what was looked at is not as it should be. The reason is on standard error, or in the report.",
    ),
    ("2", "The command line, or a variable, is wrong."),
    ("3", "status and explain: no agent answers on its socket."),
    ("126", "iptables --run-validation: traffic is not redirected."),
];

const FILES: [(&str, &str); 5] = [
    ("RUN/pluginevent.sock", "The agent's socket for the plugin and for status, explain and doctor."),
    ("RUN/log.sock", "The agent's socket for the plugin's log lines."),
    ("RUN/istio-cni.log", "The plugin's own log."),
    ("RUN/istio-cni-kubeconfig", "Credential of the plugin for the time without an agent."),
    ("RUN/state.json", "Without Kubernetes: what is published about pods."),
];

/// The manual page with these commands.
pub(super) fn text(commands: &[Command]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut roff = format!(".TH FERRULE 8 \"\" \"ferrule {version}\" \"System administration\"\n");
    roff += ".SH NAME\nferrule \\- node agent for service meshes\n";
    roff += ".SH SYNOPSIS\n.B ferrule\n.I COMMAND\n.RI [ OPTION ...]\n";
    roff += &format!(".SH DESCRIPTION\n{}", line(DESCRIPTION));
    roff += ".SH COMMANDS\n";
    let shared = agent::page().specs;
    for Command { name, page, .. } in commands {
        let page = page();
        roff += &format!(".SS ferrule {}\n{}", escaped(page.synopsis), line(page.about));
        let has = |spec: &Spec| page.specs.iter().any(|own| own.name == spec.name);
        let takes_all = !shared.is_empty() && shared.iter().all(has);
        let is_shared = |spec: &Spec| takes_all && shared.iter().any(|other| other.name == spec.name);
        for spec in page.specs.iter().filter(|spec| !is_shared(spec)) {
            roff += &option(spec);
        }
        if takes_all {
            let whose = if *name == "agent" { "Its options are" } else { "The agent's options are" };
            roff += &format!(".PP\n{}", line(&format!("{whose} below.")));
        }
    }
    roff += ".SH OPTIONS OF THE AGENT\n";
    roff += &line(
        "A flag wins over its environment variable, the variable over the default. A variable that is empty counts as \
         not set. A wrong value ends the process.",
    );
    for (section, heading) in Section::ALL {
        let members: Vec<&Spec> = shared.iter().filter(|spec| spec.section == section).collect();
        if !members.is_empty() {
            roff += &format!(".SS {}\n", escaped(heading));
        }
        roff.extend(members.into_iter().map(option));
    }
    roff += ".SH EXIT STATUS\n";
    for (code, meaning) in EXIT_CODES {
        roff += &format!(".TP\n.B {code}\n{}", line(meaning));
    }
    roff += &format!(".SH FILES\n{}", line("RUN is the directory that --cni-agent-run-dir names."));
    for (file, meaning) in FILES {
        roff += &format!(".TP\n.I {}\n{}", escaped(file), line(meaning));
    }
    roff
}

fn option(spec: &Spec) -> String {
    let letter = spec.name.letter().map_or(String::new(), |letter| format!("\\fB\\-{letter}\\fR, "));
    let called = match spec.name.flag() {
        Some(flag) => format!("{letter}\\fB\\-\\-{}\\fR", escaped(flag)),
        None => format!("\\fB{}\\fR (variable only)", escaped(&spec.name.variable().unwrap_or_default())),
    };
    let value = match spec.takes {
        Takes::Switch if spec.name.flag().is_some() => "[=\\fIBOOL\\fR]".to_owned(),
        Takes::Switch => " \\fIBOOL\\fR".to_owned(),
        Takes::Value(value) => format!(" \\fI{}\\fR", escaped(value)),
        Takes::OneOf(words) => format!(" \\fI{}\\fR", escaped(&words.join("|"))),
    };
    format!(".TP\n{called}{value}\n{}.br\n{}", line(spec.help), line(&format!("[{}]", notes(spec))))
}

/// A paragraph of text.
fn line(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{}\n", escaped(text)) }
}

/// Text with every character as it is: none begins a request, no hyphen is broken at, no quote is bent.
fn escaped(text: &str) -> String {
    let mut roff = String::with_capacity(text.len() + 8);
    if text.starts_with(['.', '\'']) {
        roff += "\\&";
    }
    for c in text.chars() {
        match c {
            '\\' => roff += "\\e",
            '-' => roff += "\\-",
            '\'' => roff += "\\(aq",
            '`' => roff += "\\(ga",
            '^' => roff += "\\(ha",
            '~' => roff += "\\(ti",
            '\n' => roff.push(' '),
            c if c.is_ascii() => roff.push(c),
            c => roff += &format!("\\[u{:04X}]", u32::from(c)),
        }
    }
    roff
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::COMMANDS;

    #[test]
    fn text_stays_text() {
        for (text, want) in [
            (".so file", "\\&.so file"),
            ("it's --a\\b", "it\\(aqs \\-\\-a\\eb"),
            ("[OPTION…]", "[OPTION\\[u2026]]"),
            ("a\n.b", "a .b"),
        ] {
            assert_eq!(escaped(text), want);
        }
    }

    #[test]
    fn every_command_and_option_is_there() {
        let manual = text(&COMMANDS);
        for Command { name, page, .. } in &COMMANDS {
            assert!(manual.contains(&format!(".SS ferrule {name}")), "{name}");
            for spec in page().specs {
                let called = spec.name.flag().map_or_else(|| spec.name.variable().unwrap_or_default(), str::to_owned);
                assert!(manual.contains(&escaped(&called)), "{name} {called}");
            }
        }
        assert_eq!(manual.matches("\\-\\-ambient\\-enablement\\-selector\\fR").count(), 1);
    }
}
