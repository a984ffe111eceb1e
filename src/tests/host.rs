//! The host's side, in a network namespace that plays the host: sets, rule, and whatever others do to them.

mod kubelet;

use crate::support::netns::{Backend, iptables_save, run_in};
use ferrule::dataplane::engine::{Engine, Options};
use ferrule::dataplane::host::Host;
use ferrule::dataplane::xtables::variant::Variant;
use ferrule::rules::family::Family;
use ferrule::rules::host::Settings;
use ferrule::sys::netlink::set_link_up;
use ferrule::sys::netns::Netns;
use std::net::IpAddr;
use std::process::Command;
use tempfile::TempDir;

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
const RULE: &str = "-A POSTROUTING -j ISTIO_POSTRT";

/// A node: its namespace, an engine that uses one backend, and what is under test.
struct Node {
    netns: Netns,
    engine: Engine,
    host: Host,
    backend: Backend,
    _dir: TempDir,
}

impl Node {
    fn new(backend: Backend) -> Self {
        Self::with(backend, Netns::scratch().unwrap(), None)
    }

    /// With tables of our own.
    fn native(netns: Netns) -> Self {
        Self::made(Backend::Nft, netns, Options { native_nftables: true, ..Options::default() })
    }

    fn with(backend: Backend, netns: Netns, programs: Option<&std::path::Path>) -> Self {
        let variant = if backend == Backend::Nft { Variant::Nft } else { Variant::Legacy };
        let program_dir = programs.map(std::path::Path::to_owned);
        Self::made(backend, netns, Options { force_variant: Some(variant), program_dir, ..Options::default() })
    }

