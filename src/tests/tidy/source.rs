//! The source files as the rules of the house read them: lines, tokens, and what of a file is not a test.

use super::root;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// One source file.
pub(super) struct Source {
    /// Its path below `src`.
    pub path: PathBuf,
    pub text: String,
}

impl Source {
    /// Its path below `src`, for messages and lists.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// The room it is in, or its own name where it lies in `src` itself.
    pub fn room(&self) -> &str {
        self.path.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs")
    }

    /// Whether it is a test as a whole.
    pub fn is_test(&self) -> bool {
        self.room() == "tests" || self.path.with_extension("").components().any(|part| part.as_os_str() == "tests")
    }
}

/// Every source file, sorted by path.
pub(super) fn sources() -> Vec<Source> {
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
    let read = |path: PathBuf| Source {
        path: path.strip_prefix(&src).unwrap().to_path_buf(),
        text: fs::read_to_string(&path).unwrap(),
    };
    found.into_iter().map(read).collect()
}

/// Lines with their numbers, without those that are comments.
pub(super) fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// A word, a `::`, or one other character, with the number of its line. Comments, strings, characters and lifetimes
/// are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub text: &'a str,
    pub line: usize,
}

impl Token<'_> {
    pub fn is_word(&self) -> bool {
        self.text.starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// How long the comment, string, character or lifetime at the beginning of `rest` is; 0 where none begins.
fn skipped(rest: &str) -> usize {
    let until = |end: &str, from: usize| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
    let escaped = |quote: char, from: usize| {
        let mut chars = rest[from..].char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => _ = chars.next(),
                c if c == quote => return from + at + 1,
                _ => {}
            }
        }
        rest.len()
    };
    let raw = rest.trim_start_matches(['b', 'c']);
    let prefix = rest.len() - raw.len();
    if rest.starts_with("//") {
        until("\n", 0)
    } else if rest.starts_with("/*") {
        until("*/", 2)
    } else if prefix < 2 && raw.starts_with('"') {
        escaped('"', prefix + 1)
    } else if prefix < 2 && (raw.starts_with("r\"") || raw.starts_with("r#")) {
        let hashes = raw[1..].len() - raw[1..].trim_start_matches('#').len();
        // Otherwise a raw identifier.
        let string = raw[1 + hashes..].starts_with('"');
        if string { until(&format!("\"{}", "#".repeat(hashes)), prefix + hashes + 2) } else { 0 }
    } else if let Some(after) = rest.strip_prefix('\'') {
        let mut chars = after.chars();
        match (chars.next(), chars.next()) {
            (Some('\\'), _) => escaped('\'', 1),
            (Some(c), Some('\'')) => 2 + c.len_utf8(),
            _ => 1 + after.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(after.len()),
        }
    } else {
        0
    }
}

/// The tokens of a file.
pub(super) fn tokens(text: &str) -> Vec<Token<'_>> {
    let (mut at, mut line, mut found) = (0, 1, Vec::new());
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (length, is_token) = match skipped(rest) {
            0 if word > 0 => (word, true),
            0 if rest.starts_with("::") => (2, true),
            0 => (first.len_utf8(), !first.is_whitespace()),
            length => (length, false),
        };
        if is_token {
            found.push(Token { text: &rest[..length], line });
        }
        line += rest[..length].matches('\n').count();
        at += length;
    }
    found
}

/// The place behind the group that begins at `open`, with one of the brackets `{[(`.
pub(super) fn behind_group(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "{" | "[" | "(" => depth += 1,
            "}" | "]" | ")" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// The place behind the item that begins at `start`, its attributes included.
fn behind_item(tokens: &[Token<'_>], start: usize) -> usize {
    let mut at = start;
    while at < tokens.len() {
        match tokens[at].text {
            ";" => return at + 1,
            "{" => {
                let end = behind_group(tokens, at);
                return end + usize::from(tokens.get(end).is_some_and(|token| token.text == ";"));
            }
            "[" | "(" => at = behind_group(tokens, at),
            _ => at += 1,
        }
    }
    at
}

/// The items that are compiled for unit tests only, as ranges of `tokens`.
pub(super) fn test_items(tokens: &[Token<'_>]) -> Vec<Range<usize>> {
    let (mut at, mut found) = (0, Vec::new());
    while at < tokens.len() {
        let texts = tokens[at..].iter().map(|token| token.text);
        if texts.take(7).eq(["#", "[", "cfg", "(", "test", ")", "]"]) {
            let end = behind_item(tokens, at + 7);
            found.push(at..end);
            at = end;
        } else {
            at += 1;
        }
    }
    found
}

/// Takes out what is compiled for unit tests only.
pub(super) fn without_tests(mut tokens: Vec<Token<'_>>) -> Vec<Token<'_>> {
    for range in test_items(&tokens).into_iter().rev() {
        tokens.drain(range);
    }
    tokens
}

#[test]
fn tokens_are_read_as_meant() {
    let read = |text| without_tests(tokens(text)).iter().map(|token| token.text).collect::<Vec<_>>().join(" ");
    let check = |text, expected: &str| assert_eq!(read(text), expected);
    check("use a::b; // c\n/* d */ 'x' '\\'' &'static str", "use a :: b ; & str");
    check("f(\"a \\\" b\", r#\"c \" d\"#, b\"e\", 1_000)", "f ( , , , 1_000 )");
    check("a #[cfg(test)] #[expect(b(c), reason = \"d\")] mod tests { fn f() {} } e", "a e");
    check("a #[cfg(test)]\nuse b::{c, d}; e", "a e");
    let lines: Vec<_> = tokens("a \"\n\" b // \n c").iter().map(|token| token.line).collect();
    assert_eq!(lines, [1, 2, 3]);
}
