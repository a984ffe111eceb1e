//! The rules of the house, as far as a program can read them. What the documentation of the crate says of files and
//! rooms, these tests check.

mod circles;
mod code;
mod floors;
mod imports;
mod manifest;
mod not_yet;
mod sizes;
mod source;
mod words;

use std::collections::BTreeSet;
use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[track_caller]
fn none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
}

/// Compares what breaks a rule with the list of what may still break it. That list only becomes shorter: what is on it
/// and keeps the rule is taken out.
#[track_caller]
fn no_more(rule: &str, list: (&str, &str), found: &[(String, String)]) {
    let (name, allowed) = list;
    let allowed: BTreeSet<&str> = allowed.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let new = found.iter().filter(|(key, _)| !allowed.contains(key.as_str()));
    let new: Vec<String> = new.map(|(_, message)| message.clone()).collect();
    none(rule, &new);
    let kept = allowed.iter().filter(|line| !found.iter().any(|(key, _)| key == *line));
    let kept: Vec<String> = kept.map(|line| (*line).to_owned()).collect();
    none(&format!("this is right by now: take it out of {name} in src/tests/tidy/not_yet.rs"), &kept);
}
