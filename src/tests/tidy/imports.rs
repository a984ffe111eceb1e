//! Which file uses which: the paths of every file, followed to the file that defines what they name.
//!
//! A file uses another where it names something that the other defines, in a `use` or in the code, or calls a method
//! of a type whose methods are spread over files. What is only declared (`mod child;`) or handed on (`pub use`) is no
//! use: whoever names what is handed on uses the file that defines it. Unit tests do not count.

use super::source::{Source, Token, behind_group, tokens, without_tests};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

/// One name that a `use` brings into a file.
struct Use<'a> {
    path: Vec<&'a str>,
    line: usize,
    /// What it is called here; `*` for all that a module has.
    alias: &'a str,
    handed_on: bool,
}

struct File<'a> {
    name: String,
    /// Its crate (`src` or `src/tests`) and its module there.
    module: Vec<String>,
    uses: Vec<Use<'a>>,
    /// What is left without the `use` items.
    code: Vec<Token<'a>>,
    /// Names of the items it defines.
    items: HashSet<&'a str>,
}

/// The module that a file is: its crate's name first.
fn module(path: &Path) -> Option<Vec<String>> {
    let mut parts: Vec<String> = path.with_extension("").iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if parts[0] != "tests" {
        parts.insert(0, "ferrule".to_owned());
    }
    match parts.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["ferrule", "lib"] | ["tests", "main"] => parts.truncate(1),
        // Crates of one file.
        [.., "main"] | ["tests", "fuzz", "target"] => return None,
        [.., "mod"] => _ = parts.pop(),
        _ => {}
    }
    Some(parts)
}

/// Reads a `use` tree from `at`: its names, and the place behind it.
fn use_tree<'a>(
    tokens: &[Token<'a>],
    mut at: usize,
    prefix: &[&'a str],
    handed_on: bool,
    found: &mut Vec<Use<'a>>,
) -> usize {
    let (mut path, line) = (prefix.to_vec(), tokens[at].line);
    loop {
        match tokens[at].text {
            "{" => {
                let end = behind_group(tokens, at);
                at += 1;
                while at < end - 1 {
                    at = use_tree(tokens, at, &path, handed_on, found);
                    at += usize::from(tokens[at].text == ",");
                }
                return end;
            }
            "*" => {
                found.push(Use { path, line, alias: "*", handed_on });
                return at + 1;
            }
            "::" => at += 1,
            "as" => {
                found.push(Use { path, line, alias: tokens[at + 1].text, handed_on });
                return at + 2;
            }
            _ if tokens[at].is_word() => {
                path.push(tokens[at].text);
                at += 1;
            }
            _ => {
                if path.last() == Some(&"self") && path.len() > 1 {
                    path.pop();
                }
                let alias = path.last().copied().unwrap_or_default();
                found.push(Use { path, line, alias, handed_on });
                return at;
            }
        }
    }
}

/// The names that a file's `use` items bring, and the rest of its code.
fn split(all: Vec<Token<'_>>) -> (Vec<Use<'_>>, Vec<Token<'_>>) {
    let (mut uses, mut code, mut at) = (Vec::new(), Vec::new(), 0);
    while at < all.len() {
        let before = code.last().map(|token: &Token<'_>| token.text);
        if all[at].text == "use" {
            // `pub use`, and `pub(crate) use` after its bracket.
            let handed_on = matches!(before, Some("pub" | ")"));
            at = use_tree(&all, at + 1, &[], handed_on, &mut uses);
        } else {
            code.push(all[at]);
            at += 1;
        }
    }
    (uses, code)
}

fn read(source: &Source) -> Option<File<'_>> {
    let module = module(&source.path)?;
    let (uses, code) = split(without_tests(tokens(&source.text)));
    let mut items = HashSet::new();
    for pair in code.windows(2) {
        let kind = ["fn", "struct", "enum", "const", "static", "type", "trait", "union"].contains(&pair[0].text);
        if kind && pair[1].is_word() {
            items.insert(pair[1].text);
        }
    }
    for three in code.windows(3).filter(|three| three[0].text == "macro_rules") {
        items.insert(three[2].text);
    }
    Some(File { name: source.name(), module, uses, code, items })
}

/// What a path leads to.
enum Target {
    Module,
    /// An item: the number of the file that defines it, and its name.
    Item(usize, String),
    Unknown,
}

struct Files<'a> {
    files: Vec<File<'a>>,
    modules: HashMap<Vec<String>, usize>,
}

