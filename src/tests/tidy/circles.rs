//! No circle of files: from no file do the files it uses lead back to it.

use super::imports::graph;
use super::no_more;
use super::not_yet::CIRCLES;
use super::source::sources;
use std::collections::{BTreeMap, BTreeSet};

/// Everything that can be reached from `start`.
fn reached<'a>(graph: &'a BTreeMap<String, BTreeSet<String>>, start: &str) -> BTreeSet<&'a str> {
    let (mut found, mut open) = (BTreeSet::new(), vec![start]);
    while let Some(file) = open.pop() {
        for next in graph.get(file).into_iter().flatten() {
            if found.insert(next.as_str()) {
                open.push(next);
            }
        }
    }
    found
}

/// The circles: sets of files each of which leads to all others of its set.
pub(super) fn circles(graph: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<BTreeSet<&str>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|file| (file.as_str(), reached(graph, file))).collect();
    let circle = |file: &&str| -> BTreeSet<&str> {
        reach[file].iter().filter(|other| reach[*other].contains(*file)).copied().collect()
    };
    reach.keys().map(circle).filter(|circle| !circle.is_empty()).collect()
}

#[test]
fn no_file_uses_a_file_that_uses_it() {
    let graph = graph(&sources());
    let mut found = Vec::new();
    for circle in circles(&graph) {
        for file in &circle {
            let uses: Vec<&str> = graph[*file].iter().map(String::as_str).filter(|to| circle.contains(to)).collect();
            found.push(((*file).to_owned(), format!("{file} uses {}", uses.join(", "))));
        }
    }
    no_more("circles of files", ("CIRCLES", CIRCLES), &found);
}

#[test]
fn circles_are_found_whole() {
    let edges = [("a", "b"), ("b", "c"), ("c", "b"), ("c", "d"), ("d", "b"), ("e", "f"), ("f", "e")];
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, to) in edges {
        graph.entry(from.to_owned()).or_default().insert(to.to_owned());
    }
    assert_eq!(circles(&graph), BTreeSet::from([BTreeSet::from(["b", "c", "d"]), BTreeSet::from(["e", "f"])]));
}
