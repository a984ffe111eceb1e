//! From one backend to another, in pods that have their rules already.

use crate::rules::pod::{everything, plain, pod, sh};
use crate::sidecar::scene;
use crate::support::engine::{BACKENDS, programmer};
use ferrule::dataplane::backend::Backend;
use ferrule::dataplane::engine::Applied;
use ferrule::rules::inpod::Settings;
use ferrule::rules::program::Program;
use ferrule::rules::sidecar::{self, Dns, Interception};
use ferrule::sys::netns::Netns;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// All of ours, wherever it is.
fn ours(netns: &Netns) -> Vec<String> {
    let list = sh(netns, "nft list tables inet").lines().map(str::to_owned).collect::<Vec<_>>();
    let iptables = everything(netns).into_iter().filter(|line| line.contains("ISTIO"));
    iptables.chain(list).collect()
}

#[test]
fn what_an_earlier_backend_put_there_goes_once_the_new_one_is_in_place() {
    let everything = sidecar::Settings {
        interception: Interception::Tproxy,
        interfaces_excluded: vec!["eth1".to_owned()],
        reroute_interfaces: vec!["net1".to_owned()],
        dns: Dns::All,
        drop_invalid: true,
        tproxy_mark: 77,
        tproxy_table: 78,
        ..scene::plain()
    };
    let programs: [(Program, Program); 2] = [
        (Program::from(&Settings { dns_capture: true, ..plain() }), Program::from(&plain())),
        (sidecar::program(&everything, true), sidecar::program(&scene::plain(), true)),
    ];
    for (old, new) in programs {
        for from in BACKENDS {
            for to in BACKENDS.into_iter().filter(|to| (*to == Backend::Nftables) != (from == Backend::Nftables)) {
                let (earlier, _dir) = programmer(from);
                let (later, _dir) = programmer(to);
                let (netns, fresh) = (pod(), pod());
                earlier.apply(&netns, old.clone()).unwrap();
                assert!(!later.check(&netns, new.clone()).unwrap().is_empty());
                assert_eq!(later.apply(&netns, new.clone()).unwrap(), Applied::Written, "{from:?} to {to:?}");
                assert_eq!(later.check(&netns, new.clone()).unwrap(), Vec::<String>::new(), "{from:?} to {to:?}");
                later.apply(&fresh, new.clone()).unwrap();
                assert_eq!(ours(&netns), ours(&fresh), "{from:?} to {to:?}");
                // Whoever put it there, all of it goes.
                earlier.engine().remove(&netns, &new).unwrap();
                assert_eq!(ours(&netns), Vec::<String>::new(), "{from:?} to {to:?}");
            }
        }
    }
}

#[test]
fn connections_live_on() {
    let netns = pod();
    sh(&netns, "ip link add out0 type veth peer name out1; ip addr add 10.77.0.2/24 dev out0");
    sh(&netns, "ip link set out0 up; ip link set out1 up");
    let backends: Vec<_> = BACKENDS.into_iter().map(programmer).collect();
    backends[0].0.apply(&netns, &plain()).unwrap();
    let proxy = netns.enter(|| TcpListener::bind("0.0.0.0:15001").unwrap()).unwrap();
    // Nobody has this address: what connects to it is redirected.
    let mut client = netns.enter(|| TcpStream::connect("10.77.0.1:80").unwrap()).unwrap();
    let (mut served, _) = proxy.accept().unwrap();
    for stream in [&client, &served] {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    }
    for number in [2, 0, 2, 1, 2] {
        assert_eq!(backends[number].0.apply(&netns, &plain()).unwrap(), Applied::Written);
        for _ in 0..2 {
            let mut byte = [0];
            client.write_all(b"a").unwrap();
            served.read_exact(&mut byte).unwrap();
            served.write_all(b"b").unwrap();
            client.read_exact(&mut byte).unwrap();
            assert_eq!(&byte, b"b");
        }
    }
}
