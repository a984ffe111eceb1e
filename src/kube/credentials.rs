//! Token and certificates, read again when their files change.
//!
//! The kubelet rotates a pod's token about hourly and its CA bundle rarely; both are picked up without a restart. A
//! file that cannot be read for a moment does not make us forget what we had.

use super::access::{Config, Material, Trust};
use super::tls::AnyServer;
use crate::error::{Context, Result};
use crate::invalid;
use crate::sys::{clock, file, sync};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A file is read again after this long even if it looks the same.
const REREAD_EVERY: Duration = Duration::from_secs(60);
/// Largest token or certificate file, bytes.
const LIMIT: usize = 1 << 20;

/// What a client shows to the server, and what it expects from it.
#[derive(Debug)]
pub(super) struct Credentials {
    config: Config,
    provider: Arc<CryptoProvider>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    token: Option<Cached>,
    authorities: Option<Cached>,
    certificate: Option<Cached>,
    key: Option<Cached>,
    tls: Option<(Generation, Arc<ClientConfig>)>,
}

/// Says nothing: it holds secrets.
impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("State")
    }
}

/// Our certificate and its key, PEM.
type Identity = (Arc<[u8]>, Arc<[u8]>);

/// Counts the changes of the TLS settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Generation(u64);

impl Credentials {
    pub(super) fn new(config: Config) -> Self {
        Credentials { config, provider: Arc::new(ring::default_provider()), state: Mutex::default() }
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// The value of the `Authorization` header. `again`: the server refused the one we had.
    pub(super) fn authorization(&self, again: bool) -> Result<Option<String>> {
        let Some(material) = &self.config.token else { return Ok(None) };
        let mut state = sync::lock(&self.state);
        let bytes = Cached::current(&mut state.token, material, again).context("token")?.bytes;
        let token = bytes.trim_ascii();
        if token.is_empty() || !token.iter().all(u8::is_ascii_graphic) {
            return Err(invalid!("token{}: not a bearer token", of(material)));
        }
        Ok(Some(format!("Bearer {}", String::from_utf8_lossy(token))))
    }

    /// The TLS settings, and which generation of them.
    pub(super) fn tls(&self) -> Result<(Generation, Arc<ClientConfig>)> {
        let mut state = sync::lock(&self.state);
        let state = &mut *state;
        let mut changed = false;
        let mut read = |cache: &mut Option<Cached>, material: &Material, what: &str| {
            let current = Cached::current(cache, material, false).with_context(|| what.to_owned())?;
            changed |= current.changed;
            Ok::<_, crate::error::Error>(current.bytes)
        };
        let authorities = match &self.config.trust {
            Trust::Authorities(material) => Some(read(&mut state.authorities, material, "certificate authorities")?),
            Trust::Plain | Trust::Anyone => None,
        };
        let identity = match &self.config.identity {
            Some((certificate, key)) => Some((
                read(&mut state.certificate, certificate, "client certificate")?,
                read(&mut state.key, key, "client key")?,
            )),
            None => None,
        };
        let last = match &state.tls {
            Some(tls) if !changed => return Ok(tls.clone()),
            last => last.clone(),
        };
        match self.build(authorities.as_deref(), identity.as_ref()) {
            Ok(tls) => {
                let generation = Generation(last.map_or(0, |(g, _)| g.0 + 1));
                Ok(state.tls.insert((generation, Arc::new(tls))).clone())
            }
            Err(e) => match last {
                // Certificate and key are two files: between the two writes they do not fit.
                Some(last) => {
                    log::warn!(error:% = e; "keeping the previous API server certificates");
                    Ok(last)
                }
                None => Err(e),
            },
        }
    }

    fn build(&self, authorities: Option<&[u8]>, identity: Option<&Identity>) -> Result<ClientConfig> {
        let builder = ClientConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()
            .context("TLS")?;
        let builder = match (&self.config.trust, authorities) {
            (Trust::Anyone, _) => {
                let verifier = Arc::new(AnyServer(self.provider.clone()));
                builder.dangerous().with_custom_certificate_verifier(verifier)
            }
            (trust, pem) => builder.with_root_certificates(roots(trust, pem)?),
        };
        let (Some((certificate, key)), Some((named, _))) = (identity, &self.config.identity) else {
            return Ok(builder.with_no_client_auth());
        };
        let what = || format!("client certificate{}", of(named));
        let chain = certificates(certificate).collect::<Result<_>>().with_context(what)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| invalid!("client key: {e}"))?;
        builder
            .with_client_auth_cert(chain, key)
            .map_err(|e| invalid!("certificate and key cannot be used: {e}"))
            .with_context(what)
    }
}

/// The authorities that are trusted. Certificates that cannot be used are passed over, but for the last.
fn roots(trust: &Trust, pem: Option<&[u8]>) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    if let (Trust::Authorities(material), Some(pem)) = (trust, pem) {
        for certificate in certificates(pem) {
            let certificate = certificate.with_context(|| format!("certificate authorities{}", of(material)))?;
            let _ = store.add(certificate);
        }
        if store.is_empty() {
            return Err(invalid!("certificate authorities{}: no usable certificate in it", of(material)));
        }
    }
    Ok(store)
}

fn certificates(pem: &[u8]) -> impl Iterator<Item = Result<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem).map(|c| c.map_err(|e| invalid!("not PEM: {e}")))
}

/// ` FILE` for messages.
fn of(material: &Material) -> String {
    match material {
        Material::Inline(_) => String::new(),
        Material::File(path) => format!(" {}", path.display()),
    }
}

/// The content of a file, and what it looked like when it was read.
struct Cached {
    bytes: Arc<[u8]>,
    stamp: Stamp,
    read_at: Instant,
}

type Stamp = Option<(u64, u64, i64, i64)>;

/// What [`Cached::current`] found.
struct Current {
    bytes: Arc<[u8]>,
    changed: bool,
}

impl Cached {
    fn current(cache: &mut Option<Cached>, material: &Material, again: bool) -> Result<Current> {
        let path = match material {
            Material::Inline(bytes) => return Ok(Current { bytes: bytes.as_slice().into(), changed: false }),
            Material::File(path) => path,
        };
        let (now, stamp) = (clock::now(), stamp(path));
        if let Some(cached) = cache
            && cached.stamp == stamp
            && !again
            && now.duration_since(cached.read_at) < REREAD_EVERY
        {
            return Ok(Current { bytes: cached.bytes.clone(), changed: false });
        }
        match (file::read_limited(path, LIMIT).with_context(|| path.display().to_string()), &mut *cache) {
            (Ok(bytes), cached) => {
                let changed = cached.as_ref().is_none_or(|c| *c.bytes != *bytes);
                let bytes: Arc<[u8]> = bytes.into();
                *cached = Some(Cached { bytes: bytes.clone(), stamp, read_at: now });
                Ok(Current { bytes, changed })
            }
            (Err(e), Some(cached)) => {
                log::debug!(error:% = e; "using what was read before");
                Ok(Current { bytes: cached.bytes.clone(), changed: false })
            }
            (Err(e), None) => Err(e),
        }
    }
}

/// Device left out: inode, size and times of what the path leads to, links followed (a pod's volumes are links).
fn stamp(path: &Path) -> Stamp {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()))
}
