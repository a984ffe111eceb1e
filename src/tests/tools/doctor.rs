//! `doctor`, on a healthy node and on nodes with one thing wrong.

use super::{PRIMARY, Scene, same_as_fixture, shortest};
use crate::support::program::{Finished, ferrule, finish};
use crate::support::{FERRULE, eventually};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

/// For a debug build on a busy machine, which compares executables many times as large as a release's.
const MOST: Duration = Duration::from_millis(1000);

/// The lines that are not `ok`, without their remedies' places.
fn trouble(scene: &Scene, finished: &Finished) -> Vec<String> {
    let lines = finished.stdout.lines().filter(|line| line.starts_with("fail") || line.starts_with("warn"));
    lines.map(|line| scene.settled(line)).collect()
}

/// Exactly this is wrong, and exit code 1 says so.
#[track_caller]
fn fails(scene: &Scene, finished: &Finished, wanted: &[&str]) {
    assert_eq!(trouble(scene, finished), wanted, "{}", finished.stdout);
    assert_eq!((finished.code, finished.stderr.as_str()), (Some(1), ""));
}

/// The chain as the agent has left it, with this done to it, in a directory of its own.
fn net_dir(scene: &Scene, name: &str, change: impl FnOnce(&Path, String)) -> [String; 2] {
    let dir = scene.path(name);
    fs::create_dir(&dir).unwrap();
    change(&dir, fs::read_to_string(scene.node.net_dir().join("10-net.conflist")).unwrap());
    ["--mounted-cni-net-dir".to_owned(), dir.display().to_string()]
}

fn doctor(scene: &Scene, more: &[String]) -> Finished {
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    scene.run("doctor", &more)
}

#[test]
fn on_a_healthy_node() {
    let scene = Scene::new();
    let got = scene.run("doctor", &[]);
    assert_eq!((got.code, got.stderr.as_str()), (Some(0), ""), "{}", got.stdout);
    same_as_fixture("doctor-healthy.txt", &scene.settled(&got.stdout));
    let json = scene.run("doctor", &["--json"]);
    let report: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((json.code, &report["healthy"]), (Some(0), &true.into()));
    let checks = report["checks"].as_array().unwrap();
    assert_eq!(checks.len() + 1, got.stdout.lines().count());
    assert!(checks.iter().all(|check| check["result"] == "ok" && check["remedy"].is_null()), "{checks:?}");
    // It changes nothing.
    assert_eq!(fs::read_dir(scene.path("root")).unwrap().count(), 0);
    let time = shortest(|| drop(scene.run("doctor", &[])));
    assert!(time < MOST, "doctor takes {time:?}");
}