impl Files<'_> {
    /// Follows a path that file `from` writes.
    fn resolve(&self, from: usize, path: &[&str], depth: usize) -> Target {
        let file = &self.files[from];
        let mut base = file.module.clone();
        let mut rest = path;
        match path[0] {
            "crate" => base.truncate(1),
            "self" => {}
            "super" => {
                while let Some(("super", after)) = rest.split_first().map(|(first, after)| (*first, after)) {
                    base.pop();
                    rest = after;
                }
                return self.walk(&base, rest, depth);
            }
            first => {
                let mut child = base.clone();
                child.push(first.to_owned());
                let known = file.items.contains(first)
                    || file.uses.iter().any(|one| one.alias == first || one.alias == "*")
                    || self.modules.contains_key(&child);
                return if known { self.walk(&base, path, depth) } else { Target::Unknown };
            }
        }
        self.walk(&base, &rest[1..], depth)
    }

    /// Follows a path below a module: through its children and what it hands on.
    fn walk(&self, base: &[String], path: &[&str], depth: usize) -> Target {
        let (mut base, mut rest) = (base.to_vec(), path);
        while let Some((first, after)) = rest.split_first() {
            base.push((*first).to_owned());
            if !self.modules.contains_key(&base) {
                base.pop();
                break;
            }
            rest = after;
        }
        let (Some(&at), Some(name)) = (self.modules.get(&base), rest.first()) else { return Target::Module };
        let file = &self.files[at];
        if file.items.contains(name) || depth == 0 {
            return Target::Item(at, (*name).to_owned());
        }
        for one in &file.uses {
            let mut path = one.path.clone();
            if one.alias == *name {
                path.extend(&rest[1..]);
                // A name of another crate is nobody's here.
                return self.resolve(at, &path, depth - 1);
            }
            if one.alias == "*" {
                path.extend(rest);
                if let Target::Item(file, name) = self.resolve(at, &path, depth - 1)
                    && self.files[file].items.contains(name.as_str())
                {
                    return Target::Item(file, name);
                }
            }
        }
        // Macros stand at the crate's root, wherever they are written.
        let by_macro = base.len() == 1 && !file.items.contains(name);
        match self.files.iter().position(|file| by_macro && file.items.contains(name)) {
            Some(file) => Target::Item(file, (*name).to_owned()),
            None => Target::Item(at, (*name).to_owned()),
        }
    }
}

/// The methods of one type that are written in one file.
struct Implementation<'a> {
    file: usize,
    /// The file that defines the type, and the type's name.
    of: (usize, String),
    methods: Vec<&'a str>,
    body: std::ops::Range<usize>,
}

impl<'a> Files<'a> {
    /// The blocks `impl Type { … }`, those of traits not included.
    fn implementations(&self) -> Vec<Implementation<'a>> {
        let mut found = Vec::new();
        for (number, file) in self.files.iter().enumerate() {
            for (at, _) in file.code.iter().enumerate().filter(|(_, token)| token.text == "impl") {
                // Not `-> impl Trait`, `(impl Trait`, `: impl Trait`.
                let before = at.checked_sub(1).map(|before| file.code[before].text);
                if !matches!(before, None | Some("}" | ";" | "]")) {
                    continue;
                }
                let Some(open) = (at..file.code.len()).find(|at| file.code[*at].text == "{") else { continue };
                let head = &file.code[at + 1..open];
                if head.iter().any(|token| token.text == "for") {
                    continue;
                }
                let Some(name) = head
                    .iter()
                    .filter(|token| token.is_word())
                    .find(|token| token.text.starts_with(char::is_uppercase) && token.text.len() > 1)
                else {
                    continue;
                };
                let body = open..behind_group(&file.code, open);
                let methods = file.code[body.clone()].windows(2).filter(|pair| pair[0].text == "fn");
                let methods = methods.map(|pair| pair[1].text).collect();
                if let Target::Item(of, name) = self.resolve(number, &[name.text], 8) {
                    found.push(Implementation { file: number, of: (of, name), methods, body });
                }
            }
        }
        found
    }
}

