//! The rules of the house, as far as a program can read them.

use std::fs;
use std::path::{Path, PathBuf};

/// What a room may import: rooms of floors below its own, and of its own floor those that [`NEIGHBOURS`] says.
const FLOORS: [&[&str]; 5] = [
    &["error", "logging", "metrics", "sys", "http"],
    &["certificate", "pod", "rules"],
    &["cni", "install", "repair", "dataplane", "kube", "zds"],
    &["node"],
    &["main", "cli", "config"],
];

/// Rooms of one floor that may know each other.
const NEIGHBOURS: [(&str, &str); 2] = [
    // The settings of a pod's rules are read from the pod.
    ("pod", "rules"),
    // Options are read by the one and named by the other.
    ("cli", "config"),
];

/// Floors whose rooms import each other freely.
const OPEN_FLOOR: usize = 0;

/// The only parts of `sys` that the pure floor may name: types without effects.
const PURE_OF_SYS: &str = "netlink::";
const PURE_FLOOR: usize = 1;

/// Macros that the crate's root exports.
const MACROS: [&str; 1] = ["invalid"];

const DEPENDENCIES: [&str; 16] = [
    "base64",
    "env_logger",
    "granit-parser",
    "httparse",
    "inotify",
    "ipnet",
    "lexopt",
    "libc",
    "log",
    "nix",
    "prost",
    "rustls",
    "serde",
    "serde_json",
    "signal-hook",
    "ureq",
];
const TEST_DEPENDENCIES: [&str; 2] = ["rcgen", "tempfile"];

const FORBIDDEN_NAMES: [&str; 8] = ["common", "constants", "helper", "helpers", "manager", "util", "utils", "misc"];

const TOP_LEVEL: [&str; 9] =
    ["Cargo.lock", "Cargo.toml", "Containerfile", "LICENSE", "README.md", "scripts", "src", "target", "test-fixtures"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every source file with its text, by its path below `src`.
fn sources() -> Vec<(PathBuf, String)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if path.file_name().is_some_and(|name| name != "target") {
                    walk(&path, found);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let src = root().join("src");
    let mut found = Vec::new();
    walk(&src, &mut found);
    found.sort();
    assert!(found.len() > 50, "only {} source files", found.len());
    let read = |path: PathBuf| (path.strip_prefix(&src).unwrap().to_path_buf(), fs::read_to_string(&path).unwrap());
    found.into_iter().map(read).collect()
}

/// Lines with their numbers, without those that are comments.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}

#[track_caller]
fn none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
}

fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

#[test]
fn every_file_says_what_it_is() {
    let silent = sources().into_iter().filter(|(_, text)| !text.starts_with("//! "));
    none("files without a `//!` header", &silent.map(|(path, _)| path.display().to_string()).collect::<Vec<_>>());
}

/// What is wrong with importing `path` (what follows `crate::`) in a room.
fn import_error(room: &str, path: &str) -> Option<String> {
    let target = words(path).next().unwrap_or_default();
    if target == room || MACROS.contains(&target) {
        return None;
    }
    let (Some(here), Some(there)) = (floor(room), floor(target)) else {
        return Some(format!("{room} or {target} has no floor"));
    };
    if here == PURE_FLOOR && target == "sys" && !path["sys::".len()..].starts_with(PURE_OF_SYS) {
        return Some(format!("{room} is pure: it may name sys::{PURE_OF_SYS} only"));
    }
    let neighbours = NEIGHBOURS.contains(&(room, target)) || here == OPEN_FLOOR;
    (there > here || there == here && !neighbours)
        .then(|| format!("{room} (floor {here}) may not import {target} (floor {there})"))
}

#[test]
fn floors_import_only_floors_below() {
    let mut found = Vec::new();
    for (path, text) in sources() {
        let first = path.components().next().unwrap().as_os_str().to_str().unwrap();
        let room = first.trim_end_matches(".rs");
        if matches!(room, "lib" | "main" | "tests") {
            continue;
        }
        for (number, line) in code(&text) {
            for (_, rest) in line.match_indices("crate::").map(|(at, word)| line.split_at(at + word.len())) {
                let error = import_error(room, rest);
                found.extend(error.map(|error| format!("{}:{number}: {error}", path.display())));
            }
        }
    }
    none("imports that go up or sideways", &found);
}

