//! The Kubernetes client and its reflectors, against an API server that behaves and one that does not.

mod client;
mod recorded;
mod reflector;
mod trust;

use crate::apiserver::{ApiServer, Kind};
use crate::support::eventually;
use ferrule::kube::client::{Client, Patience};
use ferrule::kube::config::{Config, Options, Proxies, Source};
use ferrule::pod::types::PodName;
use serde_json::json;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const NODE: &str = "node-r";
/// Long enough for a busy machine, short enough to fail a test.
const ENOUGH: Patience = Patience::within(Duration::from_secs(20));

/// A server, its folder, and a client that finds it as in a cluster.
struct Setup {
    server: ApiServer,
    client: Client,
    dir: TempDir,
}

fn setup() -> Setup {
    let dir = tempfile::tempdir().unwrap();
    let server = ApiServer::start(dir.path());
    let client = setup_client(&server);
    Setup { server, client, dir }
}

fn setup_client(server: &ApiServer) -> Client {
    Client::new(Config::load(&in_cluster(server)).unwrap())
}

fn in_cluster(server: &ApiServer) -> Options {
    let source = Source::InCluster {
        host: "127.0.0.1".into(),
        port: server.port().to_string(),
        protocol: String::new(),
        service_account_dir: server.service_account_dir().to_owned(),
    };
    Options { source, proxies: Proxies::default() }
}

fn web(n: u32) -> PodName {
    PodName { namespace: "team-a".into(), name: format!("web-{n}") }
}

impl Setup {
    /// `web-N` in `team-a` on our node.
    fn put_pod(&self, n: u32) {
        let ip = format!("10.244.1.{n}");
        self.server.put_pod("team-a", &format!("web-{n}"), NODE, json!({ "app": "web" }), &[&ip]);
    }

    fn label_pod(&self, n: u32, value: &str) {
        let patch = json!({ "metadata": { "labels": { "app": value } } });
        self.server.merge(Kind::Pods, "team-a", &format!("web-{n}"), &patch);
    }

    fn delete_pod(&self, n: u32) {
        assert!(self.server.delete(Kind::Pods, "team-a", &format!("web-{n}")));
    }
}

/// Fails when it takes a second or more.
#[track_caller]
fn at_once<T>(what: &str, f: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let value = f();
    let took = started.elapsed();
    assert!(took < Duration::from_secs(1), "{what} took {took:?}");
    value
}
