//! Sentences that begin as sentences do: nothing that is documented begins with a piece of one.

use super::not_yet::CLIPPED;
use super::source::sources;
use super::{no_more, none, root};
use std::fs;

/// How no item begins.
const CLIPPED_BEGINNINGS: [&str; 14] =
    ["And", "As", "But", "By", "For", "Nor", "Not", "Of", "Or", "So", "The same", "Those", "Until", "Whose"];

/// The beginning that an item should not have.
fn clipped(item: &str) -> Option<&'static str> {
    let item = item.trim_start_matches(['*', '_', '[']);
    CLIPPED_BEGINNINGS.into_iter().find(|beginning| {
        let rest = item.strip_prefix(beginning);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '\''))
    })
}

/// Items of a text: what begins a paragraph, a point of a list, or a cell of a table. `None` is a line that is no text.
fn items<'a>(lines: impl Iterator<Item = Option<&'a str>>) -> Vec<(usize, &'a str)> {
    let (mut found, mut begins, mut code) = (Vec::new(), true, false);
    for (number, line) in (1..).zip(lines) {
        let Some(line) = line.map(str::trim) else {
            (begins, code) = (true, false);
            continue;
        };
        if line.starts_with("```") {
            code = !code;
            begins = true;
        } else if code || line.is_empty() {
            begins = true;
        } else if line.starts_with('|') {
            found.extend(line.split(" | ").map(|cell| (number, cell.trim_matches(['|', ' ']))));
            begins = true;
        } else {
            let point = line.strip_prefix("- ").or_else(|| line.strip_prefix("* "));
            let point =
                point.or_else(|| line.split_once(". ").filter(|(n, _)| n.parse::<u8>().is_ok()).map(|(_, p)| p));
            let heading = line.starts_with('#');
            match point.or(heading.then(|| line.trim_start_matches(['#', ' ']))) {
                Some(item) => found.push((number, item)),
                None if begins => found.push((number, line)),
                None => {}
            }
            begins = heading;
        }
    }
    found
}

/// The documentation in a line of source.
fn documentation(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
}

#[test]
fn every_file_says_what_it_is() {
    let silent = sources().into_iter().filter(|source| !source.text.starts_with("//! "));
    none("files without a `//!` header", &silent.map(|source| source.name()).collect::<Vec<_>>());
}

#[test]
fn documentation_begins_as_sentences_do() {
    let mut found = Vec::new();
    for source in sources() {
        for (number, item) in items(source.text.lines().map(documentation)) {
            if let Some(beginning) = clipped(item) {
                found.push((source.name(), format!("{}:{number}: begins with {beginning:?}: {item}", source.name())));
            }
        }
    }
    no_more("clipped beginnings", ("CLIPPED", CLIPPED), &found);
}

#[test]
fn the_readme_begins_as_sentences_do() {
    let page = fs::read_to_string(root().join("README.md")).unwrap();
    let items = items(page.lines().map(Some));
    assert!(items.len() > 300, "only {} items", items.len());
    let clipped = items.into_iter().filter(|(_, item)| clipped(item).is_some());
    none(
        "clipped beginnings",
        &clipped.map(|(number, item)| format!("README.md:{number}: {item}")).collect::<Vec<_>>(),
    );
}

#[test]
fn items_are_read_as_meant() {
    let page = "A b\nOf c\n\n- For d\n  And e\n\n| The same | f |\n1. Those\n```\nOf g\n```\n# And\nh";
    let found: Vec<_> = items(page.lines().map(Some)).into_iter().filter(|(_, item)| clipped(item).is_some()).collect();
    assert_eq!(found, [(4, "For d"), (7, "The same"), (8, "Those"), (12, "And")]);
    let check = |item, is: bool| assert_eq!(clipped(item).is_some(), is, "{item}");
    check("Often", false);
    check("The sameness", false);
    check("**Of** it", true);
    check("Format", false);
    check("For: it", true);
    let source = "/// A\n/// Of b\n///\n/// Of c\nfn f() {}\n//! And\n// Of d\n";
    let found: Vec<_> = items(source.lines().map(documentation));
    assert_eq!(found, [(1, "A"), (4, "Of c"), (6, "And")]);
}
