//! The API server of the tests as a program, for the bench and for people.
//!
//! `kube-standin serve DIR NAMESPACES PODS NODE` serves so many namespaces (`ns-0` …) and so many pods (`pod-0` … in
//! `ns-0`, on NODE), puts `token`, `ca.crt` and `kubeconfig` into DIR, prints the port, and then does what the lines of
//! its input say: `events N` (so many changes, pods and namespaces in turn), `label KEY=VALUE` or `label KEY-` (on
//! `ns-0`), `patches` (prints how many came). It ends with its input.
//!
//! `kube-standin follow KUBECONFIG NODE` follows both kinds as the agent does and prints, for each line of its input,
//! what it holds, what it heard and its memory in KiB.
#![expect(clippy::disallowed_methods, clippy::print_stdout, clippy::unwrap_used, reason = "not the product")]

#[path = "mod.rs"]
mod apiserver;

use apiserver::{ApiServer, Kind};
use ferrule::kube::client::Client;
use ferrule::kube::config::{Config, Options, Proxies, Source};
use ferrule::kube::reflector::{self, Notice, Reflector, Resource};
use ferrule::pod::types::{Namespace, Pod};
use serde_json::json;
use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["serve", dir, namespaces, pods, node] => {
            serve(Path::new(dir), namespaces.parse().unwrap(), pods.parse().unwrap(), node);
        }
        ["follow", kubeconfig, node] => follow(kubeconfig, node),
        _ => panic!("serve DIR NAMESPACES PODS NODE | follow KUBECONFIG NODE"),
    }
}

fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().unwrap();
}

fn serve(dir: &Path, namespaces: u32, pods: u32, node: &str) {
    std::fs::create_dir_all(dir).unwrap();
    let server = ApiServer::start(dir);
    for n in 0..namespaces {
        server.put_namespace(&format!("ns-{n}"), json!({ "team": format!("team-{}", n % 50) }));
    }
    for n in 0..pods {
        let ip = format!("10.244.{}.{}", n / 250, n % 250 + 2);
        server.put_pod("ns-0", &format!("pod-{n}"), node, json!({ "app": "bench" }), &[&ip]);
    }
    say(&format!("port {}", server.port()));
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let done = match line.split_once(' ') {
            Some(("events", count)) => {
                for n in 0..count.parse().unwrap() {
                    let labels = json!({ "metadata": { "labels": { "turn": n.to_string() } } });
                    match n % 2 {
                        0 => server.merge(Kind::Pods, "ns-0", &format!("pod-{}", n / 2 % pods), &labels),
                        _ => server.merge(Kind::Namespaces, "", &format!("ns-{}", n / 2 % namespaces), &labels),
                    }
                }
                "done".to_owned()
            }
            Some(("label", label)) => {
                let labels = match label.split_once('=') {
                    Some((key, value)) => json!({ key: value }),
                    None => json!({ label.trim_end_matches('-'): null }),
                };
                server.label_namespace("ns-0", labels);
                "done".to_owned()
            }
            None if line == "patches" => format!("patches {}", server.patches().len()),
            _ => panic!("events N | label KEY=VALUE | label KEY- | patches"),
        };
        say(&done);
    }
}

/// What is held and heard of one kind.
struct Held<T> {
    objects: HashMap<String, T>,
    notices: u64,
    synced: bool,
}

fn held<T: Resource>(client: &Client, options: reflector::Options) -> (Reflector<T>, Arc<Mutex<Held<T>>>)
where
    ferrule::pod::object::Versioned<T>: serde::de::DeserializeOwned,
{
    let held = Arc::new(Mutex::new(Held { objects: HashMap::new(), notices: 0, synced: false }));
    let shared = held.clone();
    let notify = move |notice: Notice<T>| {
        let mut held = shared.lock().unwrap();
        held.notices += 1;
        match notice {
            Notice::Upserted(item) => _ = held.objects.insert(item.object.key().to_owned(), item.object),
            Notice::Removed(key) => _ = held.objects.remove(&key),
            Notice::Synced => held.synced = true,
            Notice::Unreadable { .. } | Notice::Lagging(_) => {}
        }
    };
    (Reflector::start(client, options, notify).unwrap(), held)
}

fn follow(kubeconfig: &str, node: &str) {
    let source = Source::Kubeconfig(kubeconfig.to_owned());
    let client = Client::new(Config::load(&Options { source, proxies: Proxies::default() }).unwrap());
    let field_selector = format!("spec.nodeName={node}");
    let options = reflector::Options { field_selector, ..reflector::Options::default() };
    say(&format!("before: {}", memory()));
    let (pods, held_pods) = held::<Pod>(&client, options);
    let (namespaces, held_namespaces) = held::<Namespace>(&client, reflector::Options::default());
    for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
        let (p, n) = (held_pods.lock().unwrap(), held_namespaces.lock().unwrap());
        let heard = p.notices + n.notices;
        let synced = p.synced && n.synced;
        let counts = format!("pods {} namespaces {} heard {heard} synced {synced}", p.objects.len(), n.objects.len());
        say(&format!("{counts} {}", memory()));
    }
    pods.stop();
    namespaces.stop();
}

/// Resident now and at most, KiB.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let value = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        line.trim_start_matches(':').trim().trim_end_matches(" kB").to_owned()
    };
    format!("rss {} peak {}", value("VmRSS"), value("VmHWM"))
}
