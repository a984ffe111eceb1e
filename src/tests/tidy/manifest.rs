//! The dependencies: agreed on, or explained where they stand.

use super::{none, root};
use std::fs;

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
