//! Files that can be read at one go: the median is short, and a long one says why it is.

use super::no_more;
use super::not_yet::LONG;
use super::source::{Source, sources, test_items, tokens};

/// A median of 160 is the goal.
const MEDIAN: usize = 180;
const LONGEST: usize = 500;

/// How the header of a file begins the sentence that says why it is long.
const REASON: &str = "//! This file is long because ";

/// Lines that are not unit tests.
fn lines(source: &Source) -> usize {
    let tokens = tokens(&source.text);
    let tests = test_items(&tokens).into_iter().map(|range| tokens[range.end - 1].line + 1 - tokens[range.start].line);
    source.text.lines().count() - tests.sum::<usize>()
}

#[test]
fn the_median_file_is_short() {
    let sources = sources();
    let product = sources.iter().filter(|source| !source.is_test());
    let mut all: Vec<usize> = product.map(|source| source.text.lines().count()).collect();
    all.sort_unstable();
    let median = all[all.len() / 2];
    assert!(median < MEDIAN, "the median file has {median} lines");
}

#[test]
fn long_files_say_why() {
    let long = sources().into_iter().filter(|source| !source.text.contains(REASON));
    let long = long.map(|source| (lines(&source), source.name())).filter(|(lines, _)| *lines > LONGEST);
    let found: Vec<_> = long.map(|(lines, name)| (name.clone(), format!("{name}: {lines} lines"))).collect();
    no_more(&format!("files of more than {LONGEST} lines without `{REASON}…`"), ("LONG", LONG), &found);
}

#[test]
fn unit_tests_do_not_count() {
    let text = "//! A.\nfn f() {}\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n";
    assert_eq!(lines(&Source { path: "a.rs".into(), text: text.to_owned() }), 2);
}
