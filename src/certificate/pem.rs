//! PEM (RFC 7468), read as leniently as Go's `encoding/pem` reads it.
//!
//! Text around and between blocks is passed over; so is a block that is broken, and one that another begins inside of.
//! Reading costs time in proportion to the length of the text.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use zeroize::Zeroizing;

/// The label of certificates.
pub const CERTIFICATE: &str = "CERTIFICATE";

/// Characters of a line of base64.
const COLUMNS: usize = 64;

/// Standard base64; the bits that the last character has too many may be anything.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

/// One block.
#[derive(Clone, PartialEq, Eq)]
pub struct Block<'a> {
    /// What stands after `BEGIN`.
    pub label: &'a str,
    /// Whether lines such as `Proc-Type: 4,ENCRYPTED` stand above the content.
    pub has_headers: bool,
    /// The content. It may be a key's.
    pub der: Zeroizing<Vec<u8>>,
}

/// Every block of a text, in order.
pub fn blocks(text: &[u8]) -> impl Iterator<Item = Block<'_>> {
    let mut lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    let mut open: Option<Open<'_>> = None;
    std::iter::from_fn(move || {
        loop {
            let line = lines.next()?;
            if let Some(label) = label(line, b"-----BEGIN ") {
                open = Some(Open { label, has_headers: false, base64: Zeroizing::default() });
            } else if line.starts_with(b"-----END ") {
                let block = open.take().filter(|open| label(line, b"-----END ") == Some(open.label));
                if let Some(block) = block.and_then(Open::decode) {
                    return Some(block);
                }
            } else if let Some(block) = &mut open {
                block.add(line);
            }
        }
    })
}

/// The certificates of a text, as DER.
pub fn certificates(text: &[u8]) -> impl Iterator<Item = Zeroizing<Vec<u8>>> {
    blocks(text).filter(|block| block.label == CERTIFICATE).map(|block| block.der)
}

fn label<'a>(line: &'a [u8], start: &[u8]) -> Option<&'a str> {
    std::str::from_utf8(line.strip_prefix(start)?.strip_suffix(b"-----")?).ok()
}

/// A block whose end has not come yet.
struct Open<'a> {
    label: &'a str,
    has_headers: bool,
    base64: Zeroizing<Vec<u8>>,
}

impl<'a> Open<'a> {
    fn add(&mut self, line: &[u8]) {
        if self.base64.is_empty() && line.contains(&b':') {
            self.has_headers = true;
        } else {
            self.base64.extend(line.iter().filter(|byte| !byte.is_ascii_whitespace()));
        }
    }

    fn decode(self) -> Option<Block<'a>> {
        let der = Zeroizing::new(BASE64.decode(&*self.base64).ok()?);
        Some(Block { label: self.label, has_headers: self.has_headers, der })
    }
}

/// One block as text, with lines of 64 columns and a line feed at its end.
pub fn encode(label: &str, der: &[u8]) -> Zeroizing<String> {
    let base64 = Zeroizing::new(BASE64.encode(der));
    let lines = base64.len().div_ceil(COLUMNS);
    // All of it at once: a text that grows leaves copies behind.
    let mut text = Zeroizing::new(String::with_capacity(base64.len() + lines + 2 * label.len() + 32));
    let mut push = |parts: &[&str]| parts.iter().for_each(|part| text.push_str(part));
    push(&["-----BEGIN ", label, "-----\n"]);
    let mut rest = base64.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at_checked(COLUMNS).unwrap_or((rest, ""));
        push(&[line, "\n"]);
        rest = after;
    }
    push(&["-----END ", label, "-----\n"]);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The label and content of each block.
    #[track_caller]
    fn check(text: &str, expected: &[(&str, &[u8])]) {
        let found: Vec<_> = blocks(text.as_bytes()).map(|block| (block.label, block.der.to_vec())).collect();
        let expected: Vec<_> = expected.iter().map(|(label, der)| (*label, der.to_vec())).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn blocks_are_found_in_what_people_write() {
        let a = "-----BEGIN A-----\nYWJj\n-----END A-----\n";
        check(a, &[("A", b"abc")]);
        check(&a.replace('\n', "\r\n"), &[("A", b"abc")]);
        check(a.trim_end(), &[("A", b"abc")]);
        check(&format!("# a comment\n{a}between: b\n{a}after"), &[("A", b"abc"), ("A", b"abc")]);
        check("-----BEGIN A B-----  \n YW\tJj \n\n-----END A B-----\t\n", &[("A B", b"abc")]);
        check("-----BEGIN A-----\nK: v\n\nYWJj\n-----END A-----", &[("A", b"abc")]);
        check("-----BEGIN A-----\n-----END A-----", &[("A", b"")]);
        // Bits that belong to no byte.
        check("-----BEGIN A-----\nYWK=\n-----END A-----", &[("A", b"ab")]);
    }

    #[test]
    fn broken_blocks_are_passed_over() {
        let good = "-----BEGIN B-----\nYWJj\n-----END B-----\n";
        for bad in [
            "-----BEGIN A-----\nYW*j\n-----END A-----\n",
            "-----BEGIN A-----\nYWJj\n-----END C-----\n",
            "-----BEGIN A-----\nYWJj\n",
            "-----BEGIN A-----\nYWI\n-----END A-----\n",
            "x-----BEGIN A-----\nYWJj\n-----END A-----\n",
            "-----BEGIN A----\nYWJj\n-----END A-----\n",
            "-----END A-----\n",
        ] {
            check(&format!("{bad}{good}"), &[("B", b"abc")]);
            check(&format!("{good}{bad}"), &[("B", b"abc")]);
        }
        check("", &[]);
    }

    #[test]
    fn what_is_written_is_read() {
        for length in [0, 1, 47, 48, 49, 200] {
            let der = vec![0xa5; length];
            let text = encode("X Y", &der);
            check(&text, &[("X Y", &der)]);
            assert!(text.lines().all(|line| line.len() <= 64) && text.ends_with("-----END X Y-----\n"));
        }
        assert_eq!(*encode("A", &[0; 49]), format!("-----BEGIN A-----\n{}\nAA==\n-----END A-----\n", "A".repeat(64)));
    }
}
