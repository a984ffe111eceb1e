//! The plugin without an agent: it asks the API server by the kubeconfig, and lets through only what is provably
//! outside the mesh.

use super::*;
use std::time::{Duration, Instant};

const IP: &str = "10.49.1.2";

impl World {
    /// A node without agent whose run directory has the kubeconfig.
    pub(super) fn abandoned() -> Self {
        let world = World::without_agent(&[]);
        let kubeconfig = std::fs::read_to_string(world.server.kubeconfig()).unwrap();
        std::fs::write(world.node.run().join("istio-cni-kubeconfig"), kubeconfig).unwrap();
        for file in ["token", "ca.crt"] {
            std::fs::copy(world.server.service_account_dir().join(file), world.node.run().join(file)).unwrap();
        }
        world
    }
}

#[test]
fn a_pod_outside_the_mesh_starts_and_one_inside_waits() {
    let world = World::abandoned();
    let (plain, mesh) = (world.make_pod("plain", "web", IP), world.make_pod("mesh", "web", "10.49.1.3"));
    let begin = Instant::now();
    world.add("plain", "web", &plain, IP);
    assert!(begin.elapsed() < Duration::from_secs(9), "without waiting for the agent: {:?}", begin.elapsed());
    let ended = world.plugin("ADD", "mesh", "web", &mesh, "10.49.1.3");
    let error: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((ended.code, error["code"].as_u64()), (Some(1), Some(11)), "{ended:?}");
    assert!(error["details"].as_str().unwrap().starts_with("the pod is in the ambient mesh"), "{error}");
    assert!(!has_rules(&mesh));
}

#[test]
fn nobody_passes_when_nobody_can_tell() {
    let mut world = World::abandoned();
    let netns = world.make_pod("plain", "web", IP);
    let host = &world.node.host;
    host.enter(|| world.server.go_down());
    let (code, message) = world.add_fails("plain", "web", &netns, IP);
    assert_eq!(code, 11, "{message}");
    assert!(message.starts_with("node agent not ready ("), "{message}");
}
