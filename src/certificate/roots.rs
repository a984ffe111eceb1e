//! Sets of root certificates: what an authority returned, what a file holds, what the mesh configuration adds.

use super::pem;
use super::x509::Certificate;
use crate::error::{Error, Result};
use crate::invalid;
use std::collections::BTreeSet;

/// Where operating systems keep the roots that they trust; the first that exists counts.
pub const SYSTEM_FILES: [&str; 8] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/usr/local/etc/ssl/cert.pem",
    "/etc/ssl/certs/ca-certificates",
];

/// Root certificates, each readable, none twice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roots(Vec<Vec<u8>>);

/// What reading a text of root certificates found.
#[derive(Debug)]
pub struct Read {
    /// Those that can be used, in order.
    pub roots: Roots,
    /// Why others cannot.
    pub refused: Vec<Error>,
}

impl Roots {
    /// Reads every certificate of a PEM text. Envoy refuses a whole bundle for one certificate that it cannot read, so
    /// those are left out; so is everything that is no certificate.
    pub fn read(text: &[u8]) -> Read {
        let mut read = Read { roots: Roots::default(), refused: Vec::new() };
        let mut seen = BTreeSet::new();
        for block in pem::blocks(text) {
            let checked = if block.label == pem::CERTIFICATE {
                Certificate::parse(&block.der)
            } else {
                Err(invalid!("a block of type {:?} is no certificate", block.label))
            };
            match checked {
                Ok(_) if seen.insert(block.der.to_vec()) => read.roots.0.push(block.der.to_vec()),
                Ok(_) => {}
                Err(e) => read.refused.push(e),
            }
        }
        read
    }

    /// Reads like [`Roots::read`], and fails when nothing can be used.
    pub fn read_some(text: &[u8]) -> Result<Read> {
        let read = Self::read(text);
        if read.roots.is_empty() {
            let why = read.refused.first().map_or("no PEM block in it".to_owned(), Error::to_string);
            return Err(invalid!("no usable root certificate: {why}"));
        }
        Ok(read)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Each as DER.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }

    /// All of them in order, each block ending with a line feed.
    pub fn to_pem(&self) -> String {
        self.iter().map(|der| pem::encode(pem::CERTIFICATE, der).to_string()).collect()
    }

    /// Those of two sets, as Istio writes what it merges: sorted by their text, joined by line feeds, none at the end.
    pub fn merged_pem(&self, others: &Roots) -> String {
        let text = |der: &[u8]| pem::encode(pem::CERTIFICATE, der).trim_end().to_owned();
        let sorted: BTreeSet<String> = self.iter().chain(others.iter()).map(text).collect();
        sorted.into_iter().collect::<Vec<_>>().join("\n")
    }

    /// Whether two sets have the same members, whatever their order.
    pub fn same_members(&self, others: &Roots) -> bool {
        self.0.iter().collect::<BTreeSet<_>>() == others.0.iter().collect::<BTreeSet<_>>()
    }
}
