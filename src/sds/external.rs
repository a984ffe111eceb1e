//! A socket of secrets that somebody else serves: SPIRE or a CSI driver in place of our own, a third party for gateways.

use crate::error::{Context, Result};
use crate::h2::{self, Deadlines, Endpoint};
use crate::sys::unix::{Connection, SocketType};
use crate::sys::{clock, file};
use std::path::Path;
use std::time::{Duration, Instant};

/// A server has this long, in all, to take the connection and to show that it speaks HTTP/2.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks for a socket that is waited for.
const PAUSE: Duration = Duration::from_millis(100);

/// What is done with a socket that nobody serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stale {
    /// It is removed: the name is ours.
    Remove,
    /// It stays: somebody else may be about to serve it.
    Keep,
}

/// Whether somebody serves the socket. A regular file is none. A socket that nobody serves counts as absent; fails
/// when it is to be removed and cannot be.
pub fn is_served(path: &Path, stale: Stale) -> Result<bool> {
    let is_there = std::fs::metadata(path).is_ok_and(|found| !found.is_file());
    if !is_there {
        return Ok(false);
    }
    match greet(path) {
        Ok(()) => {
            log::info!(path:% = path.display(); "Existing workload SDS socket found");
            Ok(true)
        }
        Err(e) => {
            log::warn!(path:% = path.display(), error:% = e; "a socket of secrets is there that nobody serves");
            if stale == Stale::Remove {
                file::remove(path).context("remove a socket that nobody serves")?;
            }
            Ok(false)
        }
    }
}

/// Looks again until somebody serves the socket, at most this long; removes nothing.
pub fn wait_until_served(path: &Path, time: Duration) -> Result<bool> {
    let end = clock::now() + time;
    loop {
        if is_served(path, Stale::Keep)? {
            return Ok(true);
        }
        if clock::now() >= end {
            return Ok(false);
        }
        clock::sleep(PAUSE.min(clock::until(end)));
    }
}

/// Connects, and waits for the server's first frame.
fn greet(path: &Path) -> Result<()> {
    let end: Instant = clock::now() + PATIENCE;
    let socket = Connection::connect(path, SocketType::Stream, PATIENCE)?.into_stream();
    let deadlines = Deadlines { greeting: clock::until(end), ..Deadlines::default() };
    let mut endpoint = Endpoint::client(socket, &h2::Options::default(), deadlines)?;
    while !endpoint.is_greeted() {
        endpoint.next(clock::until(end).min(PAUSE))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::server::{Options, Server};
    use super::super::store::Store;
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_a_socket_that_speaks_is_served() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        assert!(!is_served(&at("none"), Stale::Remove).unwrap());
        std::fs::File::create_new(at("file")).unwrap();
        assert!(!is_served(&at("file"), Stale::Remove).unwrap());
        assert!(at("file").exists(), "a file is not ours to remove");

        let _server = Server::start(Options::new(at("socket")), Store::new()).unwrap();
        assert!(is_served(&at("socket"), Stale::Remove).unwrap());
        assert!(at("socket").exists());

        drop(UnixListener::bind(at("refusing")).unwrap());
        assert!(!is_served(&at("refusing"), Stale::Keep).unwrap());
        assert!(at("refusing").exists());
        assert!(!is_served(&at("refusing"), Stale::Remove).unwrap());
        assert!(!at("refusing").exists());

        let _silent = UnixListener::bind(at("silent")).unwrap();
        let begin = clock::now();
        assert!(!is_served(&at("silent"), Stale::Remove).unwrap());
        assert!(begin.elapsed() >= PATIENCE && !at("silent").exists(), "{:?}", begin.elapsed());

        // A directory counts as a socket that cannot be removed.
        std::fs::create_dir(at("dir")).unwrap();
        assert!(is_served(&at("dir"), Stale::Remove).unwrap_err().to_string().starts_with("remove a socket"));
    }

    #[test]
    fn a_socket_that_comes_late_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        assert!(!wait_until_served(&path, Duration::from_millis(150)).unwrap());
        let late = path.clone();
        let server = crate::sys::thread::spawn("late", move || {
            clock::sleep(Duration::from_millis(300));
            Server::start(Options::new(late), Store::new()).unwrap()
        })
        .unwrap();
        assert!(wait_until_served(&path, Duration::from_secs(20)).unwrap());
        drop(server.join().unwrap());
    }
}
