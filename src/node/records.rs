//! What must outlive the process: where the pods' sandboxes are, which of them have our rules, and which pods are
//! published as redirected.
//!
//! That a sandbox has rules is recorded *before* the first one goes in and taken back after the last one is out, one
//! small file per pod in `RUN/netns`. So whatever moment a kill -9 takes, the next start knows every namespace that may hold
//! something of ours. Written without fsync: what a kill leaves, the page cache keeps, and a power cut leaves neither
//! rules nor namespaces.

use super::redirection::Redirection;
use crate::error::{Context, Error, Kind, Result};
use crate::pod::types::PodName;
use crate::rules::inpod::Settings;
use crate::sys::file::{self, Mode};
use crate::sys::netns::NetnsIdentity;
use crate::sys::run_dir::RunDir;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

/// The settings that are the same for all pods of a node. A pod enrolled by an earlier run keeps those it was enrolled
/// with unless asked otherwise (`--ambient-reconcile-pod-rules-on-startup`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSettings {
    /// `--ambient-dns-capture`.
    pub dns_capture: bool,
    /// `--ambient-ipv6`.
    pub ipv6: bool,
    /// `HOST_PROBE_SNAT_IP`.
    pub probe_v4: Ipv4Addr,
    /// `HOST_PROBE_SNAT_IPV6`.
    pub probe_v6: Ipv6Addr,
}

impl NodeSettings {
    /// These, and what they may have been in an earlier run, the likeliest first.
    pub fn variants(&self) -> [NodeSettings; 4] {
        let (dns_capture, ipv6) = (self.dns_capture, self.ipv6);
        [(dns_capture, ipv6), (!dns_capture, ipv6), (dns_capture, !ipv6), (!dns_capture, !ipv6)]
            .map(|(dns_capture, ipv6)| NodeSettings { dns_capture, ipv6, ..*self })
    }

    /// Settings of a pod that asks for nothing else.
    pub fn usual(&self) -> Settings {
        Settings {
            dns_capture: self.dns_capture,
            ingress_mode: false,
            reroute_interfaces: Vec::new(),
            ipv6: self.ipv6,
            probe_v4: self.probe_v4,
            probe_v6: self.probe_v6,
        }
    }
}

/// A sandbox that the plugin told of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Pod uid.
    pub uid: String,
    /// The uid the runtime uses, where it differs.
    #[serde(default)]
    pub alias: Option<String>,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Sandbox id; empty when the plugin told none.
    #[serde(default)]
    pub container_id: String,
    /// Interface of the attachment that enrolled it; empty when the plugin told none.
    #[serde(default)]
    pub interface: String,
    /// Path of the namespace on the host; empty when it was found through a process.
    #[serde(default)]
    pub path: String,
    /// Which namespace it was. A path proves nothing: another pod may have got it while another agent ran.
    #[serde(default)]
    pub netns: Option<NetnsIdentity>,
    /// Addresses of the pod: proof that a namespace found later is its own.
    pub ips: Vec<IpAddr>,
    /// What its rules were made of.
    pub settings: NodeSettings,
    /// It has, or is about to get, our rules.
    pub enrolled: bool,
}

/// A record is small; anything larger is not ours.
const MAX_RECORD: usize = 64 << 10;
/// `state.json` of a node with thousands of pods.
const MAX_STATE: usize = 8 << 20;

/// The directory of records.
#[derive(Debug, Clone)]
pub struct Records {
    dir: PathBuf,
}

impl Records {
    /// Takes the run directory; the records are below it.
    pub fn new(run_dir: &RunDir) -> Result<Self> {
        let dir = run_dir.records();
        file::create_dir_all(&dir, Mode(0o700))?;
        Ok(Records { dir })
    }

    /// Takes the run directory for somebody who only reads and forgets.
    pub fn existing(run_dir: &RunDir) -> Self {
        Records { dir: run_dir.records() }
    }

    /// Writes a record.
    pub fn remember(&self, record: &Record) -> Result<()> {
        let text = serde_json::to_vec(record).context("encode the record of a sandbox")?;
        file::replace_volatile(&self.path(&record.uid)?, &text, Mode(0o600))
    }

    /// Removes a record; one that is not there is fine.
    pub fn forget(&self, uid: &str) -> Result<()> {
        file::remove_volatile(&self.path(uid)?).map(drop)
    }

    /// All records. One that cannot be read is reported and left out: it must not keep the agent from starting.
    pub fn recall(&self) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        let what = || format!("list {}", self.dir.display());
        let items = match std::fs::read_dir(&self.dir) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(records),
            items => items.with_context(what)?,
        };
        for item in items {
            let path = item.with_context(what)?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match read(&path, MAX_RECORD, decode_record) {
                Ok(Some(record)) if self.path(&record.uid).is_ok_and(|own| own == path) => records.push(record),
                Ok(_) => {}
                Err(e) => log::warn!("a remembered sandbox is left out: {e}"),
            }
        }
        Ok(records)
    }

    fn path(&self, uid: &str) -> Result<PathBuf> {
        Ok(self.dir.join(file_name(uid)?))
    }
}

/// A uid comes from outside: only one that is a plain name may become a file name.
pub fn file_name(uid: &str) -> Result<String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':');
    if uid.is_empty() || uid.len() > 200 || uid.starts_with('.') || !uid.bytes().all(plain) {
        return Err(Error::of(Kind::Invalid, format!("pod uid {uid:?} cannot be used as a file name")));
    }
    Ok(format!("{uid}.json"))
}

/// What is published, by uid: the content of `RUN/state.json`.
pub type Published = BTreeMap<String, (PodName, Redirection)>;

#[derive(Serialize, Deserialize)]
struct StateFile {
    version: u32,
    pods: BTreeMap<String, StatePod>,
}

#[derive(Serialize, Deserialize)]
struct StatePod {
    namespace: String,
    name: String,
    redirection: Redirection,
}

/// Renders `state.json`.
pub fn render(published: &Published) -> Result<Vec<u8>> {
    let pods = published.iter().map(|(uid, (name, redirection))| {
        let PodName { namespace, name } = name.clone();
        (uid.clone(), StatePod { namespace, name, redirection: *redirection })
    });
    let mut text =
        serde_json::to_vec_pretty(&StateFile { version: 1, pods: pods.collect() }).context("encode state.json")?;
    text.push(b'\n');
    Ok(text)
}

/// Reads `state.json`; empty when there is none.
pub fn read_published(path: &Path) -> Result<Published> {
    Ok(read(path, MAX_STATE, decode_published)?.unwrap_or_default())
}

/// Decodes `state.json`. Pure.
pub fn decode_published(bytes: &[u8]) -> Result<Published> {
    let pods = serde_json::from_slice::<StateFile>(bytes)?.pods.into_iter();
    Ok(pods.map(|(uid, p)| (uid, (PodName { namespace: p.namespace, name: p.name }, p.redirection))).collect())
}

/// Decodes a record. Pure.
pub fn decode_record(bytes: &[u8]) -> Result<Record> {
    Ok(serde_json::from_slice(bytes)?)
}

/// Reads and decodes a file; `None` when there is none.
fn read<T>(path: &Path, limit: usize, decode: fn(&[u8]) -> Result<T>) -> Result<Option<T>> {
    match file::read_limited(path, limit) {
        Err(e) if e.kind() == Kind::NotFound => Ok(None),
        bytes => decode(&bytes?).map(Some).with_context(|| format!("parse {}", path.display())),
    }
}
