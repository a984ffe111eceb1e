//! Istio's agent was here and is gone: its plugin, configuration, rules, routes, sets and annotations are on the node,
//! pods run, and ztunnel serves them. Ours takes over without anybody noticing, and what it leaves when its turn ends
//! is what Istio's would find of its own kind.

use super::*;
use ferrule::rules::family::Family;
use ferrule::zds::server::{Notice, Options, Request, Server, WorkloadInfo};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const PODS: [(&str, &str); 2] = [("client", "10.51.1.2"), ("server", "10.51.1.3")];
const FLAGS: [&str; 4] =
    ["--ambient-dns-capture", "--ambient-ipv6", "--exclude-namespaces=kube-system", "--verify-interval=1s"];
/// What Istio's agent writes into the primary's chain; the run dir and the selectors are put in by the test.
const ENTRY: &str = r#"{"ambient_enabled": true, "cni_agent_run_dir": "", "enable_ambient_detection_retry": false,
  "enablement_selectors": [], "exclude_namespaces": ["kube-system"], "name": "istio-cni", "native_nftables": false,
  "plugin_log_level": "info", "pod_namespace": "istio-system", "type": "istio-cni"}"#;

/// What Istio's agent puts into a pod, as it hands it to iptables-restore; `%…` differs between the families.
pub(super) const POD_RULES: &str = "\
*mangle
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_PRERT -m mark --mark 0x539/0xfff -j CONNMARK --set-xmark 0x111/0xfff
-A ISTIO_OUTPUT -m connmark --mark 0x111/0xfff -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff
COMMIT
*nat
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A OUTPUT -j ISTIO_OUTPUT
-A PREROUTING -j ISTIO_PRERT
-A ISTIO_PRERT -s %probe -p tcp -m tcp -j ACCEPT
-A ISTIO_OUTPUT -d %probe -p tcp -m tcp -j ACCEPT
-A ISTIO_PRERT ! -d %loopback -p tcp ! --dport 15008 -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15006
-A ISTIO_OUTPUT ! -o lo -p udp -m mark ! --mark 0x539/0xfff -m udp --dport 53 -j REDIRECT --to-port 15053
-A ISTIO_OUTPUT ! -d %loopback -p tcp --dport 53 -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15053
-A ISTIO_OUTPUT -p tcp -m mark --mark 0x111/0xfff -j ACCEPT
-A ISTIO_OUTPUT ! -d %loopback -o lo -j ACCEPT
-A ISTIO_OUTPUT ! -d %loopback -p tcp -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15001
COMMIT
*raw
:ISTIO_OUTPUT - [0:0]
:ISTIO_PRERT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_OUTPUT -p udp -m mark --mark 0x539/0xfff -m udp --dport 53 -j CT --zone 1
-A ISTIO_PRERT -p udp -m mark ! --mark 0x539/0xfff -m udp --sport 53 -j CT --zone 1
COMMIT
";
const HOST_RULES: &str = "\
*nat
:ISTIO_POSTRT - [0:0]
-I POSTROUTING 1 -j ISTIO_POSTRT
-A ISTIO_POSTRT -m owner --socket-exists -p tcp -m set --match-set %set dst -j SNAT --to-source %probe
COMMIT
";
const FAMILIES: [(Family, &str, &str, &str); 2] = [
    (Family::V4, "169.254.7.127", "127.0.0.1/32", "istio-inpod-probes-v4"),
    (Family::V6, "fd16:9254:7127:1337:ffff:ffff:ffff:ffff", "::1/128", "istio-inpod-probes-v6"),
];

/// Runs `ip` or another program with this input inside a namespace.
#[track_caller]
fn feed(netns: &PodNetns, program: &str, args: &[&str], input: &str) {
    let run = || {
        let mut child = Command::new(program).args(args).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait().unwrap().success()
    };
    assert!(netns.enter(run), "{program}: {input}");
}

fn restore(netns: &PodNetns, template: &str) {
    for (family, probe, loopback, set) in FAMILIES {
        let rules = template.replace("%probe", probe).replace("%loopback", loopback).replace("%set", set);
        let program = if family == Family::V4 { "iptables-nft-restore" } else { "ip6tables-nft-restore" };
        feed(netns, program, &["--noflush"], &rules);
    }
}

/// A node as Istio's agent leaves it for its successor.
pub(super) struct Inherited {
    pub(super) world: World,
    pub(super) pods: Vec<PodNetns>,
    root: TempDir,
    entry: Value,
}

