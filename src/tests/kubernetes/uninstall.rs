//! `uninstall` on a node whose agent is gone: nothing but files and the kernel says what there is to remove.

use super::*;
use crate::support::program::ferrule;

const IP: &str = "10.53.1.2";
/// Rules of somebody else, in the same tables.
const FOREIGN: [&str; 4] = ["-t", "nat", "-N", "FOREIGN"];

impl World {
    #[track_caller]
    fn uninstall(&self, flags: &[&str]) -> Vec<String> {
        let mut run = ferrule(&["uninstall"]);
        for (flag, value) in [
            ("--host-root", &self.node.host_root),
            ("--cni-agent-run-dir", &self.node.run()),
            ("--mounted-cni-net-dir", &self.node.net_dir()),
            ("--cni-bin-dir", &self.node.bin_dir()),
        ] {
            run.arg(flag).arg(value);
        }
        let ended = self.node.host.enter(|| finish(run.args(flags), b""));
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
        ended.stdout.lines().map(str::to_owned).collect()
    }

    fn host_saved(&self) -> String {
        let host = self.node.host.netns();
        run_in(host, "iptables-save", &[]) + &run_in(host, "ip6tables-save", &[]) + &run_in(host, "ipset", &["save"])
    }
}

#[test]
fn the_hosts_side_goes_and_the_pods_rules_on_demand() {
    let root = tempfile::tempdir().unwrap();
    // Of a sandbox that still needs the plugin there is no trace.
    for dir in ["proc", "var/lib/cni/results", "var/lib/cni/cache/results"] {
        std::fs::create_dir_all(root.path().join(dir)).unwrap();
    }
    let mut world = World::without_agent(&[]);
    world.node.host_root = root.path().to_owned();
    world.start_agent();
    world.start_ztunnel();
    let (mesh, plain) = (world.make_pod("mesh", "web", IP), world.make_pod("plain", "web-2", "10.53.1.3"));
    put_process(root.path(), 11, &world.uid("mesh", "web"), &mesh);
    world.add("mesh", "web", &mesh, IP);
    world.add("plain", "web-2", &plain, "10.53.1.3");
    world.assert_enrolled("mesh", "web", &mesh);
    for netns in [world.node.host.netns(), mesh.netns(), plain.netns()] {
        run_in(netns, "iptables-nft", &FOREIGN);
    }
    // The same names, and not of the ambient mesh.
    run_in(plain.netns(), "iptables-nft", &["-t", "nat", "-N", "ISTIO_OUTPUT"]);
    world.kill_agent();
    let host_before = world.host_saved();
    assert!(host_before.contains("ISTIO_POSTRT") && host_before.contains("istio-inpod-probes-v4"), "{host_before}");
    let pod = "remove the rules of pod mesh/web".to_owned();
    let dry = world.uninstall(&["--dry-run", "--pods"]);
    assert!(
        dry.contains(&"remove our rules from the host's network namespace".to_owned()) && dry.contains(&pod),
        "{dry:?}"
    );
    assert_eq!(world.host_saved(), host_before);
    assert!(is_right(&mesh));
    let without_pods: Vec<String> = dry.iter().filter(|step| **step != pod).cloned().collect();
    assert_eq!(world.uninstall(&[]), without_pods);
    let left = world.host_saved();
    assert!(!left.contains("ISTIO") && !left.contains("istio") && left.contains("FOREIGN"), "{left}");
    assert!(is_right(&mesh), "pods keep their rules");
    assert_eq!(world.uninstall(&["--dry-run", "--pods"]), std::slice::from_ref(&pod));
    assert_eq!(world.uninstall(&["--pods"]), [pod]);
    assert!(!has_rules(&mesh) && rules(&mesh).contains("FOREIGN"), "{}", rules(&mesh));
    assert!(rules(&plain).contains("ISTIO_OUTPUT"), "no record names it");
    assert_eq!(world.uninstall(&["--pods"]), ["nothing of ours is installed"]);
}
