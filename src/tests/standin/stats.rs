//! What the stand-in saw: events of the ZDS connection in order, and counters per pod and direction.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Mutex;

/// Events kept; more are dropped.
const EVENT_LIMIT: usize = 100_000;

/// What happened on the ZDS connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Connected,
    Add {
        uid: String,
        namespace: String,
        name: String,
        service_account: String,
        netns: u64,
    },
    Keep {
        uid: String,
    },
    Del {
        uid: String,
    },
    SnapshotSent,
    /// Nobody there any more, and why.
    Disconnected(String),
    /// ztunnel would have exited here.
    Exited(String),
}

/// One direction of a pod's traffic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flow {
    pub connections: u64,
    /// Both ways.
    pub bytes: u64,
    /// Who connected last, and to where it wanted.
    pub last: Option<(SocketAddr, SocketAddr)>,
}

/// A pod that is or was served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodStats {
    pub namespace: String,
    pub name: String,
    pub service_account: String,
    /// Inode of the network namespace; 0 when no longer served.
    pub netns: u64,
    /// Port 15001: what the pod sends.
    pub outbound: Flow,
    /// Port 15006: what reaches the pod as plain text.
    pub inbound: Flow,
    /// Port 15008: what reaches the pod from another pod's proxy.
    pub hbone: Flow,
    /// Port 15053: queries.
    pub dns: u64,
}

/// Everything.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    pub connected: bool,
    /// A snapshot was received and no pod failed to start: ztunnel reports itself ready.
    pub ready: bool,
    pub events: Vec<Event>,
    /// Pods by uid; they stay here after they were deleted.
    pub pods: BTreeMap<String, PodStats>,
}

impl Stats {
    /// Text for shell scripts, one fact a line: `ztunnel connected|ready 0|1`, and per pod that is or was served
    /// `NAMESPACE/NAME outbound|inbound|hbone CONNECTIONS BYTES`, `NAMESPACE/NAME dns QUERIES`,
    /// `NAMESPACE/NAME served 0|1`.
    pub fn lines(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "ztunnel connected {}", u8::from(self.connected));
        let _ = writeln!(text, "ztunnel ready {}", u8::from(self.ready));
        for pod in self.pods.values() {
            let name = format!("{}/{}", pod.namespace, pod.name);
            for (direction, flow) in [("outbound", &pod.outbound), ("inbound", &pod.inbound), ("hbone", &pod.hbone)] {
                let _ = writeln!(text, "{name} {direction} {} {}", flow.connections, flow.bytes);
            }
            let _ = writeln!(text, "{name} dns {}", pod.dns);
            let _ = writeln!(text, "{name} served {}", u8::from(pod.netns != 0));
        }
        text
    }
}

/// Where everything is written down.
#[derive(Debug, Default)]
pub struct Board(Mutex<Stats>);

impl Board {
    pub fn snapshot(&self) -> Stats {
        self.0.lock().unwrap().clone()
    }

    pub fn change(&self, f: impl FnOnce(&mut Stats)) {
        f(&mut self.0.lock().unwrap());
    }

    pub fn pod(&self, uid: &str, f: impl FnOnce(&mut PodStats)) {
        self.change(|stats| f(stats.pods.entry(uid.to_owned()).or_default()));
    }

    pub fn event(&self, event: Event) {
        self.change(|stats| {
            match event {
                Event::Connected => stats.connected = true,
                Event::Disconnected(_) | Event::Exited(_) => (stats.connected, stats.ready) = (false, false),
                _ => {}
            }
            if stats.events.len() < EVENT_LIMIT {
                stats.events.push(event);
            }
        });
    }
}
