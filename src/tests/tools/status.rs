//! `status` and `explain`.

use super::{Scene, same_as_fixture, shortest};
use crate::support::program::{ferrule, finish};
use crate::support::{DEADLINE, FERRULE, eventually};
use ferrule::node::view::{Explained, PodState, Status};
use ferrule::pod::decision::Action;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

const MOST: Duration = Duration::from_millis(100);

#[test]
fn on_a_healthy_node() {
    let scene = Scene::new();
    let status = scene.run("status", &[]);
    assert_eq!((status.code, status.stderr.as_str()), (Some(0), ""), "{}", status.stdout);
    same_as_fixture("status-healthy.txt", &scene.settled(&status.stdout));

    let json = scene.run("status", &["--json"]);
    let view: Status = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((json.code, view.ready, view.ambient, view.ztunnels.len()), (Some(0), true, true, 1));
    let web = view.pods.iter().find(|pod| pod.name == "web").unwrap();
    assert_eq!((web.state, web.ips.len(), web.host_network), (PodState::Enrolled, 1, false));

    let explained = scene.run("explain", &["default/web"]);
    assert_eq!((explained.code, explained.stderr.as_str()), (Some(0), ""));
    same_as_fixture("explain-enrolled.txt", &scene.settled(&explained.stdout));
    let json = scene.run("explain", &["--json", "default/batch"]);
    let batch: Explained = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((json.code, batch.explanation.unwrap().action), (Some(0), Action::None));
    assert_eq!((batch.pod.unwrap().state, batch.steps.len()), (PodState::None, 0));
    let unknown = scene.run("explain", &["default/nobody"]);
    assert_eq!((unknown.code, unknown.stdout.as_str()), (Some(1), ""));
    assert!(unknown.stderr.contains("pod default/nobody is not on this node"), "{}", unknown.stderr);

    let time = shortest(|| drop(scene.run("status", &[])));
    assert!(time < MOST, "status takes {time:?}");
    let time = shortest(|| drop(scene.run("explain", &["default/web"])));
    assert!(time < MOST, "explain takes {time:?}");
}

#[test]
fn what_is_not_as_it_should_be_is_shown_and_exits_with_1() {
    let mut scene = Scene::new();
    // A pod that is nowhere to be found.
    scene.write_pod("gone", "10.9.0.8");
    eventually("the pod is lost", || scene.run("status", &[]).stdout.contains("lost"));
    let status = scene.run("status", &[]);
    assert_eq!(status.code, Some(1), "{}", status.stdout);
    assert!(status.stdout.contains("3 pods: 1 enrolled, 1 lost, 1 not in the mesh; ztunnels: 1"), "{}", status.stdout);
    let explained = scene.run("explain", &["default/gone"]);
    same_as_fixture("explain-lost.txt", &scene.settled(&explained.stdout));

    scene.node.write_pod("bad.yaml", "kind: [");
    eventually("the file is shown", || scene.run("status", &[]).stdout.contains("not read:"));
    let why = "bad.yaml: not YAML: line 1, column 7: unclosed bracket '['";
    let status = scene.run("status", &[]);
    assert!(status.stdout.contains(why), "{}", status.stdout);
    let unknown = scene.run("explain", &["default/bad"]);
    assert!(
        unknown.stderr.contains("; a file there cannot be read: ") && unknown.stderr.contains(why),
        "{}",
        unknown.stderr
    );
    let doctor = scene.run("doctor", &[]);
    assert!(doctor.stdout.contains(why), "{}", doctor.stdout);

    scene.ztunnel = None;
    eventually("no ztunnel", || scene.run("status", &[]).stdout.contains("; is ztunnel running, with this socket?"));
    let status = scene.run("status", &[]);
    assert_eq!(status.code, Some(1), "{}", status.stdout);
    assert!(status.stdout.contains("1 pending"), "{}", status.stdout);
    let explained = scene.run("explain", &["default/web"]);
    assert!(
        explained.stdout.contains("Has ztunnel acknowledged it?                no   none is connected on "),
        "{}",
        explained.stdout
    );
}

#[test]
fn without_an_agent_the_exit_code_is_3_and_the_remedy_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("pluginevent.sock");
    for cause in ["no such file or directory", "connection refused"] {
        for args in [&["status"][..], &["status", "--json"], &["explain", "default/web"]] {
            let got = finish(ferrule(args).arg("--cni-agent-run-dir").arg(dir.path()), b"");
            assert_eq!((got.code, got.stdout.as_str()), (Some(3), ""), "{args:?}");
            let want = format!(
                "ferrule: no agent answers on {} ({cause}); is the istio-cni-node pod running on this node? \
                 --cni-agent-run-dir names another directory\n",
                socket.display()
            );
            assert_eq!(got.stderr, want, "{args:?}");
        }
        // For the second round: a socket that nobody serves any more.
        if !socket.exists() {
            drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        }
    }
}

