//! Whether a private key is that of a certificate.
//!
//! Public keys are compared, whatever the algorithm and the size: Envoy takes keys that our own TLS does not.

use super::der::{self, Reader};
use super::key::oid;
use super::pem;
use super::x509::Certificate;
use crate::error::{Context, Result};
use crate::invalid;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair};

/// What comparing a key with a certificate found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// They belong together.
    Same,
    /// They do not.
    Different,
    /// The algorithm is not known here, or the key does not say enough.
    Unknown,
}

/// A chain and a key as files hold them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The first certificate of the chain.
    pub leaf: Certificate,
    /// Whether the key is that of the leaf; never [`Match::Different`].
    pub key: Match,
}

/// Reads the first certificate of a chain and the first key of a key file, both PEM; fails when one of them is missing
/// or broken, when the key is encrypted, or when they do not belong together.
pub fn check(chain: &[u8], key: &[u8]) -> Result<Pair> {
    let leaf = leaf(chain)?;
    let block = pem::blocks(key)
        .find(|block| block.label == "PRIVATE KEY" || block.label.ends_with(" PRIVATE KEY"))
        .ok_or_else(|| invalid!("no private key in the key's file"))?;
    if block.has_headers || block.label == "ENCRYPTED PRIVATE KEY" {
        return Err(invalid!("the private key is encrypted; use one without a passphrase"));
    }
    match compare(leaf.public_key(), &block.der).context("private key")? {
        Match::Different => Err(invalid!("the private key is not that of the certificate")),
        key => Ok(Pair { leaf, key }),
    }
}

/// The first certificate of a chain, PEM.
pub fn leaf(chain: &[u8]) -> Result<Certificate> {
    let leaf = pem::certificates(chain).next().ok_or_else(|| invalid!("no certificate in the chain"))?;
    Certificate::parse(&leaf)
}

/// What a private key says of its public one.
enum Key<'a> {
    /// Modulus and exponent.
    Rsa(&'a [u8], &'a [u8]),
    /// The curve's object, the secret number, and the public point where it is written down.
    Ec(Option<&'a [u8]>, &'a [u8], Option<&'a [u8]>),
    /// The seed.
    Ed25519(&'a [u8]),
    /// Something else.
    Other,
}

/// Compares SubjectPublicKeyInfo with a private key (PKCS#1, SEC1 or PKCS#8), both DER.
fn compare(public: &[u8], key: &[u8]) -> Result<Match> {
    let key = read_key(key)?;
    let mut info = Reader::new(public).enter(der::SEQUENCE).context("public key")?;
    let mut algorithm = info.enter(der::SEQUENCE).context("public key")?;
    let object = algorithm.read(der::OBJECT).context("public key")?;
    let content = info.bits().context("public key")?;
    let same = |same: bool| if same { Match::Same } else { Match::Different };
    Ok(match key {
        Key::Rsa(modulus, exponent) if object == oid::RSA => {
            let mut numbers = Reader::new(content).enter(der::SEQUENCE).context("public key")?;
            same(numbers.natural()? == modulus && numbers.natural()? == exponent)
        }
        Key::Ec(curve, secret, point) if object == oid::EC => {
            let named = algorithm.optional(der::OBJECT).context("public key")?.unwrap_or_default();
            match point {
                _ if curve.is_some_and(|curve| curve != named) => Match::Different,
                Some(point) => same(point == content),
                None => point_of(named, secret, content).map_or(Match::Unknown, same),
            }
        }
        Key::Ed25519(seed) if object == oid::ED25519 => {
            same(Ed25519KeyPair::from_seed_and_public_key(seed, content).is_ok())
        }
        Key::Other => Match::Unknown,
        _ => Match::Different,
    })
}

/// Whether a secret number has this public point, on the curves that are known here.
fn point_of(curve: &[u8], secret: &[u8], point: &[u8]) -> Option<bool> {
    let algorithm = match curve {
        oid::P256 => &ECDSA_P256_SHA256_ASN1_SIGNING,
        oid::P384 => &ECDSA_P384_SHA384_ASN1_SIGNING,
        _ => return None,
    };
    let random = ring::rand::SystemRandom::new();
    Some(EcdsaKeyPair::from_private_key_and_public_key(algorithm, secret, point, &random).is_ok())
}

/// Reads a private key of any of the three forms; its label is not asked, as in Go.
fn read_key(key: &[u8]) -> Result<Key<'_>> {
    let mut key = Reader::new(key).enter(der::SEQUENCE)?;
    let version = key.natural().context("version")?;
    match key.peek() {
        // PKCS#8: version, algorithm, key.
        Some(der::SEQUENCE) => {
            let mut algorithm = key.enter(der::SEQUENCE)?;
            let object = algorithm.read(der::OBJECT)?;
            let content = key.read(der::OCTET_STRING)?;
            match object {
                oid::RSA => read_rsa(Reader::new(content).enter(der::SEQUENCE)?, true),
                oid::EC => {
                    let curve = algorithm.optional(der::OBJECT)?;
                    let mut key = Reader::new(content).enter(der::SEQUENCE)?;
                    key.natural().context("version")?;
                    read_ec(key, curve)
                }
                oid::ED25519 => Ok(Key::Ed25519(Reader::new(content).read(der::OCTET_STRING)?)),
                _ => Ok(Key::Other),
            }
        }
        // SEC1: version, secret.
        Some(der::OCTET_STRING) if version == [1] => read_ec(key, None),
        // PKCS#1: version, modulus.
        Some(der::INTEGER) => read_rsa(key, false),
        _ => Ok(Key::Other),
    }
}

fn read_rsa(mut key: Reader<'_>, with_version: bool) -> Result<Key<'_>> {
    if with_version {
        key.natural().context("version")?;
    }
    Ok(Key::Rsa(key.natural().context("modulus")?, key.natural().context("exponent")?))
}

fn read_ec<'a>(mut key: Reader<'a>, curve: Option<&'a [u8]>) -> Result<Key<'a>> {
    let secret = key.read(der::OCTET_STRING).context("secret number")?;
    let named = match key.optional(der::explicit(0)).context("curve")? {
        Some(wrapped) => Reader::new(wrapped).optional(der::OBJECT).context("curve")?,
        None => None,
    };
    let point = match key.optional(der::explicit(1)).context("public point")? {
        Some(wrapped) => Some(Reader::new(wrapped).bits().context("public point")?),
        None => None,
    };
    Ok(Key::Ec(curve.or(named), secret, point))
}
