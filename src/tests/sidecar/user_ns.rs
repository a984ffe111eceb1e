//! Pods with `hostUsers: false`: their network namespace belongs to a user namespace of their own.

use super::scene::plain;
use crate::support::engine::{BACKENDS, options};
use ferrule::dataplane::backend::Backend;
use ferrule::dataplane::inpod::{Applied, InPod};
use ferrule::rules::inpod;
use ferrule::rules::sidecar::program;
use ferrule::sys::netlink::set_link_up;
use ferrule::sys::netns::{Netns, Owner};
use std::path::Path;
use std::process::{Child, Command};

/// A process in a user namespace, mapped away from root, and a network namespace of that.
struct Sandbox(Child);

impl Sandbox {
    fn start() -> (Self, Netns) {
        let child = Command::new("unshare").args(["--user", "--net", "sleep", "1000"]).spawn().unwrap();
        let sandbox = Sandbox(child);
        let path = format!("/proc/{}", sandbox.0.id());
        let is_there = || std::fs::read_to_string(format!("{path}/comm")).is_ok_and(|comm| comm.trim() == "sleep");
        crate::support::eventually("the sandbox is there", is_there);
        for map in ["uid_map", "gid_map"] {
            std::fs::write(format!("{path}/{map}"), "0 100000 65536").unwrap();
        }
        let netns = Netns::open(Path::new(&format!("{path}/ns/net"))).unwrap();
        assert_eq!(netns.owner().unwrap(), Owner::Child { maker: 0 });
        netns.enter(|| set_link_up("lo").unwrap()).unwrap();
        (sandbox, netns)
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// No process of ours enters that user namespace: where iptables would have to, the rules go into tables of our own.
#[test]
fn rules_go_into_a_namespace_of_another_user() {
    for backend in BACKENDS {
        let dir = tempfile::tempdir().unwrap();
        let programmer = InPod::detect(options(backend, dir.path()), &Netns::scratch().unwrap()).unwrap();
        let ambient = inpod::Settings {
            dns_capture: true,
            ingress_mode: false,
            reroute_interfaces: vec![],
            ipv6: true,
            probe_v4: [169, 254, 7, 127].into(),
            probe_v6: "fd16::1".parse().unwrap(),
        };
        let native = ("nft list ruleset".to_owned(), "jump istio-output", "istio");
        let usual = match backend {
            Backend::Iptables(variant) => (format!("iptables-{variant}-save"), "-A OUTPUT -j ISTIO_OUTPUT", "ISTIO"),
            Backend::Nftables => native.clone(),
        };
        for (program, (save, hook, ours)) in [(program(&plain(), true), native), ((&ambient).into(), usual)] {
            let (_sandbox, netns) = Sandbox::start();
            let save = || {
                let run = || Command::new("sh").args(["-c", &save]).output().unwrap().stdout;
                String::from_utf8(netns.enter(run).unwrap()).unwrap()
            };
            assert_eq!(programmer.apply(&netns, program.clone()).unwrap(), Applied::Written, "{backend:?}");
            assert!(save().contains(hook), "{backend:?}: {}", save());
            assert_eq!(programmer.apply(&netns, program.clone()).unwrap(), Applied::AlreadyRight, "{backend:?}");
            assert_eq!(programmer.check(&netns, program.clone()).unwrap(), Vec::<String>::new());
            programmer.engine().remove(&netns, &program).unwrap();
            assert!(!save().contains(ours), "{backend:?}: {}", save());
        }
    }
}
