//! A pod's uid as the names of cgroups have it.

use std::fmt;

/// A pod's uid in the one form in which all spellings are equal: 32 lower-case hexadecimal digits. A static pod's
/// `config.hash` has this form, too.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodUid(String);

impl PodUid {
    /// Takes a uid with `-`, with `_`, or without; `None` when it is none that a cgroup could carry.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: String = text.chars().filter(|c| !matches!(c, '-' | '_')).collect();
        is_hex(&digits, 32).then(|| PodUid(digits.to_ascii_lowercase()))
    }
}

impl fmt::Debug for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a text is so many hexadecimal digits.
pub(super) fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings() {
        let want = PodUid::parse("2c48913c-b29f-11e7-9350-020968147796");
        assert!(want.is_some());
        assert_eq!(PodUid::parse("2C48913C_b29f_11e7_9350_020968147796"), want);
        assert_eq!(PodUid::parse("2c48913cb29f11e79350020968147796"), want);
        for bad in [
            "",
            "1",
            "2c48913c-b29f-11e7-9350-02096814779",
            "2c48913c-b29f-11e7-9350-0209681477966",
            "g".repeat(32).as_str(),
        ] {
            assert_eq!(PodUid::parse(bad), None, "{bad}");
        }
    }
}
