//! What several test modules need: scratch namespaces, bounded waiting, the built executable, a node with an agent.
#![allow(dead_code, reason = "each test module takes what it needs")]

pub mod container;
pub mod engine;
pub mod http;
pub mod netns;
pub mod node;
pub mod program;
pub mod traffic;

use std::path::Path;
use std::time::{Duration, Instant};

/// The executable under test.
pub const FERRULE: &str = env!("CARGO_BIN_EXE_ferrule");

/// Longest wait for anything: far more than it takes, as the machine may be busy with other tests.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Waits for a condition, at most [`DEADLINE`]; panics with `what` when it does not come.
#[track_caller]
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    within(DEADLINE, what, condition);
}

/// Waits for a condition that is known to take its time.
#[track_caller]
pub fn within(time: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + time;
    while !condition() {
        assert!(Instant::now() < end, "not within {time:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Puts a file for each plugin that a configuration names into a bin dir: the agent installs where the runtime finds the
/// chain's plugins.
pub fn install_plugins(bin_dir: &Path, configuration: &str) {
    for (at, key) in configuration.match_indices("\"type\"") {
        let rest = configuration[at + key.len()..].trim_start_matches([' ', ':']);
        let name = rest.split('"').nth(1).filter(|name| *name != "istio-cni" && !name.contains('/'));
        if let (Some(name), true) = (name, bin_dir.is_dir()) {
            std::fs::write(bin_dir.join(name), "").unwrap();
        }
    }
}

/// Numbers that look random and are the same each time (xorshift64).
pub fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Kills of the agent, and pods that come and go meanwhile: `(200, 50)` with `CHURN=full` in the environment, which takes
/// minutes.
pub fn churn(usual: (usize, usize)) -> (usize, usize) {
    match std::env::var("CHURN").as_deref() {
        Ok("full") => (200, 50),
        Ok(other) => panic!("CHURN={other:?}: may be full"),
        Err(_) => usual,
    }
}
