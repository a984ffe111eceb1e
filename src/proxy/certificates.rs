//! The certificates of one proxy: the renewer, the files, the socket for Envoy, put together.

use super::secrets::{REVOKED, Secrets, Settings};
use crate::ca::client::{self, Client};
use crate::ca::renewer::{self, Renewer};
use crate::certificate::roots::Roots;
use crate::error::Result;
use crate::sds::files::{self, Files, Handle, Reader};
use crate::sds::resource::{ROOTS, Resource, WORKLOAD};
use crate::sds::server::{self, Server};
use crate::sds::store::Store;
use crate::sys::random;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Files that hold the workload's certificate where somebody else provides it.
#[derive(Debug, Clone)]
pub struct WorkloadFiles {
    /// Chain, PEM.
    pub chain: PathBuf,
    /// Key, PEM.
    pub key: PathBuf,
    /// Roots, PEM.
    pub roots: PathBuf,
}

impl WorkloadFiles {
    fn pair(&self) -> Files {
        Files::Certificate { chain: self.chain.clone(), key: self.key.clone() }
    }

    /// Whether all of them are there and not empty.
    fn are_there(&self) -> bool {
        let filled = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|found| found.len() > 0);
        [&self.chain, &self.key, &self.roots].into_iter().all(filled)
    }
}

/// Where certificates come from and who gets them.
#[derive(Debug, Clone)]
pub struct Options {
    /// The authority, and what it is asked for; nothing where all certificates come from files.
    pub authority: Option<(client::Options, renewer::Options)>,
    /// Files that win over the authority.
    pub files: WorkloadFiles,
    /// How files are read.
    pub reading: files::Options,
    /// The socket for Envoy; nothing where there is no Envoy.
    pub socket: Option<server::Options>,
    /// Where else certificates go.
    pub settings: Settings,
}

/// After a change of the mesh's roots certificates are renewed within this time, each workload at another moment.
const SPREAD: Duration = Duration::from_secs(30);

/// The running parts. Dropping ends them.
pub struct Certificates {
    secrets: Arc<Secrets>,
    renewer: Option<Renewer>,
    _server: Option<Server>,
    _reader: Reader,
}

impl Certificates {
    /// Begins to obtain certificates, so that they are there before anybody asks, and to serve them.
    pub fn start(options: Options) -> Result<Self> {
        let Options { authority, files, reading, socket, settings } = options;
        let store = Store::new();
        let secrets = Arc::new(Secrets::new(store.clone(), settings.clone()));
        let told = secrets.clone();
        let reader = Reader::start(reading, move |name, notice| told.read(name, notice))?;
        // What we write ourselves is no source, or it would never be renewed.
        let output = settings.output.as_ref().map(|output| output.directory());
        let own = output.is_some_and(|output| files.chain.parent().is_some_and(|dir| is_same(dir, output)));
        if !own {
            reader.watch(WORKLOAD, files.pair());
            reader.watch(ROOTS, Files::Roots(files.roots.clone()));
        }
        if let Some(path) = settings.revoked {
            reader.watch(REVOKED, Files::Existing(path));
        }
        let asked = reader.handle();
        store.on_demand(move |name, wanted| demand(&asked, name, wanted));
        let renewer = match authority {
            Some((client, options)) if own || !files.are_there() => {
                let told = secrets.clone();
                Some(Renewer::start(options, Client::new(client)?, move |notice| told.renewed(notice))?)
            }
            _ => {
                log::info!("workload certificate files detected");
                None
            }
        };
        let server = socket.map(|socket| Server::start(socket, store)).transpose()?;
        Ok(Certificates { secrets, renewer, _server: server, _reader: reader })
    }

    /// Takes the trust bundle of the mesh, PEM. Changed roots are told at once, and the certificate is renewed soon
    /// after; the old one serves until then.
    pub fn trust(&self, pem: &[u8]) {
        let read = Roots::read(pem);
        if let Some(error) = read.refused.first() {
            log::warn!(count = read.refused.len(), error:% = error; "parts of the mesh's trust bundle are left out");
        }
        if self.secrets.trust(read.roots)
            && let Some(renewer) = &self.renewer
        {
            renewer.renew_after(SPREAD.mul_f64(random::fraction()));
        }
    }
}

/// Somebody begins or ceases to watch a secret.
fn demand(reader: &Handle, name: &str, wanted: bool) {
    let files = Resource::parse(name).and_then(|resource| Files::try_from(&resource));
    match files {
        Ok(files) if wanted => reader.watch(name, files),
        Ok(_) => reader.forget(name),
        // The workload's own, which come by themselves; or a name that stands for nothing, which its stream is told.
        Err(_) => {}
    }
}

/// Whether two paths lead to one directory, whatever links are on the way.
fn is_same(a: &Path, b: &Path) -> bool {
    let inode = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let here = |path: &Path| if path.as_os_str().is_empty() { PathBuf::from(".") } else { path.to_path_buf() };
    let (a, b) = (here(a), here(b));
    a == b || inode(&a).is_some_and(|found| inode(&b) == Some(found))
}
