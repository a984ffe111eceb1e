//! What an API server answers, and where to find it.

use super::text;
use ferrule::kube::config::Proxies;
use ferrule::kube::object::{DaemonSet, Node};
use ferrule::kube::watch::{Lines, WatchEvent};
use ferrule::kube::{kubeconfig as file, list as pages, watch as events};
use ferrule::pod::object::{Versioned, decode_pod};
use ferrule::pod::types::{Namespace, Pod};
use std::io::{self, Read};
use std::path::Path;

/// Gives one byte at a time.
struct Trickle<'a>(&'a [u8]);

impl Read for Trickle<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len().min(1);
        self.0.read(&mut buffer[..length])
    }
}

/// Lists and watches.
pub fn kube(input: &[u8]) {
    list(input);
    watch(input);
}

/// A page of a list: the same in one piece and byte by byte, its items those of the whole.
fn list(input: &[u8]) {
    let read = |reader: &mut dyn Read| {
        let mut pods: Vec<Versioned<Pod>> = Vec::new();
        let keep = &mut |item: &str| serde_json::from_str(item).map(|pod| pods.push(pod));
        let page = pages::read(reader, keep).ok();
        (page, pods)
    };
    let (page, pods) = read(&mut &*input);
    assert_eq!(read(&mut Trickle(input)), (page.clone(), pods.clone()));
    assert!(page.is_none_or(|page| !page.resource_version.is_empty()));
    for pod in &pods {
        assert!(!pod.version.is_empty() && !pod.object.uid.is_empty() && !pod.object.name.name.is_empty());
    }
    let _ = pages::read(&mut &*input, &mut |item| {
        let namespace: Versioned<Namespace> = serde_json::from_str(item)?;
        assert!(!namespace.object.name.is_empty());
        Ok(())
    });
    let node = serde_json::from_slice::<Node>(input);
    let set = serde_json::from_slice::<DaemonSet>(input);
    if let (Ok(node), Ok(set)) = (node, set) {
        assert!(!set.wants(&node) || !set.being_deleted);
    }
}

/// A watch: whole lines, each an event; a pod in it is the pod that the object alone would be.
fn watch(input: &[u8]) {
    let mut lines = Lines::new(Trickle(input));
    let mut bytes = 0;
    while let Ok(Some(line)) = lines.next_line() {
        assert!(!line.contains('\n') && !line.trim_ascii().is_empty());
        bytes += line.len() + 1;
        match events::decode("watch pods", line) {
            Ok(WatchEvent::Upserted(object) | WatchEvent::Deleted(object)) => {
                if let Ok(pod) = serde_json::from_str::<Versioned<Pod>>(object) {
                    assert_eq!(decode_pod(object).unwrap(), pod.object);
                }
            }
            Ok(WatchEvent::Bookmark(_) | WatchEvent::Error(_)) | Err(_) => {}
        }
    }
    assert!(bytes <= input.len());
}

/// A kubeconfig: refused or complete; what is said about it fits on a line.
pub fn kubeconfig(input: &[u8]) {
    match file::decode(&[(Path::new("/etc/k/config"), input.to_vec())], &Proxies::default()) {
        Ok(config) => assert!(config.server().starts_with("http") && !config.server().ends_with('/')),
        Err(e) => {
            let said = e.to_string();
            assert!(said.len() < 2 * input.len() + 1000, "{said}");
        }
    }
    // A token after whatever is wrong is never quoted.
    const SECRET: &str = "hunter2hunter2";
    if let Some(input) = text(input).filter(|input| !input.contains(SECRET)) {
        let with = format!("{input}\nusers: [{{name: u, user: {{token: {SECRET}}}}}]\n");
        if let Err(e) = file::decode(&[(Path::new("k"), with.into_bytes())], &Proxies::default()) {
            assert!(!e.to_string().contains(SECRET), "{e}");
        }
    }
}
