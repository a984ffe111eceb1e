//! A stand-in for ztunnel, for tests and the demonstration. It speaks ZDS as ztunnel 1.31 was observed to, opens
//! ztunnel's ports inside the pods' network namespaces, forwards what arrives there to where it was going, and counts
//! it. It also misbehaves on demand.
//!
//! What it leaves out: mutual TLS and HBONE proper. The hop from one pod's proxy to another's is a plain TCP
//! connection to port 15008 that begins with one line, `CONNECT <address>:<port>`. It knows the pods it serves and no
//! others; everything else is forwarded as it came.

#![allow(dead_code, unused_imports, reason = "the tests and the example each use a part")]
#![allow(clippy::unwrap_used, reason = "a stand-in that broke must not go on")]
#![allow(missing_docs, reason = "read with its few callers")]

mod client;
mod dns;
mod fault;
mod options;
mod proxy;
mod socket;
mod stats;
mod stop;

pub use dns::{ANSWER_V4, ANSWER_V6};
pub use fault::{Approach, Fault, On, parse as parse_fault};
pub use options::Options;
pub use stats::{Event, Flow, PodStats, Stats};

use stats::Board;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use stop::Stop;

/// A running stand-in. Dropping it is ztunnel's death: the proxies end and the connection is closed.
pub struct Standin {
    stop: Stop,
    board: Arc<Board>,
    faults: Arc<Mutex<Vec<(On, Fault)>>>,
    thread: Option<JoinHandle<()>>,
}

impl Standin {
    pub fn start(options: Options) -> Self {
        let stop = Stop::new();
        let board = Arc::new(Board::default());
        let faults = Arc::new(Mutex::new(options.faults.clone()));
        let client = client::Client::new(options, stop.clone(), Arc::clone(&board), Arc::clone(&faults));
        let thread = std::thread::Builder::new().name("standin".into()).spawn(move || client.run()).unwrap();
        Standin { stop, board, faults, thread: Some(thread) }
    }

    /// What happened up to now.
    pub fn stats(&self) -> Stats {
        self.board.snapshot()
    }

    /// Replaces what it does wrong, from the next request on.
    pub fn set_faults(&self, faults: Vec<(On, Fault)>) {
        *self.faults.lock().unwrap() = faults;
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        self.stop.now();
        let _ = self.thread.take().unwrap().join();
    }
}
