//! The README is true: its tables are made from the executable, and its commands are run.
//!
//! Every block of shell commands says by its second word who runs it:
//! - `run`, here, in the order of the page, on a machine of its own as far as namespaces go (scripts/isolated), where
//!   a block of kind `daemon` runs in the background from its place on;
//! - `user`, here as well, by somebody without privileges;
//! - `cluster NAME`: scripts/test-cluster, which finds it by its name;
//! - `gate`: scripts that the gate runs.
//!
//! A block of text is what a command prints, and names the fixture that other tests compare it with; without a name, it
//! is a drawing.

use crate::support::FERRULE;
use crate::support::program::{ferrule, finish};
use ferrule::cli::COMMANDS;
use ferrule::config::option::{Section, Spec, Takes};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A block of code: the words after the fence, and its lines.
struct Block<'a> {
    kind: Vec<&'a str>,
    text: String,
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    let mut open = false;
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(_) if open => open = false,
            Some(kind) => {
                open = true;
                blocks.push(Block { kind: kind.split_whitespace().collect(), text: String::new() });
            }
            None if open => {
                let text = &mut blocks.last_mut().unwrap().text;
                *text += line;
                text.push('\n');
            }
            None => {}
        }
    }
    assert!(!open, "a block of the README does not end");
    blocks
}

fn options<'a>(specs: impl Iterator<Item = &'a Spec>, first: &str, of: &str) -> String {
    let mut table = String::new();
    for spec in specs {
        let takes = match spec.takes {
            Takes::Switch => String::new(),
            Takes::Value(what) => format!(" {what}"),
            Takes::OneOf(words) => format!(" {}", words.join("\\|")),
        };
        let letter = spec.name.letter().map_or(String::new(), |letter| format!("`-{letter}`, "));
        let flag = spec.name.flag().map_or(String::new(), |flag| format!("{letter}`--{flag}{takes}`"));
        let variable = spec.name.variable().map_or(String::new(), |name| format!("`{name}`"));
        let default = if spec.default.is_empty() { String::new() } else { format!("`{}`", spec.default) };
        let help = spec.help.replace('|', "\\|");
        let _ = writeln!(table, "| {of}{flag} | {variable} | {default} | {help} |");
    }
    format!("| {first} | variable | default | meaning |\n|---|---|---|---|\n{table}")
}

/// The parts of the page that are made, by the names in their marks.
fn made() -> Vec<(&'static str, String)> {
    let mut commands = "| command | what it does |\n|---|---|\n".to_owned();
    for command in &COMMANDS {
        let _ = writeln!(commands, "| `ferrule {}` | {} |", command.name, command.help);
    }
    let agent = (COMMANDS[0].page)();
    assert_eq!(COMMANDS[0].name, "agent");
    let mut sections = String::new();
    for (section, heading) in Section::ALL {
        let of_it: Vec<&Spec> = agent.specs.iter().filter(|spec| spec.section == section).collect();
        if section == Section::Ignored {
            let names = of_it.iter().map(|spec| {
                let variable = spec.name.variable().unwrap_or_default();
                spec.name.flag().map_or(format!("`{variable}`"), |flag| format!("`--{flag}`"))
            });
            let _ = write!(sections, "{heading}: {}.\n\n", names.collect::<Vec<_>>().join(", "));
        } else if !of_it.is_empty() {
            let _ = write!(sections, "**{heading}**\n\n{}\n", options(of_it.into_iter(), "option", ""));
        }
    }
    let mut rest = String::new();
    for command in &COMMANDS[1..] {
        let page = (command.page)();
        let own: Vec<&Spec> = page.specs.iter().filter(|spec| spec.section == Section::Command).collect();
        if !own.is_empty() {
            let _ = write!(rest, "**`ferrule {}`**\n\n{}\n", command.name, options(own.into_iter(), "option", ""));
        }
    }
    let mut metrics = "| metric | kind | meaning |\n|---|---|---|\n".to_owned();
    let text = ferrule::metrics::render();
    let kinds: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    for line in text.lines().filter_map(|line| line.strip_prefix("# HELP ")) {
        let (name, help) = line.split_once(' ').unwrap();
        let kind = kinds.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
        let _ = writeln!(metrics, "| `{name}` | {kind} | {help} |");
    }
    let trimmed = |text: String| format!("{}\n", text.trim_end());
    vec![
        ("commands", commands),
        ("options", trimmed(sections)),
        ("command options", trimmed(rest)),
        ("metrics", metrics),
    ]
}

#[test]
fn its_tables_are_what_the_executable_has() {
    let page = read("README.md");
    let mut right = page.clone();
    for (name, text) in made() {
        let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
        let from = right.find(&begin).unwrap_or_else(|| panic!("README.md has no {begin}")) + begin.len();
        let to = from + right[from..].find(&end).unwrap_or_else(|| panic!("README.md has no {end}"));
        right.replace_range(from..to, &text);
    }
    if std::env::var_os("UPDATE_FIXTURES").is_some() {
        fs::write(root().join("README.md"), &right).unwrap();
    } else {
        let differ = page.lines().zip(right.lines()).find(|(is, should)| is != should);
        assert!(page == right, "README.md (UPDATE_FIXTURES=1 rewrites it): {differ:?}");
    }
}