#[test]
fn faults_of_the_configuration() {
    let scene = Scene::new();
    let empty = net_dir(&scene, "empty", |_, _| ());
    let waiting = "fail  CNI configuration: DIR/empty: waiting for a CNI configuration: there is no valid one; ";
    let advice = "install the cluster's network plugin; is this the directory that the runtime reads \
                  (--mounted-cni-net-dir)?";
    fails(&scene, &doctor(&scene, &empty), &[&format!("{waiting}{advice}")]);

    let right = "the running agent puts it right: start it, or see why it is not ready";
    let write = |dir: &Path, text: &str| fs::write(dir.join("10-net.conflist"), text).unwrap();
    let missing = net_dir(&scene, "missing", |dir, _| write(dir, &PRIMARY.replace("bridge", "cilium-cni")));
    fs::write(scene.node.bin_dir().join("cilium-cni"), "").unwrap();
    fails(
        &scene,
        &doctor(&scene, &missing),
        &[
            "fail  our entry: DIR/missing/10-net.conflist does not name istio-cni; the running agent puts it there: start \
           it, or see why it is not ready; if it does not stay, Cilium (exclusive mode) is why: set \
           cni.exclusive=false in Cilium's Helm values",
        ],
    );
    let double = net_dir(&scene, "double", |dir, text| {
        let entry = r#"{"type":"istio-cni"},"#;
        write(dir, &text.replace(r#"{"type": "portmap"}"#, &format!(r#"{entry}{{"type": "portmap"}}"#)));
    });
    fails(
        &scene,
        &doctor(&scene, &double),
        &[&format!("fail  our entry: DIR/double/10-net.conflist names istio-cni 2 times; {right}")],
    );
    let first = net_dir(&scene, "first", |dir, _| {
        write(dir, &PRIMARY.replace(r#"{"type": "bridge""#, r#"{"type":"istio-cni"}, {"type": "bridge""#));
    });
    fails(
        &scene,
        &doctor(&scene, &first),
        &[&format!(
            "fail  our entry: DIR/first/10-net.conflist names istio-cni before the plugin that gives the pod its \
             address; {right}"
        )],
    );
    let before = net_dir(&scene, "before", |dir, text| {
        write(dir, &text);
        fs::write(dir.join("05-other.conflist"), PRIMARY).unwrap();
    });
    let named = [before.as_slice(), &["--cni-conf-name".to_owned(), "10-net.conflist".to_owned()]].concat();
    fails(
        &scene,
        &doctor(&scene, &named),
        &["fail  CNI configuration: 05-other.conflist sorts before 10-net.conflist: the runtime uses it, without our \
           plugin; name it with --cni-conf-name, or remove it"],
    );
    let hidden =
        net_dir(&scene, "hidden", |dir, text| fs::write(dir.join("10-net.conflist.cilium_bak"), text).unwrap());
    fails(
        &scene,
        &doctor(&scene, &hidden),
        &["fail  CNI configuration: DIR/hidden: waiting for a CNI configuration: there is no valid one; Cilium has \
           renamed 10-net.conflist.cilium_bak: set cni.exclusive=false for Cilium"],
    );
    let other = doctor(&scene, &["--exclude-namespaces=a".to_owned()]);
    assert_eq!(
        trouble(&scene, &other),
        ["warn  our entry: once, in DIR/net.d/10-net.conflist, with other content than these options ask for; give \
          doctor the options of the agent; if they are the same, restart the agent"]
    );
    assert_eq!(other.code, Some(0));

    // The same, on a platform that keeps its configurations elsewhere.
    let k3s = scene.path("root/var/lib/rancher/k3s/agent/etc/cni/net.d");
    fs::create_dir_all(&k3s).unwrap();
    fs::write(k3s.join("10-flannel.conflist"), PRIMARY).unwrap();
    let k3s = "K3s has configurations in /var/lib/rancher/k3s/agent/etc/cni/net.d: name it with --mounted-cni-net-dir";
    fails(&scene, &doctor(&scene, &empty), &[&format!("{waiting}{k3s}")]);
}

#[test]
fn faults_of_the_plugin() {
    let scene = Scene::new();
    let bin_dir = |name: &str, plugin: Option<&str>| {
        let dir = scene.path(name);
        fs::create_dir(&dir).unwrap();
        for other in ["bridge", "portmap"].into_iter().filter(|_| plugin.is_some()) {
            fs::write(dir.join(other), "").unwrap();
        }
        if let Some(text) = plugin {
            fs::write(dir.join("istio-cni"), text).unwrap();
            fs::set_permissions(dir.join("istio-cni"), fs::Permissions::from_mode(0o755)).unwrap();
        }
        ["--cni-bin-dir".to_owned(), dir.display().to_string()]
    };
    let other = bin_dir("other", Some("#!/bin/sh\necho CNI plugin istio-cni v1.31.0 >&2\n"));
    fails(
        &scene,
        &doctor(&scene, &other),
        &[
            "fail  plugin: DIR/other/istio-cni is another one (CNI plugin istio-cni vVERSION); the running agent puts it \
           right: start it, or see why it is not ready",
        ],
    );
    let nothing = bin_dir("nothing", None);
    fails(
        &scene,
        &doctor(&scene, &nothing),
        &[
            "fail  bin dir: DIR/nothing has none of the chain's other plugins (bridge, portmap), so no runtime would find \
           ours there; name the directory that the runtime runs plugins from with --cni-bin-dir",
            "fail  plugin: DIR/nothing/istio-cni is missing; the running agent puts it there: start it, or see why it is \
           not ready",
        ],
    );
    let k3s = scene.path("root/var/lib/rancher/k3s/data/cni");
    fs::create_dir_all(&k3s).unwrap();
    fs::write(k3s.join("bridge"), "").unwrap();
    fails(
        &scene,
        &doctor(&scene, &nothing),
        &[
            "fail  bin dir: DIR/nothing has none of the chain's other plugins (bridge, portmap), so no runtime would find \
           ours there; K3s has plugins in /var/lib/rancher/k3s/data/cni: name it with --cni-bin-dir",
            "fail  plugin: DIR/nothing/istio-cni is missing; K3s has plugins in /var/lib/rancher/k3s/data/cni: name it \
           with --cni-bin-dir",
        ],
    );
}

#[test]
fn faults_of_sockets_ztunnel_and_pods() {
    let mut scene = Scene::new();
    let logs = scene.node.run().join("log.sock");
    fs::set_permissions(&logs, fs::Permissions::from_mode(0o666)).unwrap();
    chown(scene.node.events(), Some(1000), None).unwrap();
    fails(
        &scene,
        &scene.run("doctor", &[]),
        &[
            "fail  socket: DIR/run/pluginevent.sock belongs to uid 1000 with mode 0600, not to root alone; another \
           program made or changed it: find out which, and restart the agent",
            "fail  socket: DIR/run/log.sock belongs to uid 0 with mode 0666, not to root alone; another program made or \
           changed it: find out which, and restart the agent",
        ],
    );
    fs::set_permissions(&logs, fs::Permissions::from_mode(0o600)).unwrap();
    chown(scene.node.events(), Some(0), None).unwrap();

    scene.write_pod("gone", "10.9.0.8");
    eventually("the pod is lost", || scene.run("status", &[]).stdout.contains("lost"));
    let got = scene.run("doctor", &[]);
    let lines = trouble(&scene, &got);
    assert_eq!((got.code, lines.len()), (Some(1), 1), "{}", got.stdout);
    assert!(lines[0].starts_with("fail  pods: should be in the mesh and are not: default/gone ("), "{lines:?}");
    assert!(lines[0].ends_with("; ferrule explain NAMESPACE/NAME says where it stands"), "{lines:?}");
    fs::remove_file(scene.node.pods().join("gone.json")).unwrap();
    eventually("the pod is gone", || scene.run("status", &[]).stdout.contains("2 pods"));

    scene.ztunnel = None;
    eventually("no ztunnel", || scene.run("status", &[]).code == Some(1));
    fails(
        &scene,
        &scene.run("doctor", &[]),
        &[
            "fail  ztunnel: none is connected on DIR/ztunnel.sock; is ztunnel running, with this socket?",
            "warn  pods: on their way: default/web (no ztunnel is connected on DIR/ztunnel.sock); ferrule explain \
           NAMESPACE/NAME says where it stands",
        ],
    );
}

#[test]
fn faults_of_what_the_agent_may_and_has() {
    let scene = Scene::new();
    let lacking = ["setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw"];
    let got = scene.finish(scene.command_through(&lacking, "doctor", &[]));
    assert_eq!(got.code, Some(1), "{}", got.stdout);
    let missing = "fail  capabilities: missing: CAP_NET_RAW (iptables); add them to securityContext.capabilities.add of \
                   the agent's container; on a host, run as root";
    assert!(trouble(&scene, &got).contains(&missing.to_owned()), "{}", got.stdout);

    let hide = |programs: &[&str]| {
        let hide =
            programs.iter().map(|program| format!("mount --bind /dev/null $(readlink -f /usr/sbin/{program}) && "));
        format!("{}exec \"$0\" \"$@\"", hide.collect::<String>())
    };
    let without = |programs: &[&str]| {
        let script = hide(programs);
        scene.finish(scene.command_through(&["unshare", "-m", "sh", "-c", &script], "doctor", &[]))
    };
    let got = without(&["iptables-legacy-restore"]);
    assert_eq!(got.code, Some(0), "{}", got.stdout);
    assert_eq!(
        trouble(&scene, &got),
        [
            "warn  packet filter: iptables-legacy: iptables-legacy-restore is not installed; install iptables-legacy unless \
          no rules of it are on this node"
        ]
    );
    let got = without(&["iptables-legacy-restore", "iptables-nft-restore"]);
    let lines = trouble(&scene, &got);
    assert_eq!((got.code, lines.len()), (Some(1), 1), "{}", got.stdout);
    assert!(lines[0].starts_with("fail  packet filter: no iptables that works here (iptables-nft: "), "{lines:?}");
    assert!(lines[0].ends_with("use an image or a host that has it, as root"), "{lines:?}");
}

#[test]
fn the_gate_an_api_server_that_does_not_answer_and_a_missing_credential() {
    let scene = Scene::with_flags(&["--cni-status-gate"]);
    let got = scene.run("doctor", &["--cni-status-gate"]);
    assert_eq!(got.code, Some(0), "{}", got.stdout);
    assert_eq!(
        trouble(&scene, &got),
        [
            "warn  status gate: on, and it cannot be seen here whether agent and ztunnel are on the host's network; unset \
          --cni-status-gate, or run both on the host's network (hostNetwork: true)"
        ]
    );
    let mut command = scene.command("doctor", &["--cni-status-gate", "--pod-source=kubernetes"]);
    command.env("ALLOW_SWITCH_TO_HOST_NS", "true");
    command.env("KUBERNETES_SERVICE_HOST", "127.0.0.1").env("KUBERNETES_SERVICE_PORT", "1");
    command.args(["--service-account-dir", scene.path("no-account").to_str().unwrap()]);
    let got = scene.finish(command);
    let lines = trouble(&scene, &got);
    assert_eq!((got.code, lines.len()), (Some(1), 3), "{}", got.stdout);
    assert!(lines[0].starts_with("fail  kubeconfig: DIR/run/istio-cni-kubeconfig is missing: "), "{lines:?}");
    assert!(
        lines[1].starts_with(
            "fail  status gate: on, and refused: not on the host's network: the agent (ALLOW_SWITCH_TO_HOST_NS is set); \
             a kubelet whose network is not ready does not start them"
        ),
        "{lines:?}"
    );
    assert!(lines[2].starts_with("fail  API server: https://127.0.0.1:1: "), "{lines:?}");
}

#[test]
fn without_an_agent() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let mut command = ferrule(&["doctor", "--ambient-enabled", "--host-root", &path("")]);
    command.args(["--pod-source", "dir:/nowhere", "--cni-agent-run-dir", &path("run")]);
    command.args(["--ztunnel-uds-address", &path("ztunnel.sock")]);
    let got = finish(&mut command, b"");
    assert_eq!((got.code, got.stderr.as_str()), (Some(1), ""));
    for line in [
        format!(
            "fail  CNI configuration: the directory {} does not exist; name the one that the container runtime reads",
            path("etc/cni/net.d")
        ),
        format!("fail  plugin: the directory {} does not exist; make it (mkdir -p), or", path("opt/cni/bin")),
        format!("fail  run dir: {} is missing", path("run")),
        format!("fail  socket: {} is missing; the agent makes it: is it running?", path("run/pluginevent.sock")),
        format!("fail  agent: no agent answers on {} (no such file or directory)", path("run/pluginevent.sock")),
    ] {
        assert!(got.stdout.lines().any(|found| found.starts_with(&line)), "{line}\nin\n{}", got.stdout);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "it makes nothing");
    assert!(Path::new(FERRULE).exists());
    // A host root that was forgotten is said so, rather than what follows from it.
    let got = finish(&mut ferrule(&["doctor", "--host-root", &path("nope"), "--pod-source", "dir:/nowhere"]), b"");
    let (nope, remedy) = (path("nope"), "is not there: on a host give --host-root /");
    for line in [
        format!(
            "fail  CNI configuration: the directory {nope}/etc/cni/net.d does not exist; --host-root {nope} {remedy}"
        ),
        format!("fail  plugin: the directory {nope}/opt/cni/bin does not exist; --host-root {nope} {remedy}"),
    ] {
        assert!(got.stdout.lines().any(|found| found == line), "{line}\nin\n{}", got.stdout);
    }
}
