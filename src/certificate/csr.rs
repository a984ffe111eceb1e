//! Certificate signing requests (PKCS#10, RFC 2986) in the one shape that every authority of a mesh takes.
//!
//! The subject is a single O with an empty value, and the only extension asked for is a critical subjectAltName with
//! one URI: istiod as registration authority compares the subject with that, and cert-manager's istio-csr refuses any
//! other extension.

use super::key::PrivateKey;
use super::{der, pem, x509};
use crate::error::Result;
use ring::rand::SecureRandom;

/// RDNSequence with one O, a PrintableString of length 0.
const SUBJECT: &[u8] = &[0x30, 0x0b, 0x31, 0x09, 0x30, 0x07, 0x06, 0x03, 0x55, 0x04, 0x0a, 0x13, 0x00];
/// extensionRequest (PKCS#9, RFC 2985).
const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 0x0e];

/// The identity of a workload (SPIFFE ID), as Istio writes it: nothing is escaped, and a part may be empty.
pub fn spiffe_id(trust_domain: &str, namespace: &str, service_account: &str) -> String {
    format!("spiffe://{trust_domain}/ns/{namespace}/sa/{service_account}")
}

/// A request for a certificate of `key` with this URI, signed by the key, as PEM.
pub fn request(key: &PrivateKey, uri: &str, random: &dyn SecureRandom) -> Result<String> {
    let names = der::sequence(&[&der::write(x509::URI, uri.as_bytes())]);
    let extension = der::sequence(&[
        &der::write(der::OBJECT, x509::SUBJECT_ALT_NAME),
        &der::write(der::BOOLEAN, &[0xff]),
        &der::write(der::OCTET_STRING, &names),
    ]);
    let attribute = der::sequence(&[
        &der::write(der::OBJECT, EXTENSION_REQUEST),
        &der::write(der::SET, &der::sequence(&[&extension])),
    ]);
    let version = der::integer(&[]);
    let body = der::sequence(&[&version, SUBJECT, key.public_key(), &der::write(der::explicit(0), &attribute)]);
    let (algorithm, signature) = key.sign(&body, random)?;
    let request = der::sequence(&[&body, &algorithm, &der::bits(&signature)]);
    Ok(pem::encode("CERTIFICATE REQUEST", &request).to_string())
}
