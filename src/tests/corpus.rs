//! Replays the inputs kept in `test-fixtures/fuzz`, one folder a fuzz target: what the fuzzer began with, and what it
//! found. Each is checked as it is and cut in many places.

#[path = "fuzz/properties/mod.rs"]
mod properties;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Places at which an input is cut.
const CUTS: usize = 32;

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("test-fixtures/fuzz")
}

#[test]
fn every_kept_input_holds() {
    for (name, property) in properties::ALL {
        let inputs = entries(&corpus().join(name));
        assert!(!inputs.is_empty(), "{name} has no inputs");
        for path in inputs {
            let input = fs::read(&path).unwrap();
            let cuts = (0..=CUTS).map(|n| input.len() * n / CUTS).collect::<BTreeSet<_>>();
            for end in cuts {
                let checked = std::panic::catch_unwind(|| property(&input[..end]));
                assert!(checked.is_ok(), "{} cut to {end} bytes", path.display());
            }
        }
    }
}

#[test]
fn targets_and_corpora_are_those_of_the_properties() {
    let properties: BTreeSet<String> = properties::ALL.iter().map(|(name, _)| (*name).to_owned()).collect();
    let folders = entries(&corpus()).iter().map(|dir| dir.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(properties, folders, "folders of test-fixtures/fuzz");
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/fuzz/Cargo.toml");
    let manifest = fs::read_to_string(manifest).unwrap();
    let (_, targets) = manifest.split_once("[[bin]]").unwrap();
    let targets = targets.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    assert_eq!(properties, targets.map(str::to_owned).collect(), "targets of the fuzz crate");
}

#[test]
#[should_panic(expected = "no property")]
fn an_unknown_target_is_refused() {
    properties::check("nonsense", b"");
}
