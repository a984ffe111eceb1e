//! The agent in a container as Istio's chart describes it: the same command, arguments, variables, mounts and
//! capabilities (test-fixtures/deploy/chart: names and values as the chart renders them for its common settings), on a
//! read-only root that has nothing but its executable and the system's programs.

use crate::apiserver::ApiServer;
use crate::standalone::rules;
use crate::standin::{self, Standin};
use crate::support::netns::{PodNetns, nft_list, run_in};
use crate::support::{DEADLINE, FERRULE, eventually, http, install_plugins};
use nix::mount::{MsFlags, mount};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const PRIMARY: &str = r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"}]}"#;
const POD_IP: &str = "10.50.1.2";
const IMAGE_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/cni/bin";
const CAPABILITIES: &str = "-all,+dac_override,+net_admin,+net_raw,+sys_ptrace,+sys_admin";

/// Makes the container and runs its command in it: `root`, then `source target` of each mount, `--`, the command. The
/// first process of the new process namespace is the node's: its network namespace is the host's.
const CONTAINER: &str = r#"
set -eu
root=$1
shift
mount --make-rprivate /
mount --bind "$root" "$root"
for dir in usr/bin usr/sbin usr/lib usr/lib64; do mount --rbind "/$dir" "$root/$dir"; done
mount --bind /dev/null "$root/dev/null"
mount -t proc proc "$root/proc"
while [ "$1" != -- ]; do
    if [ "$1" = proc ]; then mount -t proc -o ro proc "$root$2"; else mount --rbind "$1" "$root$2"; fi
    shift 2
done
shift
mount -o remount,bind,ro "$root" "$root"
chroot "$root" setpriv --bounding-set "$CAPABILITIES" --inh-caps "$CAPABILITIES" --no-new-privs "$@"
"#;

/// What the chart renders for the container.
#[derive(Deserialize)]
struct Rendered {
    command: Vec<String>,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    mounts: Vec<String>,
}

/// A node on which the container runs.
struct World {
    container: Child,
    log: PathBuf,
    ztunnel: Option<Standin>,
    host: PodNetns,
    pod: PodNetns,
    _server: ApiServer,
    dir: TempDir,
}

impl World {
    fn start(case: &str) -> Self {
        let file = format!("{}/test-fixtures/deploy/chart/{case}.json", env!("CARGO_MANIFEST_DIR"));
        let rendered: Rendered = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["api", "bin", "net.d", "run", "netns", "ztunnel"] {
            fs::create_dir(at(name)).unwrap();
        }
        fs::write(at("net.d/10-net.conflist"), PRIMARY).unwrap();
        install_plugins(&at("bin"), PRIMARY);
        let host = PodNetns::new();
        let server = host.enter(|| ApiServer::start(&at("api")));
        server.put_namespace("mesh", json!({ "istio.io/dataplane-mode": "ambient" }));
        server.put_pod("mesh", "web", "node-r", json!({}), &[POD_IP]);
        let pod = crate::standalone::netns(POD_IP);
        File::create(at("netns/cni-web")).unwrap();
        mount(Some(pod.path()), &at("netns/cni-web"), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();

        let account = "/var/run/secrets/kubernetes.io/serviceaccount".to_owned();
        let mut mounts = vec![(server.service_account_dir().to_owned(), account)];
        for target in &rendered.mounts {
            let source = match target.as_str() {
                "/host/opt/cni/bin" => at("bin"),
                "/host/etc/cni/net.d" => at("net.d"),
                "/host/proc" => "proc".into(),
                "/host/var/run/netns" => at("netns"),
                "/var/run/istio-cni" => at("run"),
                "/var/run/ztunnel" => at("ztunnel"),
                other => panic!("the chart has no such mount: {other}"),
            };
            mounts.push((source, target.clone()));
        }
        make_root(&at("root"), mounts.iter().map(|(_, target)| target.as_str()));

        let log = at("agent.log");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", CONTAINER, "sh"]).arg(at("root"));
        for (source, target) in &mounts {
            command.arg(source).arg(target);
        }
        command.arg("--").args(&rendered.command).args(&rendered.args);
        command.env_clear().envs(&rendered.env).env("PATH", IMAGE_PATH).env("CAPABILITIES", CAPABILITIES);
        // What a kubelet adds, a Service called `monitoring` included.
        command.env("KUBERNETES_SERVICE_HOST", "127.0.0.1").env("KUBERNETES_SERVICE_PORT", server.port().to_string());
        command.env("KUBERNETES_PORT", "tcp://127.0.0.1:443").env("MONITORING_PORT", "tcp://10.96.7.7:80");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log).unwrap());
        let container = host.enter(|| command.spawn().unwrap());
        World { container, log, ztunnel: None, host, pod, _server: server, dir }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn ready(&self) -> Option<(u16, String)> {
        self.host.enter(|| http::get(8000, "/readyz"))
    }

