//! While rules are replaced, no connection passes by the redirection.

use super::pod::{VARIANTS, plain, programmer, sh};
use ferrule::dataplane::inpod::Applied;
use ferrule::rules::inpod::Settings;
use ferrule::sys::netns::Netns;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Where the client believes to connect to; only without redirection does it get there.
const SERVICE: ([u8; 4], u16) = ([10, 77, 0, 1], 80);

#[test]
fn no_connection_escapes_while_rules_are_replaced() {
    for variant in VARIANTS {
        let (inpod, _dir) = programmer(variant);
        let netns = Netns::scratch().unwrap();
        // Not an address of the pod's own: what goes over lo is let through.
        sh(
            &netns,
            "ip link set lo up; ip link add out0 type veth peer name out1; ip addr add 10.77.0.2/24 dev out0; ip link set out0 up",
        );
        inpod.apply(&netns, &plain()).unwrap();
        let proxy = listen(&netns, ([0, 0, 0, 0], 15001));
        let (passed, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let escaped = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&proxy, &stop));
            scope.spawn(|| {
                netns
                    .enter(|| {
                        while !stop.load(Ordering::Relaxed) {
                            let mut byte = [0];
                            let to = SocketAddr::from(SERVICE);
                            // Beyond the redirection nobody answers, and the attempt fails.
                            let answer = TcpStream::connect_timeout(&to, std::time::Duration::from_secs(2))
                                .and_then(|mut stream| stream.read_exact(&mut byte).map(|()| byte[0]));
                            let counter = if answer.is_ok_and(|byte| byte == b'p') { &passed } else { &escaped };
                            counter.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                    .unwrap();
            });
            let other = Settings { reroute_interfaces: vec!["v0".into()], dns_capture: true, ..plain() };
            for round in 0..30 {
                let settings = if round % 2 == 0 { &other } else { &plain() };
                assert_eq!(inpod.apply(&netns, settings).unwrap(), Applied::Written);
            }
            stop.store(true, Ordering::Relaxed);
        });
        let (passed, escaped) = (passed.into_inner(), escaped.into_inner());
        assert!(passed > 100, "only {passed} connections");
        assert_eq!(escaped, 0, "{variant}: of {passed}");
    }
}

fn listen(netns: &Netns, address: ([u8; 4], u16)) -> TcpListener {
    let listener = netns.enter(|| TcpListener::bind(SocketAddr::from(address)).unwrap()).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

/// Answers every connection with one byte.
fn serve(listener: &TcpListener, stop: &AtomicBool) {
    use std::io::Write;
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((mut stream, _)) => drop(stream.write_all(b"p")),
            Err(_) => std::thread::yield_now(),
        }
    }
}
