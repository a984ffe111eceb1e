//! The ground plan: which room stands on which floor, and which rooms it may import.

use super::imports::{graph, paths_of};
use super::not_yet::FLOORS as NOT_YET;
use super::source::{Source, sources};
use super::{no_more, none, root};
use std::fs;

/// The rooms, row by row from the top, each with its floor. A room imports rooms of rows below its own.
const ROWS: [(u8, &[&str]); 11] = [
    (4, &["main"]),
    (4, &["cli"]),
    (4, &["config"]),
    (4, &["doctor"]),
    (3, &["node", "proxy"]),
    (2, &["cni", "install", "repair", "dataplane", "kube", "zds", "ca", "sds", "xds", "dns"]),
    (1, &["pod"]),
    (1, &["rules", "certificate"]),
    (0, &["grpc"]),
    (0, &["http", "h2"]),
    (0, GROUND),
];

/// What every room may import, these among themselves included.
const GROUND: &[&str] = &["error", "logging", "metrics", "sys"];

const PURE_FLOOR: u8 = 1;
/// What a room of the pure floor may not name of the standard library. Clocks are not read by clippy's list.
const EFFECTS: [&str; 4] = ["env", "fs", "process", "thread"];

/// Macros that the crate's root exports.
const MACROS: [&str; 1] = ["invalid"];

/// Row and floor of a room.
fn place(room: &str) -> Option<(usize, u8)> {
    ROWS.iter().position(|(_, rooms)| rooms.contains(&room)).map(|row| (row, ROWS[row].0))
}

/// What is wrong with importing `path` (without `crate`) in a room.
fn import_error(room: &str, path: &[&str]) -> Option<String> {
    let target = *path.first()?;
    if target == room || MACROS.contains(&target) {
        return None;
    }
    let (Some((here, floor)), Some((there, _))) = (place(room), place(target)) else {
        return Some(format!("{room} or {target} has no floor"));
    };
    if floor == PURE_FLOOR && GROUND.contains(&target) {
        return (target != "error").then(|| format!("{room} is pure: of the ground it may import error only"));
    }
    (there <= here && !GROUND.contains(&target))
        .then(|| format!("{room} may not import {target}, which is not below it"))
}

/// What is wrong with naming a path of another crate in a room.
fn effect_error(room: &str, path: &[&str]) -> Option<String> {
    let pure = place(room).is_some_and(|(_, floor)| floor == PURE_FLOOR);
    (pure && path[0] == "std" && path.len() > 2 && EFFECTS.contains(&path[1]))
        .then(|| format!("{room} is pure: no {}", path.join("::")))
}

fn rooms(sources: &[Source]) -> impl Iterator<Item = &Source> {
    sources.iter().filter(|source| !matches!(source.room(), "lib" | "main" | "tests"))
}

#[test]
fn rooms_import_only_what_is_below() {
    let sources = sources();
    let mut found = Vec::new();
    for source in rooms(&sources) {
        for (line, path) in paths_of(source) {
            let error = match path.as_slice() {
                ["crate", path @ ..] => import_error(source.room(), path),
                path if !source.is_test() => effect_error(source.room(), path),
                _ => None,
            };
            found.extend(error.map(|error| (source.name(), format!("{}:{line}: {error}", source.name()))));
        }
    }
    // What is reached by `super`, or handed on by another room.
    let graph = graph(&sources);
    for source in rooms(&sources).filter(|source| !source.is_test()) {
        for target in graph.get(&source.name()).into_iter().flatten().filter(|target| *target != "lib.rs") {
            let room = target.split(['/', '.']).next().unwrap();
            let (Some((here, _)), Some((there, _))) = (place(source.room()), place(room)) else { continue };
            if there <= here && room != source.room() && !GROUND.contains(&room) {
                found.push((source.name(), format!("{}: uses {target}, which is not below it", source.name())));
            }
        }
    }
    no_more("imports that do not go down", ("FLOORS", NOT_YET), &found);
}

#[test]
fn the_floors_are_read_as_meant() {
    let check = |room: &str, path: &str, allowed: bool| {
        let path: Vec<&str> = path.split("::").collect();
        assert_eq!(import_error(room, &path).is_none(), allowed, "{room} {path:?}")
    };
    check("node", "zds::server::Server", true);
    check("node", "proxy::Proxy", false);
    check("zds", "node::Event", false);
    check("zds", "cni::event", false);
    check("cli", "config::option", true);
    check("config", "cli::page", false);
    check("config", "doctor::Options", true);
    check("http", "sys::clock", true);
    check("http", "h2::Frame", false);
    check("sys", "error::Error", true);
    check("sys", "pod::Pod", false);
    check("rules", "error::Error", true);
    check("rules", "sys::netlink::RawMessage", false);
    check("rules", "sys::clock", false);
    check("rules", "pod::Pod", false);
    check("rules", "http::Body", true);
    check("pod", "rules::Settings", true);
    check("pod", "logging::Once", false);
    check("zds", "invalid", true);
    check("zds", "nowhere::X", false);
    let check = |path: &str, allowed: bool| {
        let path: Vec<&str> = path.split("::").collect();
        assert_eq!(effect_error("pod", &path).is_none(), allowed, "{path:?}");
        assert!(effect_error("kube", &path).is_none(), "{path:?}");
    };
    check("std::fs::read", false);
    check("std::process::Command", false);
    check("std::time::Duration", true);
    check("std::collections::HashMap", true);
}

/// The rows of the code map in the crate's documentation: floor, and the rooms named in it.
fn mapped(documentation: &str) -> Vec<(u8, Vec<String>)> {
    let row = |line: &str| {
        let (floor, text) = line.strip_prefix("//! | ")?.split_once(" |")?;
        // Rooms stand in backquotes; what a room is about has none.
        let rooms = text.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        Some((floor.parse().ok()?, rooms))
    };
    documentation.lines().filter_map(row).collect()
}

#[test]
fn the_code_map_is_right() {
    let documentation = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let module = |line: &str| {
        let words: Vec<&str> = line.trim_end_matches(';').split_whitespace().collect();
        matches!(words.as_slice(), [.., "mod", _]).then(|| words[words.len() - 1].to_owned())
    };
    let modules: Vec<String> =
        documentation.lines().filter(|line| !line.starts_with("//")).filter_map(module).collect();
    assert!(modules.len() > 10, "{modules:?}");
    let exists = |room: &&&str| **room == "main" || modules.iter().any(|module| module == **room);
    let rows = ROWS.iter().map(|(floor, rooms)| {
        let rooms: Vec<String> = rooms.iter().filter(exists).map(|room| (*room).to_owned()).collect();
        (*floor, rooms)
    });
    let mut expected: Vec<_> = rows.filter(|(_, rooms)| !rooms.is_empty()).collect();
    let mut map = mapped(&documentation);
    for (_, rooms) in expected.iter_mut().chain(&mut map) {
        rooms.sort();
    }
    assert_eq!(map, expected, "the code map in lib.rs, and the rooms that there are");
    let lost = modules.into_iter().filter(|module| place(module).is_none()).collect::<Vec<_>>();
    none("rooms without a floor", &lost);
}
