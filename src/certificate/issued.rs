//! What an authority returns for a request: the workload's certificate, its chain and the roots.

use super::key::{Form, PrivateKey};
use super::pem;
use super::roots::Roots;
use super::x509::Certificate;
use crate::error::{Context, Error, Result};
use crate::invalid;
use std::time::SystemTime;
use zeroize::Zeroizing;

/// A certificate with its key, as Envoy and other readers get it.
pub struct Issued {
    chain: String,
    key: Zeroizing<String>,
    roots: Roots,
    leaf: Certificate,
    received: SystemTime,
    refused: Vec<Error>,
}

/// Says whose it is and how long it is valid; never the key.
impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued").field("uris", &self.leaf.uris()).field("expires", &self.expires()).finish()
    }
}

impl Issued {
    /// Takes the answer's elements, each a PEM text: leaf, intermediates, and last the roots. A certificate that comes
    /// twice (istiod with a plugged-in CA sends its root twice) is taken once; the roots stay part of the chain.
    /// `received` is the local time of the answer. Fails when there are fewer than two elements, when the leaf cannot
    /// be read or is not for `key`, and when there is no usable root.
    pub fn take(elements: &[String], key: &PrivateKey, form: Form, received: SystemTime) -> Result<Self> {
        let [first, .., last] = elements else { return Err(invalid!("invalid empty CertChain")) };
        let leaf = pem::certificates(first.as_bytes()).next().ok_or_else(|| invalid!("no certificate"));
        let leaf = leaf.and_then(|der| Certificate::parse(&der)).context("the chain's first certificate")?;
        if leaf.public_key() != key.public_key() {
            return Err(invalid!("the certificate is for another key than the one that was sent"));
        }
        let text: String = elements.iter().flat_map(|element| [element.as_str(), "\n"]).collect();
        let chain = Roots::read(text.as_bytes());
        let roots = Roots::read_some(last.as_bytes()).context("the chain's last element")?.roots;
        let (chain, refused) = (chain.roots.to_pem(), chain.refused);
        Ok(Issued { chain, key: key.to_pem(form), roots, leaf, received, refused })
    }

    /// The chain as PEM: leaf first, roots last.
    pub fn chain(&self) -> &str {
        &self.chain
    }

    /// The key as PEM.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The roots that came with it.
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// The workload's certificate.
    pub fn leaf(&self) -> &Certificate {
        &self.leaf
    }

    /// Local time of the answer.
    pub fn received(&self) -> SystemTime {
        self.received
    }

    /// Until when it is valid.
    pub fn expires(&self) -> SystemTime {
        self.leaf.not_after()
    }

    /// Why parts of the answer were left out.
    pub fn refused(&self) -> &[Error] {
        &self.refused
    }
}