#[test]
fn the_floors_are_read_as_meant() {
    let check = |room: &str, path: &str, allowed: bool| {
        assert_eq!(import_error(room, path).is_none(), allowed, "{room} {path}")
    };
    check("node", "zds::server::Server;", true);
    check("zds", "node::Event;", false);
    check("zds", "cni::event;", false);
    check("http", "sys::clock;", true);
    check("sys", "pod::Pod;", false);
    check("rules", "sys::netlink::Family;", true);
    check("rules", "sys::{clock};", false);
    check("rules", "pod::Pod;", false);
    check("pod", "rules::Settings;", true);
    check("zds", "invalid;", true);
    check("zds", "nowhere::X;", false);
}

/// The rooms that the code map of the crate's documentation puts on a floor.
fn mapped(documentation: &str, floor: usize) -> Vec<&str> {
    let row = format!("//! | {floor} |");
    let row = documentation.lines().find_map(|line| line.strip_prefix(&row)).unwrap_or_default();
    // Rooms stand in backquotes; what a room is about has none.
    row.split('`').skip(1).step_by(2).collect()
}

#[test]
fn the_code_map_is_right() {
    let documentation = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let rooms = documentation.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    let mut found = Vec::new();
    for room in rooms {
        let on: Vec<_> = (0..FLOORS.len()).filter(|floor| mapped(&documentation, *floor).contains(&room)).collect();
        if on.first().copied() != floor(room) || on.len() != 1 {
            found.push(format!("{room} is on floor {:?}, and on {on:?} in the map", floor(room)));
        }
    }
    none("rooms that the code map in lib.rs gets wrong", &found);
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
    for (path, text) in sources() {
        for (number, line) in (1..).zip(text.lines()) {
            if marks.iter().any(|mark| line.contains(mark)) {
                found.push(format!("{}:{number}: {}", path.display(), line.trim()));
            }
        }
    }
    none("unfinished code and ignored tests", &found);
}

#[test]
fn unsafe_is_in_one_file() {
    let allowed = Path::new("sys/ffi.rs");
    let mut found = Vec::new();
    for (path, text) in sources().iter().filter(|(path, _)| path != allowed) {
        let word = concat!("un", "safe");
        let lines = code(text).filter(|(_, line)| words(line).any(|found| found == word) && !line.contains('"'));
        found.extend(lines.map(|(number, line)| format!("{}:{number}: {line}", path.display())));
    }
    none("unsafe code outside sys/ffi.rs", &found);
}

#[test]
fn nothing_is_asynchronous() {
    let mut found = Vec::new();
    for (path, text) in sources() {
        let lines = code(&text).filter(|(_, line)| words(line).any(|word| word == "async" || word == "await"));
        let lines = lines.filter(|(_, line)| !line.contains('"'));
        found.extend(lines.map(|(number, line)| format!("{}:{number}: {line}", path.display())));
    }
    none("asynchronous code", &found);
}

#[test]
fn names_say_something() {
    let vague = sources().into_iter().filter(|(path, _)| {
        path.with_extension("").components().any(|part| FORBIDDEN_NAMES.iter().any(|name| part.as_os_str() == *name))
    });
    none(
        "files or folders with a name that says nothing",
        &vague.map(|(path, _)| path.display().to_string()).collect::<Vec<_>>(),
    );
    let top = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let strange: Vec<_> = top.filter(|name| !name.starts_with('.') && !TOP_LEVEL.contains(&name.as_str())).collect();
    none("things at the top of the repository that belong elsewhere", &strange);
}

/// The dependencies of a manifest that are neither agreed on nor explained by a comment above them.
fn unexplained(manifest: &str) -> Vec<String> {
    let (mut section, mut explained, mut found) = ("", false, Vec::new());
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('#') {
            explained = true;
        } else if line.starts_with('[') {
            (section, explained) = (line, false);
        } else if let Some((name, _)) = line.split_once('=') {
            let name = name.trim().trim_matches('"');
            let agreed = match section {
                "[dependencies]" => DEPENDENCIES.contains(&name),
                "[dev-dependencies]" => DEPENDENCIES.contains(&name) || TEST_DEPENDENCIES.contains(&name),
                _ => !section.contains("dependencies"),
            };
            if !agreed && !explained {
                found.push(format!("{section} {name}"));
            }
            // One comment may stand above a few that belong together; a blank line ends it.
        } else {
            explained = false;
        }
    }
    found
}

#[test]
fn dependencies_are_agreed_on_or_explained() {
    none("dependencies", &unexplained(&fs::read_to_string(root().join("Cargo.toml")).unwrap()));
    let made_up = "[dependencies]\nlog = 1\nrcgen = 1\n# why\nleft-pad = 1\n\nregex = 1\n[dev-dependencies]\nrcgen = 1\nmockall = 1\n";
    assert_eq!(unexplained(made_up), ["[dependencies] rcgen", "[dependencies] regex", "[dev-dependencies] mockall"]);
}
