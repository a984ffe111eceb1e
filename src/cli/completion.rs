//! `completion`: scripts by which shells complete commands, options and values, made of what every command takes.

use super::command::Command;
use super::page::Page;
use crate::config::option::{Spec, Takes};
use crate::error::{Error, Kind, Result};
use std::ffi::OsString;
use std::fmt::Write as _;

const SHELLS: &[&str] = &["bash", "zsh", "fish"];

const ABOUT: &str = "Prints a script that completes commands, options and values. For the running shell: source \
                     <(ferrule completion bash), the same with zsh, or ferrule completion fish | source. For good: write \
                     it to /usr/share/bash-completion/completions/ferrule, to _ferrule in a directory of zsh's fpath, or \
                     to ~/.config/fish/completions/ferrule.fish.";

/// How it is called.
pub fn page() -> Page {
    Page {
        synopsis: "completion (bash | zsh | fish)",
        about: ABOUT,
        operand: Some(Takes::OneOf(SHELLS)),
        specs: Vec::new(),
    }
}

/// The script for the shell that these operands name, with these commands.
pub(super) fn text(operands: &[OsString], commands: &[Command]) -> Result<String> {
    let shell = match operands {
        [shell] => shell.to_str(),
        _ => None,
    };
    match shell {
        Some("bash") => Ok(bash(commands)),
        Some("zsh") => Ok(zsh(commands)),
        Some("fish") => Ok(fish(commands)),
        _ => Err(Error::of(Kind::Usage, "completion takes the name of a shell: bash, zsh or fish")),
    }
}

/// What a value is, for a shell.
enum Values {
    Words(&'static [&'static str]),
    Directories,
    Files,
    /// The names of our commands.
    Commands,
    /// Nothing a shell could know.
    Unknown,
}

impl Values {
    fn of(takes: Takes) -> Self {
        match takes {
            Takes::Switch => Values::Words(&["true", "false"]),
            Takes::OneOf(words) => Values::Words(words),
            Takes::Value("DIR") => Values::Directories,
            Takes::Value("FILE" | "SOCKET" | "POD_FILE") => Values::Files,
            Takes::Value("COMMAND") => Values::Commands,
            Takes::Value(_) => Values::Unknown,
        }
    }
}

fn names(commands: &[Command]) -> String {
    commands.iter().map(|command| command.name).collect::<Vec<_>>().join(" ")
}

/// Options that have a flag, with it.
fn flags(page: &Page) -> impl Iterator<Item = (&'static str, &Spec)> {
    page.specs.iter().filter_map(|spec| Some((spec.name.flag()?, spec)))
}

fn bash(commands: &[Command]) -> String {
    let names = names(commands);
    let mut text = format!(
        "# bash completion of ferrule\n\
         _ferrule() {{\n    \
         local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} options=\n    \
         # --flag=VALUE comes as three words.\n    \
         if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${{COMP_WORDS[COMP_CWORD-2]}}; fi\n    \
         COMPREPLY=()\n    \
         if ((COMP_CWORD == 1)); then\n        \
         COMPREPLY=($(compgen -W '{names} --help --version' -- \"$cur\"))\n        \
         return\n    \
         fi\n    \
         case ${{COMP_WORDS[1]}} in\n"
    );
    let generate = |values: Values| match values {
        Values::Words(words) => format!("COMPREPLY=($(compgen -W '{}' -- \"$cur\"))", words.join(" ")),
        Values::Directories => "compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -d -- \"$cur\"))".to_owned(),
        Values::Files => "compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- \"$cur\"))".to_owned(),
        Values::Commands => format!("COMPREPLY=($(compgen -W '{names}' -- \"$cur\"))"),
        Values::Unknown => ":".to_owned(),
    };
    for Command { name, page, .. } in commands {
        let page = page();
        let list = flags(&page).map(|(flag, _)| format!("--{flag} ")).collect::<String>();
        let _ = write!(text, "    {name})\n        options='{list}--help'\n        case $prev in\n");
        for (flag, spec) in flags(&page).filter(|(_, spec)| spec.takes != Takes::Switch) {
            let letter = spec.name.letter().map_or(String::new(), |letter| format!("|-{letter}"));
            let _ = writeln!(text, "        --{flag}{letter}) {}; return ;;", generate(Values::of(spec.takes)));
        }
        text += "        esac\n";
        if let Some(operand) = page.operand {
            let _ = writeln!(text, "        if [[ $cur != -* ]]; then {}; fi", generate(Values::of(operand)));
        }
        text += "        ;;\n";
    }
    text += "    esac\n    \
             if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W \"$options\" -- \"$cur\")); fi\n\
             }\n\
             complete -F _ferrule ferrule\n";
    text
}

