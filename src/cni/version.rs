//! The versions of the CNI protocol: what each can do and which shape its results have.

use std::fmt;

/// A version of the CNI protocol that this plugin speaks, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 0.1.0
    V0_1_0,
    /// 0.2.0
    V0_2_0,
    /// 0.3.0: results name interfaces and any number of addresses.
    V0_3_0,
    /// 0.3.1
    V0_3_1,
    /// 0.4.0: CHECK.
    V0_4_0,
    /// 1.0.0: addresses without `version`.
    V1_0_0,
    /// 1.1.0: GC and STATUS.
    V1_1_0,
}

/// How a result is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `ip4` and `ip6`.
    Families,
    /// `interfaces`, `ips` with `version`, `routes`.
    VersionedIps,
    /// `interfaces`, `ips`, `routes`.
    Ips,
}

impl Version {
    /// Every version, oldest first.
    pub const ALL: [Version; 7] = [
        Version::V0_1_0,
        Version::V0_2_0,
        Version::V0_3_0,
        Version::V0_3_1,
        Version::V0_4_0,
        Version::V1_0_0,
        Version::V1_1_0,
    ];
    /// The newest.
    pub const NEWEST: Version = Version::V1_1_0;

    /// Reads `cniVersion`; an absent or empty one means 0.1.0, as for libcni.
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Version::V0_1_0);
        }
        Version::ALL.into_iter().find(|version| version.as_str() == text)
    }

    /// As in `cniVersion`.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::V0_1_0 => "0.1.0",
            Version::V0_2_0 => "0.2.0",
            Version::V0_3_0 => "0.3.0",
            Version::V0_3_1 => "0.3.1",
            Version::V0_4_0 => "0.4.0",
            Version::V1_0_0 => "1.0.0",
            Version::V1_1_0 => "1.1.0",
        }
    }

    /// The shape of its results.
    pub fn shape(self) -> Shape {
        match self {
            Version::V0_1_0 | Version::V0_2_0 => Shape::Families,
            Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => Shape::VersionedIps,
            Version::V1_0_0 | Version::V1_1_0 => Shape::Ips,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Every version as a person reads it: `0.1.0, 0.2.0, …`.
pub fn supported() -> String {
    Version::ALL.map(Version::as_str).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_exactly() {
        for version in Version::ALL {
            assert_eq!(Version::parse(version.as_str()), Some(version));
        }
        assert_eq!(Version::parse(""), Some(Version::V0_1_0));
        for unknown in ["1.2.0", "1.0", "v1.0.0", " 1.0.0", "2.0.0"] {
            assert_eq!(Version::parse(unknown), None, "{unknown}");
        }
        assert!(Version::V0_4_0 < Version::V1_0_0 && Version::NEWEST == Version::V1_1_0);
    }
}