    fn made(backend: Backend, netns: Netns, options: Options) -> Self {
        netns.enter(|| set_link_up("lo").unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let native = options.native_nftables;
        let engine = Engine::detect(Options { lock_dir: dir.path().join("locks"), ..options }, &netns).unwrap();
        let host = Self::host(&netns, true, native);
        Node { netns, engine, host, backend, _dir: dir }
    }

    fn host(netns: &Netns, ipv6: bool, native: bool) -> Host {
        let probe_v6 = "fd16:9254:7127:1337:ffff:ffff:ffff:ffff".parse().unwrap();
        let settings = Settings { probe_v4: [169, 254, 7, 127].into(), probe_v6, kubelet: None };
        Host::new(netns.try_clone().unwrap(), settings, ipv6, native)
    }

    fn saved(&self, family: Family) -> Vec<String> {
        let save = iptables_save(&self.netns, self.backend, family);
        save.lines().filter(|line| line.contains("POSTROUTING") || line.contains("POSTRT")).map(str::to_owned).collect()
    }

    /// Runs a script in both families; `IPT` is the iptables of the family.
    fn sh(&self, script: &str) {
        for family in FAMILIES {
            let script = script.replace("IPT", &self.backend.program(family, ""));
            run_in(&self.netns, "sh", &["-ec", &script]);
        }
    }

    #[track_caller]
    fn is_right(&self) {
        assert_eq!(self.host.check(&self.engine).unwrap(), Vec::<String>::new());
        for family in FAMILIES {
            let saved = self.saved(family);
            let rules: Vec<_> = saved.iter().filter(|line| line.starts_with("-A POSTROUTING")).collect();
            assert_eq!(rules.first().map(|rule| rule.as_str()), Some(RULE), "{saved:?}");
            assert_eq!(rules.iter().filter(|rule| rule.contains("ISTIO")).count(), 1, "{saved:?}");
            let (set, probe) = match family {
                Family::V4 => ("istio-inpod-probes-v4", "169.254.7.127"),
                Family::V6 => ("istio-inpod-probes-v6", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff"),
            };
            let snat = format!(
                "-A ISTIO_POSTRT -p tcp -m owner --socket-exists -m set --match-set {set} dst -j SNAT --to-source {probe}"
            );
            assert!(saved.contains(&snat), "{saved:?}");
        }
    }
}

fn ips(ips: &[&str]) -> Vec<IpAddr> {
    ips.iter().map(|ip| ip.parse().unwrap()).collect()
}

fn entries(host: &Host) -> Vec<String> {
    host.in_kernel().unwrap().into_iter().map(|(ip, uid)| format!("{ip} {uid}")).collect()
}

#[test]
fn what_is_missing_is_put_in_and_named() {
    for backend in Backend::ALL {
        let node = Node::new(backend);
        assert!(!node.host.check(&node.engine).unwrap().is_empty());
        let said = node.host.ensure(&node.engine).unwrap();
        assert!(said.iter().any(|clause| clause.contains("chain ISTIO_POSTRT of table nat is missing")), "{said:?}");
        node.is_right();
        assert_eq!(node.host.ensure(&node.engine).unwrap(), Vec::<String>::new());
    }
}

#[test]
fn what_others_do_is_noticed_and_put_right() {
    for backend in Backend::ALL {
        let node = Node::new(backend);
        // Sets of others, so that ours has another number here than where the rules are tried.
        run_in(
            &node.netns,
            "sh",
            &["-ec", "ipset create other-v4 hash:ip; ipset create other-v6 hash:ip family inet6"],
        );
        node.sh("IPT -t nat -A POSTROUTING -p udp -j ACCEPT");
        node.host.add("uid-a", &ips(&["10.0.0.1", "fd00::1"])).unwrap();
        node.host.ensure(&node.engine).unwrap();
        node.is_right();
        for script in [
            "IPT -t nat -I POSTROUTING -p tcp -j ACCEPT",
            "IPT -t nat -D POSTROUTING -j ISTIO_POSTRT",
            "IPT -t nat -A POSTROUTING -j ISTIO_POSTRT",
            "IPT -t nat -D POSTROUTING -j ISTIO_POSTRT; IPT -t nat -A POSTROUTING -j ISTIO_POSTRT",
            "IPT -t nat -F ISTIO_POSTRT",
            "IPT -t nat -I ISTIO_POSTRT -p tcp -j RETURN",
            // The right rule, but another set.
            "IPT -t nat -F ISTIO_POSTRT; case IPT in ip6*) n=6 p=fd16:9254:7127:1337:ffff:ffff:ffff:ffff;; *) n=4 p=169.254.7.127;; esac
             IPT -t nat -A ISTIO_POSTRT -p tcp -m owner --socket-exists -m set --match-set other-v$n dst -j SNAT --to-source $p",
            // As a firewall that is reloaded.
            "IPT -t nat -F; IPT -t nat -X",
            "IPT -t nat -F; IPT -t nat -X; for n in 4 6; do ipset destroy istio-inpod-probes-v$n || true; done",
            "ipset flush istio-inpod-probes-v4; ipset flush istio-inpod-probes-v6",
        ] {
            node.sh(script);
            assert!(!node.host.check(&node.engine).unwrap().is_empty(), "{script}");
            assert!(!node.host.ensure(&node.engine).unwrap().is_empty(), "{script}");
            node.is_right();
            assert_eq!(entries(&node.host), ["10.0.0.1 uid-a", "fd00::1 uid-a"], "{script}");
        }
        node.sh("IPT -t nat -C POSTROUTING -p udp -j ACCEPT || IPT -t nat -A POSTROUTING -p udp -j ACCEPT");
        node.host.remove_all(&node.engine).unwrap();
        for family in FAMILIES {
            let left = node.saved(family);
            assert!(left.iter().all(|line| !line.contains("ISTIO")), "{left:?}");
            assert!(left.contains(&"-A POSTROUTING -p udp -j ACCEPT".to_owned()), "{left:?}");
        }
        assert!(!run_in(&node.netns, "ipset", &["list", "-n"]).contains("istio"));
        node.host.remove_all(&node.engine).unwrap();
    }
}

#[test]
fn entries_belong_to_pods() {
    let native = || Node::native(Netns::scratch().unwrap());
    for (node, native, set) in [(Node::new(Backend::Nft), false, "ipset"), (native(), true, "nf_tables set")] {
        let host = &node.host;
        // Before anything else is there.
        host.add("uid-a", &ips(&["10.0.0.1", "::ffff:10.0.0.2", "fd00::1"])).unwrap();
        host.ensure(&node.engine).unwrap();
        assert_eq!(entries(host), ["10.0.0.1 uid-a", "10.0.0.2 uid-a", "fd00::1 uid-a"]);
        // The address passes on; the old pod's removal comes late.
        host.add("uid-b", &ips(&["10.0.0.1"])).unwrap();
        host.remove("uid-a", &ips(&["10.0.0.1", "10.0.0.2"])).unwrap();
        assert_eq!(entries(host), ["10.0.0.1 uid-b", "fd00::1 uid-a"]);
        host.remove("uid-a", &ips(&["10.0.0.9", "fd00::1", "fd00::9"])).unwrap();
        assert_eq!(entries(host), ["10.0.0.1 uid-b"]);
        // Of an earlier run: left alone, until somebody says that all is known.
        let next = Node::host(&node.netns, true, native);
        next.add("uid-c", &ips(&["10.0.0.3"])).unwrap();
        next.ensure(&node.engine).unwrap();
        assert_eq!(entries(&next), ["10.0.0.1 uid-b", "10.0.0.3 uid-c"]);
        let pruned = format!("10.0.0.1 was in {set} istio-inpod-probes-v4 for pod uid-b");
        assert_eq!(next.prune(|_, _| false).unwrap(), [pruned]);
        assert_eq!(entries(&next), ["10.0.0.3 uid-c"]);
        assert_eq!(next.check(&node.engine).unwrap(), Vec::<String>::new());
    }
}

#[test]
fn without_ipv6_nothing_of_it_is_touched_or_needed() {
    for backend in Backend::ALL {
        let check = |node: &Node, host: &Host| {
            host.add("uid-a", &ips(&["10.0.0.1", "fd00::1"])).unwrap();
            host.ensure(&node.engine).unwrap();
            assert_eq!(host.check(&node.engine).unwrap(), Vec::<String>::new());
            assert_eq!(entries(host), ["10.0.0.1 uid-a"]);
            assert!(!run_in(&node.netns, "ipset", &["list", "-n"]).contains("v6"));
            assert!(!iptables_save(&node.netns, backend, Family::V6).contains("ISTIO"));
            assert!(iptables_save(&node.netns, backend, Family::V4).contains(RULE));
        };
        // Not asked for.
        let node = Node::new(backend);
        check(&node, &Node::host(&node.netns, false, false));
        // Switched off.
        let node = Node::new(backend);
        run_in(&node.netns, "sysctl", &["-qw", "net.ipv6.conf.lo.disable_ipv6=1"]);
        check(&node, &node.host);
        // The node cannot do it.
        let programs = tempfile::tempdir().unwrap();
        for name in ["", "-restore", "-save"] {
            let name = backend.program(Family::V4, name);
            std::os::unix::fs::symlink(format!("/usr/sbin/{name}"), programs.path().join(&name)).unwrap();
        }
        let node = Node::with(backend, Netns::scratch().unwrap(), Some(programs.path()));
        node.host.ensure(&node.engine).unwrap();
        check(&node, &node.host);
    }
}

/// A probe of the kubelet, that is, a connection from a process of the host, reaches the pod from the well-known
/// address; what the host only forwards does not.
#[test]
fn probes_come_from_the_well_known_address() {
    use std::net::{TcpListener, TcpStream};
    for node in [Node::new(Backend::Nft), Node::new(Backend::Legacy), Node::native(Netns::scratch().unwrap())] {
        let pod = Netns::scratch().unwrap();
        run_in(&node.netns, "sh", &["-ec", "ip link add to-pod type veth peer name eth0"]);
        let target = format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&pod))
        );
        run_in(&node.netns, "ip", &["link", "set", "eth0", "netns", &target]);
        run_in(&node.netns, "sh", &["-ec", "ip addr add 10.9.0.1/24 dev to-pod; ip link set to-pod up"]);
        run_in(
            &pod,
            "sh",
            &["-ec", "ip addr add 10.9.0.2/24 dev eth0; ip link set eth0 up; ip route add default via 10.9.0.1"],
        );
        let listener = pod.enter(|| TcpListener::bind("10.9.0.2:8080").unwrap()).unwrap();
        let peer = || {
            let _client = node.netns.enter(|| TcpStream::connect("10.9.0.2:8080").unwrap()).unwrap();
            listener.accept().unwrap().1.ip().to_string()
        };
        node.host.ensure(&node.engine).unwrap();
        assert_eq!(peer(), "10.9.0.1", "not enrolled");
        node.host.add("uid-a", &ips(&["10.9.0.2"])).unwrap();
        assert_eq!(peer(), "169.254.7.127", "enrolled");
        node.host.remove("uid-a", &ips(&["10.9.0.2"])).unwrap();
        assert_eq!(peer(), "10.9.0.1", "no longer");
    }
}

