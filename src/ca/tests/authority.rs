//! An authority as istiod is one, in this process.

use crate::ca::wire::{self, CertificateRequest};
use crate::certificate::der::{self, Reader};
use crate::certificate::pem;
use crate::error::Result;
use crate::grpc::{self, Incoming, Received, Status};
use crate::h2::{self, Deadlines, Endpoint, Event, Headers};
use crate::sys::{clock, thread};
use prost::Message;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const SOON: Duration = Duration::from_secs(20);
pub(crate) const IDENTITY: &str = "spiffe://cluster.local/ns/shop/sa/web";

/// A certificate authority.
pub(crate) struct Issuer(pub(crate) CertifiedIssuer<'static, KeyPair>);

/// The public key of a request for P-256.
struct Point(Vec<u8>);

impl rcgen::PublicKeyData for Point {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }
    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

impl Issuer {
    pub(crate) fn new() -> Self {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Issuer(CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap())
    }

    /// Signs a request; the answer's elements.
    pub(crate) fn sign(&self, request: &str, lifetime: Duration) -> Vec<String> {
        let request = pem::blocks(request.as_bytes()).next().unwrap();
        let mut body = Reader::new(&request.der).enter(der::SEQUENCE).unwrap().enter(der::SEQUENCE).unwrap();
        body.natural().unwrap();
        body.read(der::SEQUENCE).unwrap();
        let mut key = body.enter(der::SEQUENCE).unwrap();
        key.read(der::SEQUENCE).unwrap();
        let mut parameters = CertificateParams::default();
        parameters.subject_alt_names = vec![SanType::URI(IDENTITY.try_into().unwrap())];
        parameters.not_before = (clock::wall() - Duration::from_secs(120)).into();
        parameters.not_after = (clock::wall() + lifetime).into();
        let leaf = parameters.signed_by(&Point(key.bits().unwrap().to_vec()), &self.0).unwrap();
        vec![leaf.pem(), self.0.pem()]
    }

    /// A certificate and key for a server or a client.
    pub(crate) fn pair(&self, name: &str, not_after: SystemTime) -> (String, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new([name.to_owned()]).unwrap();
        parameters.not_before = SystemTime::UNIX_EPOCH.into();
        parameters.not_after = not_after.into();
        (parameters.signed_by(&key, &self.0).unwrap().pem(), key)
    }

    /// A server's settings; `demanding` a certificate of the client.
    pub(crate) fn tls(&self, demanding: bool) -> Arc<ServerConfig> {
        let (certificate, key) = self.pair("istiod.istio-system.svc", clock::wall() + SOON * 100);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let chain = pem::certificates(certificate.as_bytes()).map(|der| CertificateDer::from(der.to_vec())).collect();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(
                if demanding { clients } else { clients.allow_unauthenticated() }.build().unwrap(),
            )
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }
}

pub(crate) type Answer = dyn Fn(&Headers, &CertificateRequest) -> Result<Vec<String>, Status> + Send + Sync;

/// Serves one connection at a time until the listener's address is told to end.
pub(crate) fn serve(listener: TcpListener, tls: Option<Arc<ServerConfig>>, answer: Arc<Answer>) {
    thread::spawn("authority", move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let (tls, answer) = (tls.clone(), answer.clone());
            thread::spawn("authority-one", move || connection(socket, tls, &*answer)).unwrap();
        }
    })
    .unwrap();
}

fn connection(socket: TcpStream, tls: Option<Arc<ServerConfig>>, answer: &Answer) {
    let (options, deadlines) = (h2::Options::default(), Deadlines::default());
    let mut endpoint = match tls {
        Some(tls) => Endpoint::tls_server(socket, ServerConnection::new(tls).unwrap(), &options, deadlines),
        None => Endpoint::server(socket, &options, deadlines),
    }
    .unwrap();
    let mut call = None;
    while let Ok(event) = endpoint.next(SOON) {
        if let Some(Event::Headers(id, headers)) = event {
            assert_eq!(headers.text(":path"), Some(wire::CREATE_CERTIFICATE));
            call = Some((headers, Incoming::requests(id, 1 << 20)));
        }
        let Some((headers, incoming)) = &mut call else { continue };
        if let Received::Message(message) = incoming.receive(&mut endpoint) {
            let request = CertificateRequest::decode(&*message.to_vec()).unwrap();
            let stream = incoming.stream();
            match answer(headers, &request) {
                Ok(cert_chain) => {
                    let response = wire::CertificateResponse { cert_chain };
                    endpoint.answer(stream, &grpc::answer(), false);
                    endpoint.send(stream, grpc::encode(&response.encode_to_vec()));
                    grpc::finish(&mut endpoint, stream, &Status::ok());
                }
                Err(status) => grpc::finish(&mut endpoint, stream, &status),
            }
        }
    }
}
