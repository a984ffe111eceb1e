//! The certificates of one proxy: the renewer, the files, the socket for Envoy, put together.

use super::secrets::{REVOKED, Secrets, Settings};
use crate::ca::client::{self, Client};
use crate::ca::renewer::{self, Renewer};
use crate::certificate::roots::Roots;
use crate::error::Result;
use crate::invalid;
use crate::sds::external::{self, Stale};
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
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// The socket for Envoy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    /// Its directory.
    pub directory: PathBuf,
    /// Its name there. Another one than [`OWN_SOCKET`] says that somebody else serves it.
    pub name: String,
    /// How long somebody else's socket is waited for.
    pub wait: Duration,
    /// The socket for certificates in files, where somebody else serves the workload's.
    pub files: PathBuf,
}

/// The name of the socket that we serve.
pub const OWN_SOCKET: &str = "socket";

/// Where certificates come from and who gets them.
#[derive(Debug, Clone)]
pub struct Options {
    /// The authority, and what it is asked for; nothing where all certificates come from files.
    pub authority: Option<(client::Options, renewer::Options)>,
    /// Files that win over the authority.
    pub files: WorkloadFiles,
    /// Files that take the place of the authority and of those, when all are there at the start.
    pub provided: WorkloadFiles,
    /// They have to be there.
    pub must_be_provided: bool,
    /// How files are read.
    pub reading: files::Options,
    /// The socket for Envoy; nothing where there is no Envoy.
    pub socket: Option<Socket>,
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
    files_only: bool,
}

impl Certificates {
    /// Begins to obtain certificates, so that they are there before anybody asks, and to serve them. Fails when somebody
    /// else's socket is not served in time, when files are missing that have to be there, and when the authority's
    /// address is none.
    pub fn start(options: Options) -> Result<Self> {
        let Options { mut authority, mut files, provided, must_be_provided, reading, socket, mut settings } = options;
        let external = match &socket {
            Some(socket) => is_external(socket)?,
            None => false,
        };
        if provided.are_there() {
            log::info!("workload certificate files detected");
            (files, authority) = (provided, None);
        } else if must_be_provided {
            return Err(invalid!("the workload's certificate, key and roots are not all in {provided:?}"));
        }
        let output = settings.output.as_ref().map(|output| output.directory());
        // What we write ourselves is no source, or it would never be renewed.
        let own = output.is_some_and(|output| files.chain.parent().is_some_and(|dir| is_same(dir, output)));
        settings.files_only = authority.is_none();
        let revoked = settings.revoked.clone();

        let store = Store::new();
        let secrets = Arc::new(Secrets::new(store.clone(), settings));
        let told = secrets.clone();
        let reader = Reader::start(reading, move |name, notice| told.read(name, notice))?;
        let asked = reader.handle();
        store.on_demand(move |name, wanted| demand(&asked, name, wanted));
        let (server, files_only) = match socket {
            None => (None, false),
            Some(socket) => serve(socket, external, &store)?,
        };
        let mut renewer = None;
        if !files_only {
            if !own {
                reader.watch(WORKLOAD, files.pair());
                reader.watch(ROOTS, Files::Roots(files.roots.clone()));
            }
            if let Some(path) = revoked {
                reader.watch(REVOKED, Files::Existing(path));
            }
            if let Some((client, options)) = authority.filter(|_| own || !files.are_there()) {
                let told = secrets.clone();
                renewer = Some(Renewer::start(options, Client::new(client)?, move |notice| told.renewed(notice))?);
            }
        }
        Ok(Certificates { secrets, renewer, _server: server, _reader: reader, files_only })
    }

    /// Whether somebody else serves the workload's certificate, and we those in files alone: Envoy has to be told
    /// (`file-credential` in the node's metadata).
    pub fn files_only(&self) -> bool {
        self.files_only
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

/// Whether somebody else serves the workload's socket.
fn is_external(socket: &Socket) -> Result<bool> {
    let path = socket.directory.join(&socket.name);
    if socket.name == OWN_SOCKET {
        return external::is_served(&path, Stale::Remove);
    }
    if external::wait_until_served(&path, socket.wait)? {
        return Ok(true);
    }
    let (path, wait) = (path.display(), socket.wait);
    Err(invalid!("nobody serves the socket {path}, which WORKLOAD_IDENTITY_SOCKET_FILE names, within {wait:?}"))
}

/// Serves the workload's socket, or that for files; returns whether it is the latter.
fn serve(socket: Socket, external: bool, store: &Arc<Store>) -> Result<(Option<Server>, bool)> {
    if !external {
        match Server::start(server::Options::new(socket.directory.join(OWN_SOCKET)), store.clone()) {
            Ok(server) => return Ok((Some(server), false)),
            Err(e) => {
                log::warn!(error:% = e; "the workload's socket is not ours to make; only certificates in files are served")
            }
        }
    }
    let server = Server::start(server::Options::new(socket.files), store.clone())?;
    Ok((Some(server), true))
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