fn zsh(commands: &[Command]) -> String {
    let mut text = "#compdef ferrule\n\
                    # zsh completion of ferrule\n\
                    _ferrule() {\n    \
                    local -a commands\n    \
                    commands=(\n"
        .to_owned();
    // Within single quotes; brackets and colons mean something to _arguments and _describe.
    let quoted = |words: &str| words.replace('\'', "'\\''");
    let escaped = |words: &str| {
        let mut text = quoted(words);
        for special in ['[', ']', ':'] {
            text = text.replace(special, &format!("\\{special}"));
        }
        text
    };
    for Command { name, help, .. } in commands {
        let _ = writeln!(text, "        '{name}:{}'", escaped(help));
    }
    text += "    )\n    \
             if (( CURRENT == 2 )); then\n        \
             _describe command commands\n        \
             return\n    \
             fi\n    \
             local command=$words[2]\n    \
             shift words\n    \
             (( CURRENT-- ))\n    \
             case $command in\n";
    let action = |values: Values| match values {
        Values::Words(words) => format!("({})", words.join(" ")),
        Values::Directories => "_files -/".to_owned(),
        Values::Files => "_files".to_owned(),
        Values::Commands => format!("({})", names(commands)),
        Values::Unknown => " ".to_owned(),
    };
    for Command { name, page, .. } in commands {
        let page = page();
        let _ = write!(text, "    {name})\n        _arguments '--help[list the options]'");
        for (flag, spec) in flags(&page) {
            let help = escaped(spec.help);
            let value = match spec.takes {
                Takes::Switch => String::new(),
                takes => format!(":value:{}", action(Values::of(takes))),
            };
            let equals = if value.is_empty() { "" } else { "=" };
            let _ = write!(text, " \\\n            '--{flag}{equals}[{help}]{value}'");
            if let Some(letter) = spec.name.letter() {
                let _ = write!(text, " \\\n            '-{letter}[{help}]{value}'");
            }
        }
        if let Some(operand) = page.operand {
            let _ = write!(text, " \\\n            '1:operand:{}'", action(Values::of(operand)));
        }
        text += "\n        ;;\n";
    }
    text += "    esac\n\
             }\n\
             if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _ferrule \"$@\"; else compdef _ferrule ferrule; fi\n";
    text
}

fn fish(commands: &[Command]) -> String {
    let quoted = |words: &str| words.replace('\\', "\\\\").replace('\'', "\\'");
    let arguments = |values: Values| match values {
        Values::Words(words) => format!(" -x -a '{}'", words.join(" ")),
        Values::Directories => " -x -a '(__fish_complete_directories)'".to_owned(),
        Values::Files => " -r -F".to_owned(),
        Values::Commands => format!(" -x -a '{}'", names(commands)),
        Values::Unknown => " -x".to_owned(),
    };
    let mut text = "# fish completion of ferrule\ncomplete -c ferrule -f\n".to_owned();
    for Command { name, help, .. } in commands {
        let _ = writeln!(text, "complete -c ferrule -n __fish_use_subcommand -a {name} -d '{}'", quoted(help));
    }
    for Command { name, page, .. } in commands {
        let page = page();
        let of_it = format!("complete -c ferrule -n '__fish_seen_subcommand_from {name}'");
        let _ = writeln!(text, "{of_it} -l help -d 'list the options'");
        for (flag, spec) in flags(&page) {
            let letter = spec.name.letter().map_or(String::new(), |letter| format!(" -s {letter}"));
            let value = if spec.takes == Takes::Switch { String::new() } else { arguments(Values::of(spec.takes)) };
            let _ = writeln!(text, "{of_it} -l {flag}{letter}{value} -d '{}'", quoted(spec.help));
        }
        match page.operand.map(Values::of) {
            Some(Values::Files) => drop(writeln!(text, "{of_it} -F")),
            Some(Values::Words(words)) => drop(writeln!(text, "{of_it} -a '{}'", words.join(" "))),
            Some(Values::Commands) => drop(writeln!(text, "{of_it} -a '{}'", names(commands))),
            _ => {}
        }
    }
    text
}
