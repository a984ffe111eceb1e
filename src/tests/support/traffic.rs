//! Connections made again and again while something is done: none may pass by the redirection that is to catch it.

use super::eventually;
use ferrule::sys::netns::Netns;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Connections of one kind.
pub struct Flow<'a> {
    /// Where they are made.
    pub from: &'a Netns,
    /// Where the client believes to connect to. Nobody is there: only by redirection does it get an answer.
    pub to: SocketAddr,
    /// Whoever gets there is refused at once, so that an attempt without any answer has not: it lost a packet.
    pub refused: bool,
    /// Where they are led to.
    pub proxy: TcpListener,
}

/// Does something `rounds` times, with a few connections of each kind in between and meanwhile.
#[track_caller]
pub fn none_escapes(name: &str, flows: &[Flow<'_>], rounds: usize, act: impl Fn(usize)) {
    let traffic: Vec<(&Flow<'_>, Traffic)> = flows.iter().map(|flow| (flow, Traffic::default())).collect();
    std::thread::scope(|scope| {
        // Ends the traffic also when this thread panics.
        let _stops: Vec<_> = traffic.iter().map(|(_, traffic)| Stop(&traffic.stop)).collect();
        for (flow, traffic) in &traffic {
            flow.proxy.set_nonblocking(true).unwrap();
            scope.spawn(|| traffic.serve(&flow.proxy));
            scope.spawn(|| flow.from.enter(|| traffic.connect(flow)).unwrap());
        }
        for round in 1..=rounds {
            let passed = || traffic.iter().map(|(_, traffic)| traffic.passed.load(Ordering::Relaxed));
            let before: Vec<usize> = passed().collect();
            act(round);
            eventually("connections pass", || passed().zip(&before).all(|(now, before)| now > before + 3));
        }
    });
    for (flow, traffic) in traffic {
        let (passed, escaped) = (traffic.passed.into_inner(), traffic.escaped.into_inner());
        let lost = traffic.lost.into_inner();
        assert_eq!(escaped, 0, "{name}, to {}: of {passed}", flow.to);
        assert!(passed > 3 * rounds && lost <= rounds, "{name}, to {}: {passed} connections, {lost} lost", flow.to);
    }
}

#[derive(Default)]
struct Traffic {
    stop: AtomicBool,
    passed: AtomicUsize,
    escaped: AtomicUsize,
    lost: AtomicUsize,
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Traffic {
    /// Answers every connection with one byte.
    fn serve(&self, proxy: &TcpListener) {
        while !self.stop.load(Ordering::Relaxed) {
            match proxy.accept() {
                Ok((mut stream, _)) => drop(stream.write_all(b"p")),
                Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(e) => panic!("{e}"),
            }
        }
    }

    /// Connects again and again.
    fn connect(&self, flow: &Flow<'_>) {
        while !self.stop.load(Ordering::Relaxed) {
            let answered = TcpStream::connect_timeout(&flow.to, Duration::from_secs(1)).and_then(|mut stream| {
                stream.set_read_timeout(Some(Duration::from_secs(5)))?;
                stream.read_exact(&mut [0])
            });
            match answered {
                Ok(()) => count(&self.passed),
                // Every port is in use for a moment; or it was cut off by the end.
                Err(e) if e.kind() == ErrorKind::AddrNotAvailable => {}
                Err(_) if self.stop.load(Ordering::Relaxed) => {}
                Err(e) if e.kind() == ErrorKind::TimedOut && flow.refused => count(&self.lost),
                Err(_) => count(&self.escaped),
            }
        }
    }
}

fn count(counter: &AtomicUsize) {
    counter.fetch_add(1, Ordering::Relaxed);
}
