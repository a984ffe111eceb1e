//! TLS towards istiod and other authorities: settings, made anew for each connection from what the files say then.

use super::roots::Roots;
use super::{pair, pem};
use crate::error::{Context, Result};
use crate::invalid;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{cipher_suite, default_provider, kx_group};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use std::sync::Arc;
use std::time::SystemTime;

/// What HTTP/2 is negotiated by.
const ALPN: &[u8] = b"h2";
/// Whom a server that is reached as localhost has to be.
const ISTIOD: &str = "istiod.istio-system.svc";

/// `COMPLIANCE_POLICY`: which algorithms may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compliance {
    /// TLS 1.2 and 1.3 with what is safe.
    #[default]
    Any,
    /// `fips-140-2`: TLS 1.2 with AES-GCM and P-256.
    Fips1402,
    /// `fips-140-3`: TLS 1.2 and 1.3 with AES-GCM, P-256 and P-384.
    Fips1403,
}

impl Compliance {
    /// Reads the variable's value. An unknown one is an error; so is `pqc`, whose key exchange is not built in.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "" => Ok(Compliance::Any),
            "fips-140-2" => Ok(Compliance::Fips1402),
            "fips-140-3" => Ok(Compliance::Fips1403),
            "pqc" => Err(invalid!("the key exchange X25519MLKEM768, which pqc demands, is not built in")),
            other => Err(invalid!("{other:?} is not one of fips-140-2, fips-140-3")),
        }
    }

    fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        static BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
        let (_, only_12) = BOTH.split_at(1);
        if self == Compliance::Fips1402 { only_12 } else { &BOTH }
    }

    fn provider(self) -> CryptoProvider {
        let mut provider = default_provider();
        if self != Compliance::Any {
            provider.cipher_suites = vec![
                cipher_suite::TLS13_AES_256_GCM_SHA384,
                cipher_suite::TLS13_AES_128_GCM_SHA256,
                cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
                cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
                cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
                cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            ];
            provider.kx_groups = vec![kx_group::SECP256R1];
        }
        if self == Compliance::Fips1403 {
            provider.kx_groups.push(kx_group::SECP384R1);
        }
        provider
    }
}

/// A certificate that is shown to the server.
pub struct Identity<'a> {
    /// PEM.
    pub chain: &'a [u8],
    /// PEM.
    pub key: &'a [u8],
}

/// Settings for a connection to a server whose certificate comes from one of the roots. Roots that cannot be used are
/// passed over; there must be one that can.
pub fn client(roots: &Roots, identity: Option<&Identity<'_>>, compliance: Compliance) -> Result<Arc<ClientConfig>> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots.iter().map(|der| CertificateDer::from(der.to_vec())));
    if store.is_empty() {
        return Err(invalid!("no root certificate that can be used"));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(compliance.provider()))
        .with_protocol_versions(compliance.versions())
        .context("TLS")?
        .with_root_certificates(store);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = pem::certificates(identity.chain).map(|der| CertificateDer::from(der.to_vec())).collect();
            let key = PrivateKeyDer::from_pem_slice(identity.key).map_err(|e| invalid!("client key: {e}"))?;
            builder.with_client_auth_cert(chain, key).map_err(|e| invalid!("client certificate and key: {e}"))?
        }
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

/// Whether a chain can be shown at this time: fails when it cannot be read, says `false` when its first certificate has
/// expired.
pub fn is_current(chain: &[u8], now: SystemTime) -> Result<bool> {
    Ok(pair::leaf(chain)?.not_after() > now)
}

/// Who the server at a host has to be; `wanted` (`ISTIOD_SAN`) wins over the host.
pub fn server<'a>(host: &'a str, wanted: Option<&'a str>) -> &'a str {
    match wanted {
        Some(name) => name,
        None if host.contains("localhost") => ISTIOD,
        None => host.trim_start_matches('[').trim_end_matches(']'),
    }
}

/// The name as TLS wants it: a DNS name, or an address, which is not sent but checked.
pub fn server_name(name: &str) -> Result<ServerName<'static>> {
    ServerName::try_from(name.to_owned()).map_err(|e| invalid!("{name:?} is no server's name: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};

    #[test]
    fn names() {
        let check = |host: &str, wanted: Option<&str>, expected: &str| {
            let name = server(host, wanted);
            assert_eq!((name, &*server_name(name).unwrap().to_str()), (expected, expected));
        };
        check("istiod.istio-system.svc", None, "istiod.istio-system.svc");
        check("localhost", None, ISTIOD);
        check("x.localhost.y", None, ISTIOD);
        check("10.0.0.1", None, "10.0.0.1");
        check("[fd00::1]", None, "fd00::1");
        check("10.0.0.1", Some("istiod-a.b.svc"), "istiod-a.b.svc");
        assert!(server_name("a b").is_err());
    }

    #[test]
    fn settings() {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::default().self_signed(&key).unwrap().pem();
        let roots = Roots::read(certificate.as_bytes()).roots;
        let key = key.serialize_pem();
        let identity = Identity { chain: certificate.as_bytes(), key: key.as_bytes() };
        for (policy, suites, groups) in [("", 9, 3), ("fips-140-2", 6, 1), ("fips-140-3", 6, 2)] {
            let policy = Compliance::parse(policy).unwrap();
            let config = client(&roots, Some(&identity), policy).unwrap();
            let provider = config.crypto_provider();
            assert_eq!((provider.cipher_suites.len(), provider.kx_groups.len()), (suites, groups), "{policy:?}");
            assert_eq!(config.alpn_protocols, [b"h2"]);
            assert!(config.client_auth_cert_resolver.has_certs());
            assert!(!client(&roots, None, policy).unwrap().client_auth_cert_resolver.has_certs());
        }
        assert!(Compliance::parse("pqc").is_err() && Compliance::parse("x").is_err());
        assert!(client(&Roots::default(), None, Compliance::Any).is_err());
        let broken = Identity { chain: certificate.as_bytes(), key: b"" };
        assert!(client(&roots, Some(&broken), Compliance::Any).is_err());
        assert!(is_current(certificate.as_bytes(), SystemTime::UNIX_EPOCH).unwrap());
        let later = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1 << 38);
        assert!(!is_current(certificate.as_bytes(), later).unwrap());
        assert!(is_current(b"", later).is_err());
    }
}
