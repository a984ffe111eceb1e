//! The messages of `istio.v1.auth.IstioCertificateService`.

use crate::error::Result;
use crate::invalid;
use prost::Message;
use std::collections::BTreeMap;
use std::time::Duration;

/// Path of the call.
pub const CREATE_CERTIFICATE: &str = "/istio.v1.auth.IstioCertificateService/CreateCertificate";

/// The key under which the wanted signer is named.
const SIGNER: &str = "CertSigner";

/// `IstioCertificateRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct CertificateRequest {
    /// PEM.
    #[prost(string, tag = "1")]
    pub csr: String,
    /// Seconds.
    #[prost(int64, tag = "3")]
    pub validity_duration: i64,
    /// What else the authority is told.
    #[prost(message, optional, tag = "4")]
    pub metadata: Option<Struct>,
}

/// `IstioCertificateResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct CertificateResponse {
    /// Leaf, intermediates, roots; each PEM.
    #[prost(string, repeated, tag = "1")]
    pub cert_chain: Vec<String>,
}

/// `google.protobuf.Struct`.
#[derive(Clone, PartialEq, Message)]
pub struct Struct {
    /// Its members.
    #[prost(btree_map = "string, message", tag = "1")]
    pub fields: BTreeMap<String, Value>,
}

/// `google.protobuf.Value`, as far as it is used.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    /// What it is.
    #[prost(oneof = "Kind", tags = "3")]
    pub kind: Option<Kind>,
}

/// What a [`Value`] is.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Kind {
    /// Text.
    #[prost(string, tag = "3")]
    Text(String),
}

/// The bytes of a request. The signer is always named, even by an empty name.
pub fn request(csr: &str, lifetime: Duration, signer: &str) -> Vec<u8> {
    let signer = Value { kind: Some(Kind::Text(signer.to_owned())) };
    let request = CertificateRequest {
        csr: csr.to_owned(),
        validity_duration: i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX),
        metadata: Some(Struct { fields: [(SIGNER.to_owned(), signer)].into() }),
    };
    request.encode_to_vec()
}

/// The elements of an answer.
pub fn response(bytes: &[u8]) -> Result<Vec<String>> {
    let response = CertificateResponse::decode(bytes).map_err(|e| invalid!("not a certificate response: {e}"))?;
    Ok(response.cert_chain)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen from Istio's agent.
    #[test]
    fn requests_byte_by_byte() {
        let bytes = request("CSR", Duration::from_secs(24), "");
        assert_eq!(bytes, b"\x0a\x03CSR\x18\x18\x22\x12\x0a\x10\x0a\x0aCertSigner\x12\x02\x1a\x00");
        let bytes = request("C", Duration::from_millis(86_400_999), "s");
        assert_eq!(bytes, b"\x0a\x01C\x18\x80\xa3\x05\x22\x13\x0a\x11\x0a\x0aCertSigner\x12\x03\x1a\x01s");
    }

    #[test]
    fn responses() {
        assert_eq!(response(b"\x0a\x01a\x0a\x00\x0a\x01b").unwrap(), ["a", "", "b"]);
        assert!(response(b"").unwrap().is_empty());
        for bad in [&b"\x0a"[..], b"\x0a\x05a", b"\x0a\x01\xff", b"\xff"] {
            assert!(response(bad).is_err(), "{bad:?}");
        }
    }
}