#[test]
fn a_lock_that_others_hold_is_not_waited_for() {
    let node = Node::new(Backend::Legacy);
    let lock = std::fs::File::options().create(true).append(true).open("/run/xtables.lock").unwrap();
    let _ = lock.try_lock();
    let begin = std::time::Instant::now();
    node.host.ensure(&node.engine).unwrap();
    assert!(begin.elapsed() < std::time::Duration::from_secs(5));
    assert!(Command::new("true").status().unwrap().success());
    node.is_right();
}

/// What `nft` shows of our table.
fn own_table(node: &Node) -> String {
    run_in(&node.netns, "sh", &["-c", "nft list table inet istio-ambient-nat 2>/dev/null; ipset list -n"])
}

#[test]
fn tables_of_our_own_are_kept_with_their_sets() {
    let node = Node::native(Netns::scratch().unwrap());
    let before = run_in(
        &node.netns,
        "sh",
        &["-ec", "nft add table inet other; nft add set inet other s '{ type ipv4_addr; }'; nft list ruleset"],
    );
    assert!(!node.host.check(&node.engine).unwrap().is_empty());
    node.host.add("uid-a", &ips(&["10.0.0.1", "fd00::1"])).unwrap();
    assert!(!node.host.ensure(&node.engine).unwrap().is_empty());
    let right = own_table(&node);
    for part in [
        "type ipv4_addr",
        "elements = { 10.0.0.1 comment \"uid-a\" }",
        "type nat hook postrouting priority srcnat; policy accept;",
        "ip daddr @istio-inpod-probes-v4 counter packets 0 bytes 0 snat ip to 169.254.7.127",
        "ip6 daddr @istio-inpod-probes-v6 counter packets 0 bytes 0 snat ip6 to fd16:9254:7127:1337:ffff:ffff:ffff:ffff",
    ] {
        assert!(right.contains(part), "{part}: {right}");
    }
    assert_eq!(node.host.ensure(&node.engine).unwrap(), Vec::<String>::new());
    for script in [
        "flush chain inet istio-ambient-nat postrouting",
        "insert rule inet istio-ambient-nat postrouting accept",
        "add table inet istio-ambient-nat { flags dormant; }",
        "chain inet istio-ambient-nat postrouting { policy drop; }",
        "add chain inet istio-ambient-nat other; add rule inet istio-ambient-nat postrouting jump other",
        "flush set inet istio-ambient-nat istio-inpod-probes-v4",
        "delete table inet istio-ambient-nat",
        "flush ruleset",
    ] {
        for command in script.split("; add") {
            let command = if command.starts_with(' ') { format!("add{command}") } else { command.to_owned() };
            run_in(&node.netns, "nft", &[&command]);
        }
        assert!(!node.host.check(&node.engine).unwrap().is_empty(), "{script}");
        assert!(!node.host.ensure(&node.engine).unwrap().is_empty(), "{script}");
        assert_eq!(own_table(&node), right, "{script}");
        assert_eq!(node.host.check(&node.engine).unwrap(), Vec::<String>::new(), "{script}");
    }
    run_in(&node.netns, "sh", &["-ec", "nft add table inet other; nft add set inet other s '{ type ipv4_addr; }'"]);
    node.host.remove_all(&node.engine).unwrap();
    assert_eq!(run_in(&node.netns, "nft", &["list", "ruleset"]), before);
    node.host.remove_all(&node.engine).unwrap();
}