/// Every path in the code, with its line.
fn paths<'t, 'a>(code: &'t [Token<'a>]) -> impl Iterator<Item = (usize, Vec<&'a str>)> + 't {
    code.iter().enumerate().filter_map(|(at, token)| {
        let before = at.checked_sub(1).map(|before| code[before].text);
        if !token.is_word() || matches!(before, Some("::" | "." | "fn" | "struct" | "enum" | "mod")) {
            return None;
        }
        let mut path = vec![token.text];
        for pair in code[at + 1..].chunks(2) {
            match pair {
                [colons, word] if colons.text == "::" && word.is_word() => path.push(word.text),
                _ => break,
            }
        }
        Some((token.line, path))
    })
}

/// Every path that a file names, in `use` and in the code, unit tests included, with its line.
pub(super) fn paths_of(source: &Source) -> Vec<(usize, Vec<&str>)> {
    let (uses, code) = split(tokens(&source.text));
    let used = uses.into_iter().map(|one| (one.line, one.path));
    used.chain(paths(&code).filter(|(_, path)| path.len() > 1)).collect()
}

/// Who uses whom among `sources`, by path below `src`: each file with those that it uses.
pub(super) fn graph(sources: &[Source]) -> BTreeMap<String, BTreeSet<String>> {
    let files: Vec<File<'_>> = sources.iter().filter_map(read).collect();
    let modules = (0..).zip(&files).map(|(number, file)| (file.module.clone(), number)).collect();
    let files = Files { files, modules };
    let mut edges: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); files.files.len()];
    for (number, file) in files.files.iter().enumerate() {
        let mut note = |path: &[&str]| {
            if let Target::Item(target, _) = files.resolve(number, path, 8) {
                edges[number].insert(target);
            }
        };
        let words = file.code.windows(2).filter(|pair| !matches!(pair[0].text, "mod" | "."));
        let words: HashSet<&str> = words.map(|pair| pair[1].text).collect();
        for one in file.uses.iter().filter(|one| !one.handed_on || words.contains(one.alias)) {
            note(&one.path);
        }
        for (_, path) in paths(&file.code) {
            // A single word counts where a `*` may have brought it.
            if path.len() > 1 || file.uses.iter().any(|one| one.alias == "*") {
                note(&path);
            }
        }
    }
    let implementations = files.implementations();
    for one in &implementations {
        let others = implementations.iter().filter(|other| other.of == one.of && other.file != one.file);
        let others: Vec<_> = others.collect();
        let code = &files.files[one.file].code[one.body.clone()];
        for three in code.windows(3) {
            let called = matches!((three[0].text, three[1].text), ("self", ".") | ("Self", "::"));
            let there = others.iter().filter(|other| called && other.methods.contains(&three[2].text));
            edges[one.file].extend(there.map(|other| other.file));
        }
    }
    let name = |number: usize| files.files[number].name.clone();
    let named = |(number, targets): (usize, BTreeSet<usize>)| {
        (name(number), targets.into_iter().filter(|target| *target != number).map(name).collect())
    };
    edges.into_iter().enumerate().map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], expected: &[(&str, &str)]) {
        let source = |(path, text): &(&str, &str)| Source { path: path.into(), text: (*text).to_owned() };
        let sources: Vec<Source> = files.iter().map(source).collect();
        let found = graph(&sources);
        let found: Vec<_> =
            found.iter().flat_map(|(from, to)| to.iter().map(move |to| (from.as_str(), to.as_str()))).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn paths_lead_to_the_file_that_defines() {
        check(
            &[
                ("lib.rs", "pub mod a; mod b; pub use b::Thing;"),
                ("a.rs", "mod c; pub use c::{self, Deep}; pub fn f() {}"),
                ("a/c.rs", "use super::f; use crate::{Thing, b}; struct Deep; fn g() { b::h() }"),
                ("b.rs", "pub struct Thing; pub fn h() { super::a::Deep; std::fs::read(); Unknown::new() }"),
            ],
            &[("a/c.rs", "a.rs"), ("a/c.rs", "b.rs"), ("b.rs", "a/c.rs")],
        );
    }

    #[test]
    fn handing_on_is_no_use_and_tests_are_none() {
        check(
            &[
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", "pub(crate) use super::b::One; pub use super::b::Two; fn f(two: Two) {}"),
                ("b.rs", "struct One; struct Two; #[cfg(test)] mod tests { use crate::a::f; }"),
            ],
            &[("a.rs", "b.rs")],
        );
    }

    #[test]
    fn methods_spread_over_files_are_used_too() {
        check(
            &[
                (
                    "state.rs",
                    "mod flow; pub struct State; impl State { fn step(&mut self) { self.flow() } fn end() {} }",
                ),
                ("state/flow.rs", "use super::State; impl State { fn flow(&self) { Self::end(); self.other() } }"),
            ],
            &[("state.rs", "state/flow.rs"), ("state/flow.rs", "state.rs")],
        );
    }

    #[test]
    fn all_of_a_module_at_once() {
        check(
            &[
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", "use super::b::*; fn f() { g() }"),
                ("b.rs", "mod c; pub use c::g;"),
                ("b/c.rs", "pub fn g() {}"),
            ],
            &[("a.rs", "b/c.rs")],
        );
    }
}
