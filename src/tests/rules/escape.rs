//! While rules are replaced, no connection passes by the redirection.

use super::pod::{plain, pod, sh};
use crate::support::engine::{BACKENDS, programmer};
use crate::support::eventually;
use ferrule::dataplane::engine::Backend;
use ferrule::dataplane::inpod::Applied;
use ferrule::dataplane::xtables::Variant;
use ferrule::rules::inpod::Settings;
use ferrule::sys::netns::Netns;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Where the client believes to connect to. Nobody is there: only by redirection does it get an answer.
const SERVICE: ([u8; 4], u16) = ([10, 77, 0, 1], 80);

#[test]
fn no_connection_escapes_while_rules_are_replaced() {
    for backend in BACKENDS {
        let (inpod, _dir) = programmer(backend);
        let other = Settings { reroute_interfaces: vec!["v0".into()], dns_capture: true, ..plain() };
        under_traffic(&format!("{backend:?}"), 30, |netns, round| {
            let settings = if round % 2 == 0 { &plain() } else { &other };
            assert_eq!(inpod.apply(netns, settings).unwrap(), Applied::Written);
        });
    }
}

#[test]
fn no_connection_escapes_while_the_backend_changes() {
    for from in [Variant::Nft, Variant::Legacy] {
        let (iptables, native) = (programmer(Backend::Iptables(from)), programmer(Backend::Nftables));
        under_traffic(&format!("{from} and back"), 20, |netns, round| {
            let (inpod, _dir) = if round % 2 == 0 { &iptables } else { &native };
            assert_eq!(inpod.apply(netns, &plain()).unwrap(), Applied::Written);
        });
    }
}

/// Does something to a pod, which by the first time has its rules, while it connects to the outside.
fn under_traffic(name: &str, rounds: usize, act: impl Fn(&Netns, usize)) {
    let netns = pod();
    sh(&netns, "ip link add out0 type veth peer name out1; ip addr add 10.77.0.2/24 dev out0");
    sh(&netns, "ip link set out0 up; ip link set out1 up");
    act(&netns, 0);
    let traffic = Traffic::default();
    let proxy = netns.enter(|| TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], 15001))).unwrap()).unwrap();
    proxy.set_nonblocking(true).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| traffic.serve(&proxy));
        scope.spawn(|| netns.enter(|| traffic.connect()).unwrap());
        // Ends the traffic also when this thread panics.
        let _stop = Stop(&traffic.stop);
        for round in 1..=rounds {
            let before = traffic.passed.load(Ordering::Relaxed);
            act(&netns, round);
            eventually("connections pass", || traffic.passed.load(Ordering::Relaxed) > before + 3);
        }
    });
    let (passed, escaped) = (traffic.passed.into_inner(), traffic.escaped.into_inner());
    assert_eq!(escaped, 0, "{name}: of {passed}");
    assert!(passed > 100, "{name}: only {passed} connections");
}

#[derive(Default)]
struct Traffic {
    stop: AtomicBool,
    passed: AtomicUsize,
    escaped: AtomicUsize,
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
    fn connect(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let answered =
                TcpStream::connect_timeout(&SERVICE.into(), Duration::from_secs(1)).and_then(|mut stream| {
                    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
                    stream.read_exact(&mut [0])
                });
            match answered {
                Ok(()) => count(&self.passed),
                // Every port is in use for a moment; or it was cut off by the end.
                Err(e) if e.kind() == ErrorKind::AddrNotAvailable => {}
                Err(_) if self.stop.load(Ordering::Relaxed) => {}
                Err(_) => count(&self.escaped),
            }
        }
    }
}

fn count(counter: &AtomicUsize) {
    counter.fetch_add(1, Ordering::Relaxed);
}
