//! The word that somebody may have meant.

/// A question after the candidate that takes the fewest edits, or nothing if none is near.
pub(super) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    let best = candidates.map(|candidate| (distance(word, candidate), candidate)).min();
    match best {
        Some((edits, candidate)) if edits <= word.len().max(candidate.len()) / 2 => {
            format!(" (did you mean {candidate}?)")
        }
        _ => String::new(),
    }
}

/// Edits (Levenshtein) between two words, in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut next = vec![i + 1];
        let mut left = i + 1;
        for (pair, y) in row.windows(2).zip(b.bytes()) {
            if let [diagonal, above] = *pair {
                left = (above + 1).min(left + 1).min(diagonal + usize::from(x != y));
                next.push(left);
            }
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits() {
        for (a, b, want) in [("", "", 0), ("a", "", 1), ("", "ab", 2), ("kitten", "sitting", 3), ("rulse", "rules", 2)]
        {
            assert_eq!(distance(a, b), want, "{a} {b}");
        }
    }
}
