//! Which certificate and which roots the workload has: from files where there are some, else from the authority.
//!
//! The one place where the two sources, the trust bundle of the mesh, and the readers (Envoy's socket, the files for
//! others) meet. Roots are always told before a certificate, and nothing is told that has not changed.

use crate::ca::output::Output;
use crate::ca::renewer;
use crate::certificate::issued::Issued;
use crate::certificate::roots::Roots;
use crate::error::Error;
use crate::metrics;
use crate::sds::files::{self, Content};
use crate::sds::resource::{ROOTS, WORKLOAD};
use crate::sds::secret::{self, KeyProvider};
use crate::sds::store::Store;
use crate::sys::sync::lock;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use zeroize::Zeroizing;

/// Name under which the file of revoked certificates is watched; no secret has it.
pub const REVOKED: &str = "crl";

/// What stays as it is.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Where key, chain and roots are written for others.
    pub output: Option<Output>,
    /// Hardware that signs for Envoy.
    pub provider: Option<KeyProvider>,
    /// A file of revoked certificates, which Envoy is told of while it exists.
    pub revoked: Option<PathBuf>,
    /// Certificates come from files alone: that there are none is a failure.
    pub files_only: bool,
}

/// The workload's secrets as they are now.
pub struct Secrets {
    store: Arc<Store>,
    settings: Settings,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    issued: Option<Arc<Issued>>,
    file_pair: Option<FilePair>,
    file_roots: Option<Roots>,
    bundle: Roots,
    revoked: bool,
}

struct FilePair {
    chain: Vec<u8>,
    key: Zeroizing<Vec<u8>>,
    expires: SystemTime,
}

impl State {
    /// The roots that count, as they are told.
    fn roots(&self) -> Option<String> {
        let own = self.file_roots.as_ref().or(self.issued.as_ref().map(|issued| issued.roots()))?;
        Some(own.merged_pem(&self.bundle))
    }

    /// Chain, key and end of the certificate that counts.
    fn pair(&self) -> Option<(&[u8], &[u8], SystemTime)> {
        let of_file = self.file_pair.as_ref().map(|pair| (pair.chain.as_slice(), pair.key.as_slice(), pair.expires));
        let issued = self.issued.as_ref();
        of_file.or(issued.map(|issued| (issued.chain().as_bytes(), issued.key().as_bytes(), issued.expires())))
    }
}

impl Secrets {
    /// None are known yet.
    pub fn new(store: Arc<Store>, settings: Settings) -> Self {
        Secrets { store, settings, state: Mutex::default() }
    }

    /// Takes what the renewer tells.
    pub fn renewed(&self, notice: renewer::Notice) {
        match notice {
            renewer::Notice::Issued(issued) => {
                let mut state = lock(&self.state);
                let changed = state.issued.as_ref().is_some_and(|old| !old.roots().same_members(issued.roots()));
                if changed {
                    log::info!("Root cert has changed, start rotating root cert");
                }
                state.issued = Some(issued);
                self.tell(&state);
            }
            renewer::Notice::Failed { error, left } => {
                let error = error.context("failed to generate workload certificate");
                match left {
                    Some(left) => log::warn!(error:% = error, left:? = left; "the certificate was not renewed"),
                    None => log::warn!(error:% = error; "failed to warm certificate"),
                }
                self.fail(&error);
            }
        }
    }

    /// Takes what the files of a name hold.
    pub fn read(&self, name: &str, notice: files::Notice) {
        let content = match notice {
            files::Notice::Content(content) => content,
            files::Notice::Failed(error) => return self.not_read(name, &error),
        };
        log::info!(resource = name; "read certificate from file");
        match (name, content) {
            (WORKLOAD, Content::Certificate { chain, key, leaf }) => {
                let mut state = lock(&self.state);
                state.file_pair = Some(FilePair { chain, key, expires: leaf.not_after() });
                self.tell(&state);
            }
            (ROOTS, Content::Roots(roots)) => {
                let mut state = lock(&self.state);
                state.file_roots = Some(roots);
                self.tell(&state);
            }
            (_, Content::Exists(exists)) => {
                let mut state = lock(&self.state);
                state.revoked = exists;
                self.tell(&state);
            }
            (name, Content::Certificate { chain, key, .. }) => {
                let provider = self.settings.provider.as_ref();
                self.store.publish(name, secret::certificate(name, &chain, &key, provider));
            }
            (name, Content::Roots(roots)) => {
                self.store.publish(name, secret::roots(name, roots.to_pem().as_bytes(), None));
            }
        }
    }

    fn not_read(&self, name: &str, error: &Error) {
        if matches!(name, WORKLOAD | ROOTS) && !self.settings.files_only {
            return;
        }
        log::error!(resource = name, error:% = error; "certificates in files cannot be used");
        metrics::FILE_SECRET_FAILURES.inc([]);
        self.store.fail(name, error);
    }

    /// Takes the trust bundle of the mesh. Returns whether the workload's roots have changed.
    pub fn trust(&self, bundle: Roots) -> bool {
        let mut state = lock(&self.state);
        let before = state.roots();
        state.bundle = bundle;
        let changed = before.is_some() && before != state.roots();
        if changed {
            self.tell(&state);
        }
        changed
    }

    fn fail(&self, error: &Error) {
        let state = lock(&self.state);
        if state.pair().is_none() {
            self.store.fail(WORKLOAD, error);
        }
        if state.roots().is_none() {
            self.store.fail(ROOTS, error);
        }
    }

    /// Tells everybody what counts now. The state is locked meanwhile, so that nobody tells something older later.
    fn tell(&self, state: &State) {
        let (roots, pair) = (state.roots(), state.pair());
        if let Some(roots) = &roots {
            let revoked = self.settings.revoked.as_ref().filter(|_| state.revoked);
            let revoked = revoked.map(|path| path.to_string_lossy());
            self.store.publish(ROOTS, secret::roots(ROOTS, roots.as_bytes(), revoked.as_deref()));
        }
        if let Some((chain, key, expires)) = pair {
            let provider = self.settings.provider.as_ref();
            self.store.publish(WORKLOAD, secret::certificate(WORKLOAD, chain, key, provider));
            metrics::CERT_EXPIRY.set([WORKLOAD], expires);
        }
        if let Some(output) = &self.settings.output {
            let pair = pair.map(|(chain, key, _)| (chain, key));
            if let Err(e) = output.write(pair, roots.as_deref()) {
                log::error!(error:% = e; "error when output the resource");
            }
        }
    }
}