impl Inherited {
    pub(super) fn new(pod_rules: &str, flags: &[&'static str]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut world = World::without_agent(&[&FLAGS, flags].concat());
        world.node.host_root = root.path().to_owned();
        let host = &world.node.host;
        feed(host, "ip", &["-batch", "-"], "link add br0 type bridge forward_delay 0\nlink set br0 up\n");
        run_in(host.netns(), "ipset", &["create", "istio-inpod-probes-v4", "hash:ip", "comment"]);
        run_in(host.netns(), "ipset", &["create", "istio-inpod-probes-v6", "hash:ip", "family", "inet6", "comment"]);
        restore(host, HOST_RULES);
        let mut pods = Vec::new();
        for (number, (name, ip)) in PODS.into_iter().enumerate() {
            let pod = PodNetns::new();
            let at = format!("/proc/{}/fd/{}", getpid(), pod.netns().as_fd().as_raw_fd());
            let link = format!(
                "link add pod{number} type veth peer name eth0 netns {at}\nlink set pod{number} master br0\n\
                 link set pod{number} up\n"
            );
            feed(host, "ip", &["-batch", "-"], &link);
            feed(&pod, "ip", &["-batch", "-"], &format!("addr add {ip}/24 dev eth0\nlink set eth0 up\n"));
            for (family, all) in [("-4", "0.0.0.0/0"), ("-6", "::/0")] {
                let routing = format!(
                    "rule add fwmark 0x111/0xfff pref 32764 lookup 100\nroute add local {all} dev lo table 100\n"
                );
                feed(&pod, "ip", &[family, "-batch", "-"], &routing);
            }
            restore(&pod, pod_rules);
            world.server.put_pod("mesh", name, NODE, json!({}), &[ip]);
            let annotated = json!({ "metadata": { "annotations": { ANNOTATION: "enabled" } } });
            world.server.merge(Kind::Pods, "mesh", name, &annotated);
            let uid = world.uid("mesh", name);
            run_in(host.netns(), "ipset", &["add", "istio-inpod-probes-v4", ip, "comment", &uid]);
            put_process(root.path(), 11 + number as u32, &uid, &pod);
            pods.push(pod);
        }
        let mut entry: Value = serde_json::from_str(ENTRY).unwrap();
        entry["cni_agent_run_dir"] = json!(world.node.run());
        entry["enablement_selectors"] = serde_json::from_str(SELECTOR).unwrap();
        let node = &world.node;
        let chain = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge"}, entry]});
        std::fs::write(node.net_dir().join("10-net.conflist"), serde_json::to_vec_pretty(&chain).unwrap()).unwrap();
        for (file, text) in [("istio-cni", "Istio's plugin"), ("istio-cni.tmp.123456", "half of it")] {
            std::fs::write(node.bin_dir().join(file), text).unwrap();
        }
        std::fs::write(node.run().join("istio-cni-kubeconfig"), "of an agent that is gone").unwrap();
        // Sockets that nobody serves any more.
        for socket in ["pluginevent.sock", "log.sock"] {
            drop(std::os::unix::net::UnixListener::bind(node.run().join(socket)).unwrap());
        }
        Inherited { world, pods, root, entry }
    }

    /// ztunnel serves the pods, as Istio's agent told it, which then goes.
    pub(super) fn served_by_an_agent_that_goes(&mut self) {
        let (send, notices) = std::sync::mpsc::channel();
        let options = Options { socket: self.world.node.ztunnel(), timeout: Duration::from_secs(10) };
        let old = Server::start(options, move |notice| drop(send.send(notice))).unwrap();
        self.world.start_ztunnel_early();
        let next = || notices.recv_timeout(crate::support::DEADLINE).unwrap();
        let Notice::Connected(ztunnel) = next() else { panic!("ztunnel did not connect") };
        let pods = PODS.iter().zip(&self.pods).map(|((name, _), pod)| Request::Add {
            uid: self.world.uid("mesh", name),
            info: WorkloadInfo { name: (*name).into(), namespace: "mesh".into(), service_account: "default".into() },
            netns: Arc::new(pod.netns().try_clone().unwrap()),
        });
        old.snapshot(ztunnel, pods.collect());
        while !matches!(next(), Notice::SnapshotDone(_)) {}
    }

    fn everything_in_netfilter(&self) -> Vec<String> {
        self.pods.iter().chain([&self.world.node.host]).map(rules).collect()
    }

    fn conf(&self) -> Value {
        let text = std::fs::read_to_string(self.world.node.net_dir().join("10-net.conflist")).unwrap();
        serde_json::from_str(&text).unwrap()
    }
}

/// A connection from the client to the server, which sends back what it gets.
pub(super) struct Call(pub(super) TcpStream);

impl Call {
    pub(super) fn new(pods: &[PodNetns]) -> Self {
        let listener = pods[1].enter(|| TcpListener::bind(("0.0.0.0", 0)).unwrap());
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            let mut back = peer.try_clone().unwrap();
            let _ = std::io::copy(&mut peer, &mut back);
        });
        let to = SocketAddr::new(PODS[1].1.parse::<IpAddr>().unwrap(), port);
        let stream = pods[0].enter(|| TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap());
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        Call(stream)
    }

    #[track_caller]
    pub(super) fn lives(&mut self) {
        let mut answer = [0; 5];
        self.0.write_all(b"hello").unwrap();
        self.0.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"hello");
    }
}

