//! Numbers that spread load: nobody foresees them, and nothing secret rests on them.

use std::hash::{BuildHasher, RandomState};

/// A number from 0 to below `end`; 0 when `end` is 0.
pub fn below(end: u32) -> u32 {
    // The keys of a new `RandomState` come from the kernel's random numbers and differ from call to call.
    let bits = RandomState::new().hash_one(()) >> 32;
    u32::try_from(bits % u64::from(end.max(1))).unwrap_or(0)
}

/// A number from 0.0 to below 1.0.
pub fn fraction() -> f64 {
    f64::from(below(u32::MAX)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_differ_and_stay_in_range() {
        let numbers: HashSet<u32> = (0..100).map(|_| below(1 << 20)).collect();
        assert!(numbers.len() > 90 && numbers.iter().all(|n| *n < 1 << 20), "{numbers:?}");
        assert_eq!((below(0), below(1)), (0, 0));
        let fractions: Vec<f64> = (0..100).map(|_| fraction()).collect();
        assert!(fractions.iter().all(|f| (0.0..1.0).contains(f)), "{fractions:?}");
        assert!(fractions.iter().any(|f| *f < 0.5) && fractions.iter().any(|f| *f > 0.5), "{fractions:?}");
    }
}
