//! A pod with an application and Envoy, the world outside, and a virtual machine behind an interface of the pod.
//!
//! The pod is 10.0.1.2 and fd00:1::2 on eth0, 10.4.0.2 on eth1, 10.5.0.1 on net1. The world is 10.0.1.1 and fd00:1::1,
//! 10.4.0.1, and behind the pod's default route 10.2.0.1, 10.3.0.1, fd00:2::1 and fd00:3::1. The machine is 10.5.0.2.

use super::envoy::{self, ENVOY, Envoy, ask_as};
use crate::support::engine::{BACKENDS, programmer};
use crate::support::eventually;
use crate::support::netns::{PodNetns, run_in};
use ferrule::dataplane::backend::Backend;
use ferrule::dataplane::inpod::{Applied, InPod};
use ferrule::dataplane::xtables::variant::Variant;
use ferrule::rules::program::Program;
use ferrule::rules::sidecar::{Only, Settings, program};
use ferrule::sys::netlink;
use ferrule::sys::netns::Netns;
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

pub(super) const VARIANTS: [Variant; 2] = [Variant::Nft, Variant::Legacy];

/// Settings as a pod without annotations has them.
pub(crate) fn plain() -> Settings {
    Settings {
        inbound_ports: Only::All,
        inbound_ports_excluded: vec![15020, 15021, 15090],
        outbound_ranges: Only::All,
        outbound_ports_excluded: vec![15020],
        ..Settings::default()
    }
}

pub(super) struct Scene {
    _envoy: Option<Envoy>,
    _servers: Servers,
    pub pod: PodNetns,
    pub world: PodNetns,
    vm: PodNetns,
}

impl Scene {
    /// Without rules.
    pub(super) fn new() -> Self {
        let mut scene = Self::without_envoy();
        scene._envoy = Some(Envoy::start(scene.pod.netns()));
        scene
    }

    pub(super) fn without_envoy() -> Self {
        let (pod, world, vm) = (PodNetns::new(), PodNetns::new(), PodNetns::new());
        for (here, there, name) in [(&pod, &world, "eth0"), (&pod, &world, "eth1"), (&pod, &vm, "net1")] {
            let target = format!("/proc/{}/fd/{}", std::process::id(), there.netns().as_fd().as_raw_fd());
            let script = format!(
                "ip link add {name} type veth peer name peer-{name}; ip link set peer-{name} netns {target}; ip link set {name} up"
            );
            run_in(here.netns(), "sh", &["-ec", &script]);
            run_in(there.netns(), "ip", &["link", "set", &format!("peer-{name}"), "up"]);
        }
        let script = "ip addr add 10.0.1.2/24 dev eth0; ip addr add fd00:1::2/64 dev eth0 nodad
            ip addr add 10.4.0.2/24 dev eth1; ip addr add 10.5.0.1/24 dev net1
            ip route add default via 10.0.1.1; ip route add default via fd00:1::1";
        run_in(pod.netns(), "sh", &["-ec", script]);
        let script = "ip addr add 10.0.1.1/24 dev peer-eth0; ip addr add fd00:1::1/64 dev peer-eth0 nodad
            ip addr add 10.4.0.1/24 dev peer-eth1
            for ip in 10.2.0.1/32 10.3.0.1/32; do ip addr add $ip dev lo; done
            for ip in fd00:2::1/128 fd00:3::1/128; do ip addr add $ip dev lo nodad; done
            ip route add 10.5.0.0/24 via 10.0.1.2";
        run_in(world.netns(), "sh", &["-ec", script]);
        let script = "ip addr add 10.5.0.2/24 dev peer-net1; ip route add default via 10.5.0.1";
        run_in(vm.netns(), "sh", &["-ec", script]);
        run_in(pod.netns(), "sysctl", &["-qw", "net.ipv4.ip_forward=1"]);
        let mut servers = Servers::default();
        servers.add(pod.netns(), "app", &[80, 81, 15021]);
        servers.add(world.netns(), "world", &[53, 80, 81, 8080, 15020]);
        Scene { _envoy: None, _servers: servers, pod, world, vm }
    }