    /// Waits for the kubelet's answer; returns the entry of ours in a configuration, and its place in the chain.
    #[track_caller]
    fn is_ready(&mut self) {
        eventually("ready", || {
            assert!(self.container.try_wait().unwrap().is_none(), "it ended: {}", self.log());
            self.ready().is_some_and(|(status, _)| status == 200)
        });
        assert_eq!(self.host.enter(|| http::get(8000, "/healthz")).unwrap().0, 200);
        assert!(self.host.enter(|| http::get(15014, "/metrics")).unwrap().1.contains("istio_cni_install_ready 1\n"));
        assert_eq!(fs::read(self.at("bin/istio-cni")).unwrap(), fs::read(FERRULE).unwrap());
        assert!(self.at("run/istio-cni-kubeconfig").exists());
    }

    fn conf(&self, name: &str) -> Value {
        serde_json::from_str(&fs::read_to_string(self.at("net.d").join(name)).unwrap()).unwrap()
    }

    fn confs(&self) -> Vec<String> {
        let names = fs::read_dir(self.at("net.d")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    fn primary_is_untouched(&self) -> bool {
        fs::read_to_string(self.at("net.d/10-net.conflist")).unwrap() == PRIMARY
    }

    /// A pod, as Istio's plugin asks: rules inside, its address in the host's set, and served by ztunnel.
    #[track_caller]
    fn enrols_a_pod(&mut self) {
        let options = standin::Options { socket: self.at("ztunnel/ztunnel.sock"), dns: true, ..Default::default() };
        self.ztunnel = Some(Standin::start(options));
        let ztunnel = self.ztunnel.as_ref().unwrap();
        eventually("ztunnel has its snapshot", || ztunnel.stats().ready);
        let body = json!({
            "Netns": "/var/run/netns/cni-web", "PodName": "web", "PodNamespace": "mesh",
            "IPs": [{ "Address": { "IP": POD_IP, "Mask": "////AA==" } }],
        });
        let (status, said) =
            http::request(&self.at("run/pluginevent.sock"), "POST", "/cmdadd", &body.to_string()).unwrap();
        assert_eq!(status, 200, "{said}");
        assert_eq!(ztunnel.stats().pods.values().next().unwrap().netns, self.pod.netns().id().ino);
    }

    /// What iptables has put into the pod and onto the host.
    #[track_caller]
    fn has_rules_of_iptables(&self) {
        let rules = rules(&self.pod);
        for (text, times) in [("--to-ports 15001", 2), ("--to-ports 15053", 4), ("fwmark 0x111/0xfff", 2)] {
            assert_eq!(rules.matches(text).count(), times, "{text} for both families: {rules}");
        }
        let host = self.host.netns();
        assert!(run_in(host, "iptables-save", &[]).contains("ISTIO_POSTRT"));
        assert!(run_in(host, "ipset", &["save", "istio-inpod-probes-v4"]).contains(POD_IP));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.container.kill();
        let _ = self.container.wait();
        let _ = nix::mount::umount(&self.at("netns/cni-web"));
    }
}

/// The root of a container: the image's executable, and where everything else is mounted.
fn make_root<'a>(root: &Path, mounts: impl Iterator<Item = &'a str>) {
    for dir in ["proc", "sys", "dev", "tmp", "run", "var", "etc"].into_iter().chain(mounts.map(|m| &m[1..])) {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    for dir in ["bin", "sbin", "lib", "lib64"] {
        fs::create_dir_all(root.join("usr").join(dir)).unwrap();
        symlink(format!("usr/{dir}"), root.join(dir)).unwrap();
    }
    for dir in ["usr/local/bin", "opt/cni/bin"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    File::create(root.join("dev/null")).unwrap();
    fs::copy(FERRULE, root.join("usr/local/bin/install-cni")).unwrap();
    symlink("/usr/local/bin/install-cni", root.join("opt/cni/bin/istio-cni")).unwrap();
}

/// The types in a chain.
fn types(conf: &Value) -> Vec<&str> {
    conf["plugins"].as_array().unwrap().iter().map(|plugin| plugin["type"].as_str().unwrap()).collect()
}

#[test]
fn as_its_own_values_say() {
    let mut world = World::start("default");
    world.is_ready();
    assert_eq!(types(&world.conf("10-net.conflist")), ["bridge", "istio-cni"]);
    let entry = &world.conf("10-net.conflist")["plugins"][1];
    assert_eq!((&entry["ambient_enabled"], &entry["exclude_namespaces"]), (&json!(false), &json!(["kube-system"])));
    assert_eq!(world.confs(), ["10-net.conflist"]);
}

#[test]
fn in_profile_ambient() {
    for case in ["ambient", "host-network"] {
        let mut world = World::start(case);
        world.is_ready();
        let entry = &world.conf("10-net.conflist")["plugins"][1];
        assert_eq!(entry["ambient_enabled"], json!(true));
        assert_eq!(entry["enablement_selectors"].as_array().unwrap().len(), 2, "{entry}");
        world.enrols_a_pod();
        world.has_rules_of_iptables();
    }
}

#[test]
fn for_sidecar_pods_alone() {
    let mut world = World::start("sidecar-only");
    world.is_ready();
    assert_eq!(types(&world.conf("10-net.conflist")), ["bridge", "istio-cni"]);
    assert!(!world.at("ztunnel/ztunnel.sock").exists());
}

#[test]
fn with_a_configuration_of_its_own() {
    let mut world = World::start("istio-owned");
    world.is_ready();
    assert!(world.primary_is_untouched());
    assert_eq!(world.confs(), ["02-istio-cni.conflist", "10-net.conflist"]);
    assert_eq!(types(&world.conf("02-istio-cni.conflist")), ["bridge", "istio-cni"]);
    world.enrols_a_pod();
    world.has_rules_of_iptables();
}

#[test]
fn called_by_multus() {
    let mut world = World::start("multus");
    world.is_ready();
    assert!(world.primary_is_untouched());
    assert_eq!(world.confs(), ["10-net.conflist", "istio-cni.conf"]);
    let conf = world.conf("istio-cni.conf");
    assert_eq!((&conf["type"], &conf["cniVersion"]), (&json!("istio-cni"), &json!("0.3.1")));
    world.enrols_a_pod();
    world.has_rules_of_iptables();
}

#[test]
fn with_nftables() {
    let mut world = World::start("nftables");
    world.is_ready();
    assert_eq!(world.conf("10-net.conflist")["plugins"][1]["native_nftables"], json!(true));
    world.enrols_a_pod();
    let (pod, host) = (nft_list(world.pod.netns()), nft_list(world.host.netns()));
    assert!(pod.contains("table inet istio-ambient-nat") && pod.contains("redirect to :15053"), "{pod}");
    assert!(host.contains("set istio-inpod-probes-v4") && host.contains(POD_IP), "{host}");
    assert!(!rules(&world.pod).contains("ISTIO_") && !host.contains("ISTIO_"));
}

#[test]
fn what_cannot_be_is_said_in_one_line() {
    // An ambient agent alone keeps a chain of its own.
    let mut world = World::start("istio-owned-without-ambient");
    let end = std::time::Instant::now() + DEADLINE;
    let status = loop {
        if let Some(status) = world.container.try_wait().unwrap() {
            break status;
        }
        assert!(std::time::Instant::now() < end, "it runs: {}", world.log());
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    assert_eq!((status.code(), world.log().lines().count()), (Some(2), 1), "{}", world.log());
    assert!(world.log().contains("--istio-owned-cni-config needs --chained-cni-plugin and --ambient-enabled"));
}
