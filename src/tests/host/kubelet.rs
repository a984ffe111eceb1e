//! Native rules tell the kubelet's probes by its user, as Istio's do; who that is is found in `/proc`.

use super::{Node, ips};
use crate::support::eventually;
use crate::support::netns::run_in;
use ferrule::dataplane::host::Host;
use ferrule::dataplane::kubelet::Probers;
use ferrule::sys::file::HostRoot;
use ferrule::sys::netns::Netns;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};

/// A process of a namespace that has this name and runs as this user.
struct Named(Child);

impl Named {
    fn start(netns: &Netns, name: &str, uid: u32) -> Self {
        let script = format!("printf {name} > /proc/self/comm; echo; read line # kubelet");
        let id = uid.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "bash", "-c", &script]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = netns.enter(|| command.spawn().unwrap()).unwrap();
        let out = child.stdout.as_mut().unwrap();
        std::io::Read::read_exact(out, &mut [0]).unwrap();
        Named(child)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node with native rules that looks for the kubelet, and a pod with an address in the probe set.
struct Scene {
    node: Node,
    pod: Netns,
    listener: TcpListener,
}

impl Scene {
    fn new() -> Self {
        let mut node = Node::native(Netns::scratch().unwrap());
        node.host = node.host.with_processes(HostRoot::new("/"));
        let pod = Netns::scratch().unwrap();
        let target = format!("/proc/{}/fd/{}", std::process::id(), pod.as_fd().as_raw_fd());
        let script = format!(
            "ip link add to-pod type veth peer name eth0; ip link set eth0 netns {target}
             ip addr add 10.9.0.1/24 dev to-pod; ip link set to-pod up"
        );
        run_in(&node.netns, "sh", &["-ec", &script]);
        let script = "ip addr add 10.9.0.2/24 dev eth0; ip link set eth0 up; ip route add default via 10.9.0.1";
        run_in(&pod, "sh", &["-ec", script]);
        let listener = pod.enter(|| TcpListener::bind("10.9.0.2:8080").unwrap()).unwrap();
        node.host.add("uid-a", &ips(&["10.9.0.2"])).unwrap();
        node.host.ensure(&node.engine).unwrap();
        Scene { node, pod, listener }
    }

    /// Whether a connection of this user of the host counts as a probe.
    fn is_probe(&self, uid: u32) -> bool {
        let id = uid.to_string();
        let mut command = Command::new("setpriv");
        let connect = "exec 3<>/dev/tcp/10.9.0.2/8080";
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "bash", "-c", connect]);
        assert!(self.node.netns.enter(|| command.status().unwrap()).unwrap().success());
        self.listener.accept().unwrap().1.ip().to_string() == "169.254.7.127"
    }

    fn look(&self) -> Vec<String> {
        self.node.host.ensure(&self.node.engine).unwrap()
    }

    fn probers(&self) -> Option<u32> {
        match self.node.host.probers() {
            Some(Probers::User(kubelet)) => Some(kubelet.uid),
            Some(Probers::Any) | None => None,
        }
    }
}

#[test]
fn only_the_kubelets_user_probes() {
    for (name, user) in [("kubelet", 1234), ("kubelite", 0), ("k3s-server", 998)] {
        let scene = Scene::new();
        assert_eq!(scene.probers(), None);
        // Without a kubelet it is as with iptables.
        assert!([0, 1000, 1234].map(|uid| scene.is_probe(uid)).into_iter().all(|is| is), "{name}");
        let _kubelet = Named::start(&scene.node.netns, name, user);
        assert_eq!(scene.look(), ["table inet istio-ambient-nat has other rules in chain postrouting"], "{name}");
        assert_eq!(scene.probers(), Some(user), "{name}");
        for uid in [0, 998, 1000, 1234] {
            assert_eq!(scene.is_probe(uid), uid == user, "{name} {uid}");
        }
        assert_eq!(scene.look(), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn a_kubelet_that_restarts_as_another_user_is_found_again() {
    let scene = Scene::new();
    let first = Named::start(&scene.node.netns, "kubelet", 1234);
    scene.look();
    drop(first);
    // Away for a moment, it keeps its user.
    assert_eq!(scene.look(), Vec::<String>::new());
    assert_eq!([1234, 1000].map(|uid| scene.is_probe(uid)), [true, false]);
    let _second = Named::start(&scene.node.netns, "kubelet", 1000);
    eventually("found again", || {
        scene.look();
        scene.probers() == Some(1000)
    });
    assert_eq!([1234, 1000].map(|uid| scene.is_probe(uid)), [false, true]);
}

/// Anybody may name a process after the kubelet, and a pod may hold one.
#[test]
fn others_that_call_themselves_kubelet_do_not_count() {
    let scene = Scene::new();
    let _of_pod = Named::start(&scene.pod, "kubelet", 0);
    let _other_name = Named::start(&scene.node.netns, "kubelets", 0);
    scene.look();
    assert_eq!(scene.probers(), None);
    let _stranger = Named::start(&scene.node.netns, "kubelet", 4000);
    let _kubelet = Named::start(&scene.node.netns, "kubelet", 0);
    scene.look();
    assert_eq!(scene.probers(), Some(0));
    assert_eq!([0, 4000].map(|uid| scene.is_probe(uid)), [true, false]);
}

#[test]
fn iptables_counts_any_process() {
    let node = Node::new(crate::support::netns::Backend::Nft);
    let host: Host = Node::host(&node.netns, true, false).with_processes(HostRoot::new("/"));
    let _kubelet = Named::start(&node.netns, "kubelet", 1234);
    host.ensure(&node.engine).unwrap();
    assert_eq!(host.probers(), None);
    node.is_right();
}