    /// Runs a test with these settings, with each backend in turn.
    #[track_caller]
    pub(super) fn with(&self, settings: &Settings, ipv6: bool, test: impl Fn(&Self)) {
        self.with_each(settings, ipv6, |scene, _| test(scene));
    }

    /// Runs a test with these settings, with each backend in turn, which the test is told.
    #[track_caller]
    pub(super) fn with_each(&self, settings: &Settings, ipv6: bool, test: impl Fn(&Self, Backend)) {
        for backend in BACKENDS {
            let (inpod, _dir) = programmer(backend);
            let program = program(settings, ipv6);
            assert_eq!(inpod.apply(self.pod.netns(), program.clone()).unwrap(), Applied::Written, "{backend:?}");
            assert_eq!(inpod.apply(self.pod.netns(), program.clone()).unwrap(), Applied::AlreadyRight, "{backend:?}");
            if ipv6 {
                // The kernel makes an address ready for use on a thread of its own.
                let ready = || {
                    run_in(self.pod.netns(), "ip", &["-6", "route", "show", "table", "local"]).contains("local ::6 ")
                };
                eventually("::6 is there", ready);
            }
            test(self, backend);
            self.clean(&inpod, &program);
        }
    }

    fn clean(&self, inpod: &InPod, program: &Program) {
        inpod.engine().remove(self.pod.netns(), program).unwrap();
        // What the connections so far left in conntrack would decide about the next ones.
        let _ = self.pod.enter(|| std::process::Command::new("conntrack").arg("-F").output());
    }

    /// What the application is answered.
    pub(super) fn app_asks(&self, to: &str) -> String {
        self.pod.enter(|| envoy::ask(to))
    }

    /// What Envoy is answered.
    #[track_caller]
    pub(super) fn envoy_asks(&self, to: &str) -> String {
        ask_as((ENVOY, ENVOY), self.pod.netns(), to)
    }

    /// What an application of this group is answered.
    #[track_caller]
    pub(super) fn group_asks(&self, gid: u32, to: &str) -> String {
        ask_as((1000, gid), self.pod.netns(), to)
    }

    /// What the world is answered.
    pub(super) fn world_asks(&self, to: &str) -> String {
        self.world.enter(|| envoy::ask(to))
    }

    /// What the virtual machine is answered.
    pub(super) fn vm_asks(&self, to: &str) -> String {
        self.vm.enter(|| envoy::ask(to))
    }
}

/// Says who was reached, at which address, and from where, on TCP and UDP; ends with the value.
#[derive(Default)]
struct Servers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Servers {
    fn add(&mut self, netns: &Netns, name: &'static str, ports: &[u16]) {
        // One socket for both families; of UDP one for each address, from which it then answers.
        let addresses = netns.enter(netlink::addresses).unwrap().unwrap();
        for &port in ports {
            let tcp = netns.enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap()).unwrap();
            tcp.set_nonblocking(true).unwrap();
            self.run(move |stop| serve(&tcp, name, stop));
            for ip in addresses.iter().filter(|ip| !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())) {
                let udp = netns.enter(|| UdpSocket::bind((*ip, port)).unwrap()).unwrap();
                udp.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
                self.run(move |stop| {
                    let mut query = [0; 512];
                    while !stop.load(Ordering::Relaxed) {
                        if let Ok((_, from)) = udp.recv_from(&mut query) {
                            let _ = udp.send_to(name.as_bytes(), from);
                        }
                    }
                });
            }
        }
    }

    fn run(&mut self, work: impl FnOnce(&AtomicBool) + Send + 'static) {
        let stop = Arc::clone(&self.stop);
        self.threads.push(std::thread::spawn(move || work(&stop)));
    }
}

fn serve(listener: &TcpListener, name: &str, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        if let Ok(Some(mut stream)) = ferrule::sys::tcp::accept(listener, Duration::from_millis(50)) {
            let (Ok(local), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else { continue };
            let plain = |ip: IpAddr| ip.to_canonical();
            let _ = write!(stream, "{name} {} from {}", plain(local.ip()), plain(peer.ip()));
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
