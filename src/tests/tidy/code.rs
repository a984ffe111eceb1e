//! What no code has: unfinished parts, `unsafe` outside its one file, anything asynchronous, names that say nothing.

use super::source::{code, sources};
use super::{none, root};
use std::fs;

const FORBIDDEN_NAMES: [&str; 8] = ["common", "constants", "helper", "helpers", "manager", "util", "utils", "misc"];

const TOP_LEVEL: [&str; 9] =
    ["Cargo.lock", "Cargo.toml", "Containerfile", "LICENSE", "README.md", "scripts", "src", "target", "test-fixtures"];

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}

#[test]
fn nothing_is_left_undone() {
    // Put together, so that this file does not find itself.
    let marks = [
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("FIX", "ME"),
        concat!("//! Place", "holder"),
        concat!("#[ign", "ore"),
    ];
    let mut found = Vec::new();
    for source in sources() {
        for (number, line) in (1..).zip(source.text.lines()) {
            if marks.iter().any(|mark| line.contains(mark)) {
                found.push(format!("{}:{number}: {}", source.name(), line.trim()));
            }
        }
    }
    none("unfinished code and ignored tests", &found);
}

/// Lines of code with one of `forbidden` as a word, outside strings as far as one line shows.
fn with_words(forbidden: &[&str], allowed: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources().iter().filter(|source| !allowed.contains(&source.name().as_str())) {
        let lines = code(&source.text).filter(|(_, line)| words(line).any(|word| forbidden.contains(&word)));
        let lines = lines.filter(|(_, line)| !line.contains('"'));
        found.extend(lines.map(|(number, line)| format!("{}:{number}: {line}", source.name())));
    }
    found
}

#[test]
fn unsafe_is_in_one_file() {
    none("unsafe code outside sys/ffi.rs", &with_words(&["unsafe"], &["sys/ffi.rs"]));
}

#[test]
fn nothing_is_asynchronous() {
    none("asynchronous code", &with_words(&["async", "await"], &[]));
}

#[test]
fn names_say_something() {
    let sources = sources();
    let vague = sources.iter().filter(|source| {
        let path = source.path.with_extension("");
        path.components().any(|part| FORBIDDEN_NAMES.iter().any(|name| part.as_os_str() == *name))
    });
    none("files or folders with a name that says nothing", &vague.map(|source| source.name()).collect::<Vec<_>>());
    let top = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let strange: Vec<_> = top.filter(|name| !name.starts_with('.') && !TOP_LEVEL.contains(&name.as_str())).collect();
    none("things at the top of the repository that belong elsewhere", &strange);
}