#[test]
fn who_is_not_root_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("pluginevent.sock")).unwrap();
    for (args, code, said) in [
        (&["status"][..], 3, "(permission denied); only root may ask it: run this command as root\n"),
        (&["explain", "default/web"], 3, "(permission denied); only root may ask it: run this command as root\n"),
        (&["uninstall", "--host-root", "/", "--mounted-cni-net-dir", "/tmp"], 1, "; run ferrule as root\n"),
        (
            &["agent", "--pod-source", "dir:/tmp", "--health-port", "0", "--monitoring-port", "0"],
            1,
            "; run ferrule as root\n",
        ),
    ] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]);
        command.arg(FERRULE).args(args).arg("--cni-agent-run-dir").arg(dir.path()).env_clear();
        let got = finish(command.env("PATH", "/usr/bin:/usr/sbin"), b"");
        assert_eq!((got.code, got.stdout.as_str()), (Some(code), ""), "{got:?}");
        assert!(got.stderr.ends_with(said), "{got:?}");
    }
}

#[test]
fn watch_shows_every_change_and_ends_with_its_reader() {
    let scene = Scene::new();
    let mut command = scene.command("status", &["--watch"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("2 pods: 1 enrolled, 1 not in the mesh")));
    scene.node.write_pod("more.json", r#"{"kind":"Pod","metadata":{"name":"more"}}"#);
    assert!(lines.any(|line| line.starts_with("3 pods: 1 enrolled, 2 not in the mesh")));
    drop(lines);
    // It notices when it writes again.
    let end = std::time::Instant::now() + DEADLINE;
    let mut number = 0;
    while child.try_wait().unwrap().is_none() {
        assert!(std::time::Instant::now() < end, "it does not end");
        number += 1;
        scene.node.write_pod("more.json", &format!(r#"{{"kind":"Pod","metadata":{{"name":"more-{number}"}}}}"#));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_pod_file_is_explained_without_an_agent() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let selector = include_str!("../../../test-fixtures/pod/chart-selectors.yaml");
    let options = ["--ambient-enabled", "--ambient-enablement-selector", selector];
    let explain = |path: &str, options: &[&str]| finish(ferrule(&["explain", path]).args(options), b"");

    let labelled = "kind: Namespace\nmetadata: {name: shop, labels: {istio.io/dataplane-mode: ambient}}\n---\n\
                    kind: Pod\nmetadata: {name: web, namespace: shop, annotations: {ambient.istio.io/bypass-inbound-capture: 'true'}}\n";
    let got = explain(&file("ambient.yaml", labelled), &options);
    assert_eq!((got.code, got.stderr.as_str()), (Some(0), ""));
    same_as_fixture("explain-ambient-file.txt", &got.stdout);

    let sidecar = "kind: Pod\nmetadata: {name: web, annotations: {sidecar.istio.io/status: '', \
                   traffic.sidecar.istio.io/includeInboundPorts: '80'}}\n\
                   spec: {containers: [{name: istio-proxy, args: [proxy, sidecar]}]}\n";
    let got = explain(&file("sidecar.yaml", sidecar), &[]);
    same_as_fixture("explain-sidecar-file.txt", &got.stdout);

    let router = sidecar.replace("[proxy, sidecar]", "[proxy, router]");
    let got = explain(&file("router.yaml", &router), &[]);
    same_as_fixture("explain-router-file.txt", &got.stdout);

    let got = explain(&file("plain.yaml", "kind: Pod\nmetadata: {name: web}\n"), &options);
    same_as_fixture("explain-none-file.txt", &got.stdout);

    for (operand, code, want) in [
        ("no-such-file.yaml", 2, "is neither a file that exists nor the NAMESPACE/NAME of a pod"),
        (
            file("two.yaml", "kind: Pod\nmetadata: {name: a}\n---\nkind: Pod\nmetadata: {name: b}\n").as_str(),
            1,
            "two.yaml: one Pod is needed, and there are 2: default/a, default/b",
        ),
        (
            file("namespace.yaml", "kind: Namespace\nmetadata: {name: a}\n").as_str(),
            1,
            "namespace.yaml: one Pod is needed, and there are only Namespaces",
        ),
        (
            file("other.yaml", "kind: Service\n").as_str(),
            1,
            "other.yaml: one Pod is needed, and there is none (kind: Pod)",
        ),
        (file("half.yaml", "kind: Pod\nmetadata: {name: ").as_str(), 1, "half.yaml: not YAML"),
    ] {
        let got = explain(operand, &options);
        assert_eq!((got.code, got.stdout.as_str()), (Some(code), ""), "{operand}");
        assert!(got.stderr.contains(want), "{operand}: {}", got.stderr);
    }
    assert_eq!(finish(&mut ferrule(&["explain"]), b"").code, Some(2));
}

#[test]
fn colours_are_for_terminals_and_for_those_who_want_them() {
    let scene = Scene::new();
    // script(1) gives it a terminal.
    let run = |no_color: &str| {
        let dir = scene.node.run().display().to_string();
        let line = format!("{FERRULE} status --cni-agent-run-dir {dir}");
        let mut command = std::process::Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).env("NO_COLOR", no_color);
        scene.finish(command).stdout
    };
    let (coloured, plain) = (run(""), run("1"));
    assert!(coloured.contains("\x1b[32menrolled\x1b[0m"), "{coloured:?}");
    assert!(plain.contains("enrolled") && !plain.contains('\x1b'), "{plain:?}");
}