/// Takes over, and gives the node back; how the rules were before, under us, and after.
fn roll_over_and_back(pod_rules: &str, flags: &[&'static str]) -> [Vec<String>; 3] {
    let mut node = Inherited::new(pod_rules, flags);
    node.served_by_an_agent_that_goes();
    let mut call = Call::new(&node.pods);
    call.lives();
    let through = |world: &World, name: &str| world.ztunnel().stats().pods[&world.uid("mesh", name)].clone();
    assert_eq!(through(&node.world, "client").outbound.connections, 1, "through ztunnel");
    assert_eq!(through(&node.world, "server").hbone.connections, 1, "through ztunnel");
    let before = node.everything_in_netfilter();

    node.world.start_agent();
    for (name, _) in PODS {
        eventually("enrolled", || node.world.state(name) == "enrolled");
    }
    let ready = || node.world.get(HEALTH, "/readyz").is_some_and(|(status, _)| status == 200);
    eventually("ready", ready);
    call.lives();
    let repairs = "ferrule_verification_repairs_total{";
    assert!(!node.world.metrics().contains(repairs), "{}", node.world.metrics());
    let under_us = node.everything_in_netfilter();
    assert_eq!(node.world.server.patches(), [], "the annotations are as they should be");
    assert_eq!(through(&node.world, "client").netns, node.pods[0].netns().id().ino);
    let bin = node.world.node.bin_dir();
    assert_eq!(std::fs::read(bin.join("istio-cni")).unwrap(), std::fs::read(crate::support::FERRULE).unwrap());
    assert!(!bin.join("istio-cni.tmp.123456").exists());
    Call::new(&node.pods).lives();

    // Back: our DaemonSet has another image from now on.
    node.world.server.put(
        Kind::DaemonSets,
        json!({"metadata": {"name": "istio-cni-node", "namespace": "istio-system"},
        "spec": {"template": {"spec": {}}}}),
    );
    assert_eq!(node.world.agent.take().unwrap().terminate(), Some(0));
    let after = node.everything_in_netfilter();
    call.lives();
    assert_eq!(node.conf()["plugins"], json!([{"type": "bridge"}, node.entry]), "Istio's own entry, key by key");
    assert!(bin.join("istio-cni").exists());
    let kubeconfig = std::fs::read_to_string(node.world.node.run().join("istio-cni-kubeconfig")).unwrap();
    assert!(kubeconfig.contains("https://127.0.0.1"), "{kubeconfig}");
    let set = run_in(node.world.node.host.netns(), "ipset", &["save", "istio-inpod-probes-v4"]);
    for (name, ip) in PODS {
        let uid = node.world.uid("mesh", name);
        assert!(set.contains(&format!("add istio-inpod-probes-v4 {ip} comment \"{uid}\"\n")), "{set}");
        assert_eq!(node.world.annotation("mesh", name).as_deref(), Some("enabled"));
    }
    drop(node.root);
    [before, under_us, after]
}

/// What Istio's agent puts into a pod without DNS capture.
fn rules_without_dns() -> String {
    let (rest, _) = POD_RULES.split_once("*raw\n").unwrap();
    rest.lines().filter(|line| !line.contains(" 53 ")).map(|line| format!("{line}\n")).collect()
}

#[test]
fn what_is_right_stays_as_it_is_and_connections_live() {
    let [before, under_us, after] = roll_over_and_back(POD_RULES, &["--ambient-reconcile-pod-rules-on-startup"]);
    assert!(before[0].contains("--to-ports 15053") && before[2].contains("ISTIO_POSTRT"), "{before:?}");
    assert_eq!(under_us, before, "the same rules");
    assert_eq!(after, before);
}

#[test]
fn what_other_settings_left_is_brought_up_to_date_under_a_live_connection() {
    let reconcile = ["--ambient-reconcile-pod-rules-on-startup"];
    let [before, under_us, after] = roll_over_and_back(&rules_without_dns(), &reconcile);
    assert!(!before[0].contains("--to-ports 15053") && under_us[0].contains("--to-ports 15053"), "{under_us:?}");
    assert_eq!(after, under_us);
}

#[test]
fn what_other_settings_left_stays_unless_asked_for() {
    let [before, under_us, after] = roll_over_and_back(&rules_without_dns(), &[]);
    assert_eq!(under_us, before);
    assert_eq!(after, before);
}
