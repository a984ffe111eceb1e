//! The man page and the completion scripts, in the programs they are made for.

use crate::support::program::{Finished, ferrule, finish};
use std::fs;
use std::path::Path;
use std::process::Command;

fn printed(args: &[&str]) -> String {
    let got = finish(&mut ferrule(args), b"");
    assert_eq!((got.code, got.stderr.as_str()), (Some(0), ""), "{args:?}");
    got.stdout
}

fn run(program: &str, args: &[&str], stdin: &str) -> Finished {
    let mut command = Command::new(program);
    command.args(args).env("LC_ALL", "C.UTF-8").env("MANWIDTH", "100").env("TERM", "dumb");
    finish(&mut command, stdin.as_bytes())
}

#[test]
fn the_man_page_renders_without_a_warning() {
    let got = run("man", &["--warnings", "-E", "UTF-8", "-l", "-"], &printed(&["man"]));
    assert_eq!((got.code, got.stderr.as_str()), (Some(0), ""));
    for text in ["ferrule - node agent for service meshes", "--ambient-enablement-selector YAML", "HOST_PROBE_SNAT_IP"]
    {
        assert!(got.stdout.contains(text), "{text}\n{}", got.stdout);
    }
    assert!(!got.stdout.contains('\\'), "{}", got.stdout);
}

/// What a shell is asked to complete, and what must be among its answers.
const ASKED: [(&str, &str); 5] = [
    ("ferrule doc", "doctor"),
    ("ferrule rules --fam", "--family"),
    ("ferrule rules --family ipv", "ipv6"),
    ("ferrule completion z", "zsh"),
    ("ferrule iptables --envoy", "--envoy-port"),
];

fn script(shell: &str, dir: &Path) -> String {
    let path = dir.join(shell);
    fs::write(&path, printed(&["completion", shell])).unwrap();
    path.display().to_string()
}

#[test]
fn bash_completes() {
    let dir = tempfile::tempdir().unwrap();
    let program = format!(
        "source {}; for line; do COMP_WORDS=($line); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _ferrule; \
         echo \"${{COMPREPLY[*]}}\"; done",
        script("bash", dir.path())
    );
    let args = ["--norc", "-c", &program, "bash"];
    let got = run("bash", &[&args[..], &ASKED.map(|(line, _)| line)].concat(), "");
    assert_eq!((got.code, got.stderr.as_str()), (Some(0), ""));
    for ((line, want), answer) in ASKED.iter().zip(got.stdout.lines()) {
        assert!(answer.split(' ').any(|word| word == *want), "{line}: {answer}");
    }
    assert_eq!(got.stdout.lines().count(), ASKED.len());
}

#[test]
fn fish_completes() {
    let dir = tempfile::tempdir().unwrap();
    let script = script("fish", dir.path());
    for (line, want) in ASKED {
        let program = format!("source {script}; complete -C '{line}'");
        let got = run("fish", &["--no-config", "-c", &program], "");
        assert_eq!((got.code, got.stderr.as_str()), (Some(0), ""), "{line}");
        let mut answers = got.stdout.lines().filter_map(|answer| answer.split('\t').next());
        assert!(answers.any(|answer| answer == want), "{line}: {}", got.stdout);
    }
}

/// A zsh inside a terminal of its own, to whom a line and a tab are typed.
const TYPIST: &str = r#"
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "PROMPT= RPROMPT=; autoload -Uz compinit; compinit -u -D; source $1; print LOAD''ED"
zpty -r -m z found '*LOADED*' || exit 2
zpty -w -n z "$2"$'\t'
zpty -r -m z found "*$3*" || exit 3
"#;

#[test]
fn zsh_completes() {
    let dir = tempfile::tempdir().unwrap();
    let script = script("zsh", dir.path());
    for (line, want) in ASKED {
        let args = ["-f", "-c", TYPIST, "zsh", &script, line, want];
        // A tab that completes nothing would be waited for in vain.
        let got = run("timeout", &[&["30", "zsh"], &args[..]].concat(), "");
        assert_eq!((got.code, got.stderr.as_str()), (Some(0), ""), "{line}: {}", got.stdout);
    }
}

#[test]
fn other_words_are_usage_errors() {
    for args in [&["completion"][..], &["completion", "tcsh"], &["completion", "bash", "zsh"], &["man", "x"]] {
        assert_eq!(finish(&mut ferrule(args), b"").code, Some(2), "{args:?}");
    }
    assert!(printed(&["help", "doctor"]).starts_with("Usage: ferrule doctor"));
    assert_eq!(finish(&mut ferrule(&["help", "docter"]), b"").code, Some(2));
    for command in ["status", "explain", "doctor", "completion", "man", "version", "help"] {
        assert!(printed(&[command, "--help"]).starts_with(&format!("Usage: ferrule {command}")), "{command}");
    }
}