#[test]
fn every_block_of_commands_has_somebody_who_runs_it() {
    let (page, gate, cluster) = (read("README.md"), read(".ci/run"), read("scripts/cluster/daemonset"));
    let mut names = Vec::new();
    for Block { kind, text } in blocks(&page) {
        match kind.as_slice() {
            ["sh", "run" | "daemon" | "user"] | ["text"] => {}
            ["sh", "cluster", name] => {
                let called =
                    cluster.contains(&format!("readme {name}")) || cluster.contains(&format!("$(block {name})"));
                assert!(called, "scripts/test-cluster does not run the block {name}:\n{text}");
                names.push((*name).to_owned());
            }
            ["text", fixture] => assert_eq!(text, read(&format!("test-fixtures/tools/{fixture}")), "{fixture}"),
            ["sh", "gate"] => {
                for line in text.lines() {
                    let script = line.split_whitespace().next().unwrap();
                    let runs = |line: &str| line.split_whitespace().any(|word| word == script);
                    assert!(gate.lines().any(runs), "the gate does not run {script}");
                }
            }
            other => panic!("nobody runs this block, {other:?}:\n{text}"),
        }
    }
    assert!(names.len() >= 5, "{names:?}");
}

#[test]
fn every_command_and_option_it_mentions_exists() {
    let page = read("README.md");
    let spans =
        page.lines().filter(|line| !line.starts_with("```")).flat_map(|line| line.split('`').skip(1).step_by(2));
    let shell: Vec<String> = blocks(&page).into_iter().map(|block| block.text).collect();
    let mut seen = 0;
    for text in spans.chain(shell.iter().flat_map(|text| text.lines())) {
        let mut words = text.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some(script) = first.strip_prefix("scripts/") {
            let path = root().join("scripts").join(script);
            assert!(path.exists(), "{text}: there is no such file");
        }
        // Of ours if it is alone, or follows a command of ours.
        let command = if first == "ferrule" { words.next() } else { None };
        let help = match command {
            Some(command) => {
                let help = finish(&mut ferrule(&[command, "--help"]), b"");
                assert_eq!(help.code, Some(0), "{text}: ferrule {command} --help");
                help.stdout
            }
            None if first.starts_with("--") && first != "---" => COMMANDS.iter().map(|c| (c.page)().usage()).collect(),
            None => continue,
        };
        for option in text.split_whitespace().filter_map(|word| word.strip_prefix("--")) {
            let option = option.split(['=', '\\']).next().unwrap();
            let known = help.split([' ', '[', '\n', ',']).any(|word| word == format!("--{option}"));
            assert!(known || option.is_empty() || option == "help", "{text}: no --{option}");
            seen += 1;
        }
    }
    assert!(seen > 40, "only {seen} options looked at");
}

#[test]
fn its_commands_run() {
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    // Where the user of a proxy can run it, too.
    fs::copy(FERRULE, bin.join("ferrule")).unwrap();
    for path in [dir.path(), &bin] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    // A node as a distribution leaves it: another plugin's configuration is there.
    let mut session = String::from(
        "set -euo pipefail\nmkdir -p /etc/cni/net.d /opt/cni/bin\ndaemon=\n\
         echo '{\"cniVersion\": \"1.0.0\", \"name\": \"net\", \"plugins\": [{\"type\": \"bridge\"}]}' \
         >/etc/cni/net.d/10-net.conflist\ntouch /opt/cni/bin/bridge\n",
    );
    let page = read("README.md");
    let mut count = 0;
    for Block { kind, text } in blocks(&page) {
        let text = text.trim_end();
        count += 1;
        match kind.as_slice() {
            ["sh", "run"] => {
                let _ = write!(session, "echo \"--- block {count}\" >&2\n{text}\n");
            }
            ["sh", "user"] => {
                let _ = write!(
                    session,
                    "echo \"--- block {count}\" >&2\ninstall -d -o 1000 -g 1000 user\n\
                     cat >user/block <<'END OF BLOCK'\n{text}\nEND OF BLOCK\n\
                     (cd user && setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps=-all \
                     bash -euo pipefail block)\n"
                );
            }
            ["sh", "daemon"] => {
                let _ = write!(
                    session,
                    "echo \"--- block {count}\" >&2\n{text} 2>daemon.log &\ndaemon=$!\n\
                     ferrule wait --url http://localhost:8000/readyz || {{ cat daemon.log >&2; exit 1; }}\n"
                );
            }
            _ => {}
        }
    }
    session += "kill $daemon\nwait $daemon\n";
    let script = dir.path().join("session");
    fs::write(&script, session).unwrap();
    let path = format!("{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", bin.display());
    let mut command = Command::new(root().join("scripts/isolated"));
    command.arg("bash").arg(&script).current_dir(dir.path()).env_clear().env("PATH", path);
    let ended = finish(&mut command, b"");
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.stdout, ended.stderr);
    // Of each kind of command, what it is for.
    for text in [
        "default/web is in the ambient mesh",
        "-A ISTIO_OUTPUT",
        "ISTIO_POSTRT",
        "-A PREROUTING -p tcp -j ISTIO_INBOUND",
        "NAMESPACE  NAME",
        "ok    capabilities",
    ] {
        assert!(ended.stdout.contains(text), "{text} is not in {}", ended.stdout);
    }
}
