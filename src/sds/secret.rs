//! From what is known of a secret to the message for Envoy.

use super::wire::{
    Any, Data, DataSource, Duration, Kind, PrivateKeyMethod, PrivateKeyProvider, Secret, TlsCertificate,
    ValidationContext,
};
use prost::Message;
use zeroize::Zeroizing;

/// Hardware that signs in Envoy's place (`privateKeyProvider` of the proxy's configuration).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyProvider {
    /// Which.
    pub kind: ProviderKind,
    /// How long requests are gathered; Envoy wants more than nothing.
    pub poll_delay: std::time::Duration,
    /// Whether Envoy signs itself where the hardware is missing.
    pub fallback: bool,
}

/// The two that Envoy has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProviderKind {
    /// Instructions of the processor.
    CryptoMb,
    /// Intel QuickAssist.
    Qat,
}

impl ProviderKind {
    fn name(self) -> &'static str {
        match self {
            ProviderKind::CryptoMb => "cryptomb",
            ProviderKind::Qat => "qat",
        }
    }

    fn config_type(self) -> &'static str {
        match self {
            ProviderKind::CryptoMb => {
                "type.googleapis.com/envoy.extensions.private_key_providers.cryptomb.v3alpha.CryptoMbPrivateKeyMethodConfig"
            }
            ProviderKind::Qat => {
                "type.googleapis.com/envoy.extensions.private_key_providers.qat.v3alpha.QatPrivateKeyMethodConfig"
            }
        }
    }
}

/// The encoded message for a certificate and its key, both PEM.
pub fn certificate(name: &str, chain: &[u8], key: &[u8], provider: Option<&KeyProvider>) -> Zeroizing<Vec<u8>> {
    let key = inline(key);
    let (private_key, private_key_provider) = match provider {
        None => (Some(key), None),
        Some(provider) => {
            let seconds = i64::try_from(provider.poll_delay.as_secs()).unwrap_or(i64::MAX);
            let poll_delay = Some(Duration { seconds, nanos: provider.poll_delay.subsec_nanos() as i32 });
            let method = PrivateKeyMethod { private_key: Some(key), poll_delay };
            let config = Any { type_url: provider.kind.config_type().to_owned(), value: method.encode_to_vec() };
            let provider = PrivateKeyProvider {
                provider_name: provider.kind.name().to_owned(),
                typed_config: Some(config),
                fallback: provider.fallback,
            };
            (None, Some(provider))
        }
    };
    let certificate = TlsCertificate { certificate_chain: Some(inline(chain)), private_key, private_key_provider };
    encode(name, Kind::TlsCertificate(certificate))
}

/// The encoded message for root certificates, PEM. `crl` is the path of a file of revoked certificates, which Envoy reads
/// and watches itself; once there is one, Envoy wants one of every authority in a chain.
pub fn roots(name: &str, pem: &[u8], crl: Option<&str>) -> Zeroizing<Vec<u8>> {
    let crl = crl.map(|path| DataSource { data: Some(Data::Filename(path.to_owned())) });
    encode(name, Kind::ValidationContext(ValidationContext { trusted_ca: Some(inline(pem)), crl }))
}

fn inline(bytes: &[u8]) -> DataSource {
    DataSource { data: Some(Data::Inline(bytes.to_vec())) }
}

fn encode(name: &str, kind: Kind) -> Zeroizing<Vec<u8>> {
    let mut secret = Secret { name: name.to_owned(), kind: Some(kind) };
    let bytes = Zeroizing::new(secret.encode_to_vec());
    wipe(&mut secret);
    bytes
}

/// Wipes the key of a message that is no longer needed.
fn wipe(secret: &mut Secret) {
    use zeroize::Zeroize;
    let Some(Kind::TlsCertificate(certificate)) = &mut secret.kind else { return };
    if let Some(DataSource { data: Some(Data::Inline(key)) }) = &mut certificate.private_key {
        key.zeroize();
    }
    let config = certificate.private_key_provider.as_mut().and_then(|provider| provider.typed_config.as_mut());
    if let Some(config) = config {
        config.value.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by hand from the field numbers: (number << 3 | 2), length, bytes.
    #[test]
    fn secrets_byte_by_byte() {
        assert_eq!(**certificate("n", b"C", b"K", None), *b"\x0a\x01n\x12\x0a\x0a\x03\x12\x01C\x12\x03\x12\x01K");
        assert_eq!(**roots("ROOTCA", b"R", None), *b"\x0a\x06ROOTCA\x22\x05\x0a\x03\x12\x01R");
        assert_eq!(**roots("r", b"R", Some("/f")), *b"\x0a\x01r\x22\x0b\x0a\x03\x12\x01R\x3a\x04\x0a\x02/f");
    }

    #[test]
    fn keys_for_hardware() {
        let provider = |kind, delay: &str| KeyProvider {
            kind,
            poll_delay: if delay == "long" {
                std::time::Duration::new(1, 5)
            } else {
                std::time::Duration::from_millis(1)
            },
            fallback: true,
        };
        for (kind, name, config) in [
            (ProviderKind::CryptoMb, "cryptomb", "CryptoMbPrivateKeyMethodConfig"),
            (ProviderKind::Qat, "qat", "QatPrivateKeyMethodConfig"),
        ] {
            let bytes = certificate("n", b"C", b"K", Some(&provider(kind, "long")));
            let secret = Secret::decode(bytes.as_slice()).unwrap();
            let Some(Kind::TlsCertificate(certificate)) = secret.kind else { panic!("{secret:?}") };
            assert!(certificate.private_key.is_none());
            let found = certificate.private_key_provider.unwrap();
            assert_eq!((found.provider_name.as_str(), found.fallback), (name, true));
            let any = found.typed_config.unwrap();
            assert!(any.type_url.ends_with(config), "{}", any.type_url);
            assert_eq!(any.value, b"\x0a\x03\x12\x01K\x12\x04\x08\x01\x10\x05");
        }
    }
}
