//! Private keys: made, written as PEM, and used to sign, in exactly the forms of Istio's agent.

use super::{der, pem, rsa};
use crate::error::Result;
use crate::invalid;
use ring::rand::SecureRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair,
    RSA_PKCS1_SHA256, RsaKeyPair,
};
use zeroize::Zeroizing;

/// OBJECT IDENTIFIERs, content only.
pub(super) mod oid {
    pub const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
    pub const SHA256_WITH_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 0x0b];
    pub const EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
    pub const ECDSA_WITH_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
    pub const ECDSA_WITH_SHA384: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3];
    pub const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
    pub const P384: &[u8] = &[0x2b, 0x81, 4, 0, 0x22];
    pub const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
}

/// What kind of key to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// RSA with a modulus of this many bits, one of [`rsa::SIZES`]; signs with SHA-256.
    Rsa(usize),
    /// NIST P-256; signs with SHA-256.
    P256,
    /// NIST P-384; signs with SHA-384.
    P384,
}

/// How a key is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `RSA PRIVATE KEY` (PKCS#1) or `EC PRIVATE KEY` (SEC1), each algorithm's own.
    Traditional,
    /// `PRIVATE KEY` (PKCS#8).
    Pkcs8,
}

/// A private key. It is never logged, and wiped when dropped.
pub struct PrivateKey {
    algorithm: Algorithm,
    /// PKCS#1 or SEC1, DER.
    traditional: Zeroizing<Vec<u8>>,
    pkcs8: Zeroizing<Vec<u8>>,
    /// SubjectPublicKeyInfo, DER.
    public: Vec<u8>,
}

/// Says what kind of key it is and nothing more.
impl std::fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PrivateKey({:?})", self.algorithm)
    }
}

impl PrivateKey {
    /// Makes a new key. Fails for RSA sizes that are not offered.
    pub fn generate(algorithm: Algorithm, random: &dyn SecureRandom) -> Result<Self> {
        match algorithm {
            Algorithm::Rsa(bits) => {
                let fill = &mut |buffer: &mut [u8]| random.fill(buffer).map_err(|_| invalid!("no randomness"));
                Self::of_rsa(bits, rsa::generate(bits, fill)?)
            }
            Algorithm::P256 => Self::of_curve(algorithm, &ECDSA_P256_SHA256_ASN1_SIGNING, oid::P256, random),
            Algorithm::P384 => Self::of_curve(algorithm, &ECDSA_P384_SHA384_ASN1_SIGNING, oid::P384, random),
        }
    }

    fn of_rsa(bits: usize, pkcs1: Zeroizing<Vec<u8>>) -> Result<Self> {
        let pair = RsaKeyPair::from_der(&pkcs1).map_err(|e| invalid!("the RSA key that was made: {e}"))?;
        let algorithm = der::sequence(&[&der::write(der::OBJECT, oid::RSA), &[5, 0]]);
        let pkcs8 = wrap(&algorithm, &pkcs1);
        let public = der::sequence(&[&algorithm, &der::bits(pair.public_key().as_ref())]);
        Ok(PrivateKey { algorithm: Algorithm::Rsa(bits), traditional: pkcs1, pkcs8, public })
    }

    fn of_curve(
        algorithm: Algorithm,
        curve: &'static EcdsaSigningAlgorithm,
        object: &[u8],
        random: &dyn SecureRandom,
    ) -> Result<Self> {
        let failed = |e: &dyn std::fmt::Display| invalid!("the key of {algorithm:?} that was made: {e}");
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(curve, random).map_err(|e| failed(&e))?;
        let pkcs8 = Zeroizing::new(pkcs8.as_ref().to_vec());
        let pair = EcdsaKeyPair::from_pkcs8(curve, &pkcs8, random).map_err(|e| failed(&e))?;
        let secret = secret_of(&pkcs8)?;
        let object = der::write(der::OBJECT, object);
        let point = der::bits(pair.public_key().as_ref());
        // ECPrivateKey (RFC 5915). PKCS#8 names the curve outside, this form inside.
        let traditional = Zeroizing::new(der::sequence(&[
            &der::integer(&[1]),
            &Zeroizing::new(der::write(der::OCTET_STRING, secret)),
            &der::write(der::explicit(0), &object),
            &der::write(der::explicit(1), &point),
        ]));
        let public = der::sequence(&[&der::sequence(&[&der::write(der::OBJECT, oid::EC), &object]), &point]);
        Ok(PrivateKey { algorithm, traditional, pkcs8, public })
    }

    /// What kind of key it is.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// SubjectPublicKeyInfo, DER.
    pub fn public_key(&self) -> &[u8] {
        &self.public
    }

    /// The key as text.
    pub fn to_pem(&self, form: Form) -> Zeroizing<String> {
        match (form, self.algorithm) {
            (Form::Pkcs8, _) => pem::encode("PRIVATE KEY", &self.pkcs8),
            (Form::Traditional, Algorithm::Rsa(_)) => pem::encode("RSA PRIVATE KEY", &self.traditional),
            (Form::Traditional, _) => pem::encode("EC PRIVATE KEY", &self.traditional),
        }
    }

    /// Signs a message: AlgorithmIdentifier and signature.
    pub(super) fn sign(&self, message: &[u8], random: &dyn SecureRandom) -> Result<(Vec<u8>, Vec<u8>)> {
        let of_curve = |curve, object: &[u8]| {
            let pair = EcdsaKeyPair::from_pkcs8(curve, &self.pkcs8, random).map_err(|e| invalid!("key: {e}"))?;
            let signature = pair.sign(random, message).map_err(|e| invalid!("sign: {e}"))?;
            Ok((der::sequence(&[&der::write(der::OBJECT, object)]), signature.as_ref().to_vec()))
        };
        match self.algorithm {
            Algorithm::P256 => of_curve(&ECDSA_P256_SHA256_ASN1_SIGNING, oid::ECDSA_WITH_SHA256),
            Algorithm::P384 => of_curve(&ECDSA_P384_SHA384_ASN1_SIGNING, oid::ECDSA_WITH_SHA384),
            Algorithm::Rsa(_) => {
                let pair = RsaKeyPair::from_der(&self.traditional).map_err(|e| invalid!("key: {e}"))?;
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, random, message, &mut signature).map_err(|e| invalid!("sign: {e}"))?;
                let algorithm = der::sequence(&[&der::write(der::OBJECT, oid::SHA256_WITH_RSA), &[5, 0]]);
                Ok((algorithm, signature))
            }
        }
    }
}

/// PrivateKeyInfo (RFC 5958) around a key.
fn wrap(algorithm: &[u8], key: &[u8]) -> Zeroizing<Vec<u8>> {
    let key = Zeroizing::new(der::write(der::OCTET_STRING, key));
    Zeroizing::new(der::sequence(&[&der::integer(&[]), algorithm, &key]))
}

/// The secret number in the PKCS#8 of an EC key.
fn secret_of(pkcs8: &[u8]) -> Result<&[u8]> {
    let mut info = der::Reader::new(pkcs8).enter(der::SEQUENCE)?;
    info.natural()?;
    info.read(der::SEQUENCE)?;
    let mut key = info.enter(der::OCTET_STRING)?.enter(der::SEQUENCE)?;
    key.natural()?;
    key.read(der::OCTET_STRING)
}