/// The entries of pods that have not been entered anew yet must not be lost.
#[test]
fn when_the_backend_changes_the_sets_are_taken_over() {
    for backend in Backend::ALL {
        let iptables = Node::new(backend);
        let native = Node::native(iptables.netns.try_clone().unwrap());
        iptables.host.add("uid-a", &ips(&["10.0.0.1", "fd00::1"])).unwrap();
        iptables.host.ensure(&iptables.engine).unwrap();
        native.host.add("uid-b", &ips(&["10.0.0.2"])).unwrap();
        native.host.ensure(&native.engine).unwrap();
        let all = ["10.0.0.1 uid-a", "10.0.0.2 uid-b", "fd00::1 uid-a"];
        assert_eq!(entries(&native.host), all);
        for family in FAMILIES {
            assert!(iptables.saved(family).iter().all(|line| !line.contains("ISTIO")), "{:?}", iptables.saved(family));
        }
        assert!(!run_in(&native.netns, "ipset", &["list", "-n"]).contains("istio"));
        assert_eq!(native.host.ensure(&native.engine).unwrap(), Vec::<String>::new());
        // And back.
        let again = Node::with(backend, native.netns.try_clone().unwrap(), None);
        assert!(!again.host.ensure(&again.engine).unwrap().is_empty());
        again.is_right();
        assert_eq!(entries(&again.host), all);
        assert_eq!(run_in(&again.netns, "nft", &["list", "tables", "inet"]), "");
    }
}

#[test]
fn without_ipv6_the_table_has_none() {
    let node = Node::native(Netns::scratch().unwrap());
    let v4 = Node::host(&node.netns, false, true);
    v4.add("uid-a", &ips(&["10.0.0.1", "fd00::1"])).unwrap();
    v4.ensure(&node.engine).unwrap();
    assert!(!own_table(&node).contains("v6"), "{}", own_table(&node));
    assert_eq!(v4.check(&node.engine).unwrap(), Vec::<String>::new());
    // Switched on later.
    node.host.ensure(&node.engine).unwrap();
    assert!(own_table(&node).contains("@istio-inpod-probes-v6"));
    assert_eq!(entries(&node.host), ["10.0.0.1 uid-a"]);
}
