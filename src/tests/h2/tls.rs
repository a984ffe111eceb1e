//! TLS below HTTP/2: the handshake, its refusals, and large bodies through it.

use super::*;
use ferrule::h2::ALPN;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use std::sync::Arc;

struct Identity {
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

fn identity(name: &str) -> Identity {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap();
    Identity { certificate: certificate.der().clone(), key: key.serialize_der() }
}

fn server_side(identity: &Identity, alpn: &[&[u8]]) -> ServerConnection {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(identity.key.clone()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_no_client_auth().with_single_cert(vec![identity.certificate.clone()], key).unwrap();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    ServerConnection::new(Arc::new(config)).unwrap()
}

fn client_side(root: &Identity) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(root.certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    ClientConnection::new(Arc::new(config), ServerName::try_from("istiod.test").unwrap()).unwrap()
}

fn connected(root: &Identity, identity: &Identity, alpn: &[&[u8]]) -> (Endpoint, Endpoint) {
    let (here, there) = UnixStream::pair().unwrap();
    let options = Options::default();
    let client = Endpoint::tls_client(here, client_side(root), &options, Deadlines::default()).unwrap();
    let server = server_side(identity, alpn);
    (client, Endpoint::tls_server(there, server, &options, Deadlines::default()).unwrap())
}

#[test]
fn large_bodies_go_both_ways() {
    const MANY: usize = 20_000_000;
    let identity = identity("istiod.test");
    let (mut client, mut server) = connected(&identity, &identity, &[ALPN]);
    let server = std::thread::spawn(move || {
        let (id, _) = opened(&mut server);
        server.answer(id, &ok(), false);
        let read = read_all(&mut server, id);
        send_all(&mut server, id, MANY);
        (read, ended(&mut server))
    });
    let id = client.open(&request("/"), false).unwrap();
    send_all(&mut client, id, MANY);
    assert_eq!(read_all(&mut client, id), MANY);
    client.shut_down();
    client.next(LONG).unwrap_err();
    drop(client);
    assert_eq!(server.join().unwrap(), (MANY, Kind::PeerGone));
}

#[test]
fn a_stranger_and_a_server_without_http2_are_refused_with_the_reason() {
    let (trusted, stranger) = (identity("istiod.test"), identity("istiod.test"));
    let refusal = |identity: &Identity, alpn: &[&[u8]]| {
        let (mut client, mut server) = connected(&trusted, identity, alpn);
        let server = std::thread::spawn(move || server.next(LONG).map(drop).unwrap_err().to_string());
        let e = client.next(LONG).unwrap_err();
        drop(client);
        (e.kind(), e.to_string(), server.join().unwrap())
    };
    let (kind, text, told) = refusal(&stranger, &[ALPN]);
    assert_eq!(kind, Kind::Invalid);
    assert!(text.starts_with("TLS: invalid peer certificate"), "{text}");
    assert!(told.contains("alert"), "{told}");
    let (kind, text, _) = refusal(&trusted, &[]);
    assert_eq!(kind, Kind::Invalid);
    assert!(text.contains("ALPN"), "{text}");
}

#[test]
fn a_server_that_does_not_finish_the_handshake_is_given_up() {
    let (here, _there) = UnixStream::pair().unwrap();
    let deadlines = Deadlines { greeting: MOMENT, ..Deadlines::default() };
    let client = client_side(&identity("istiod.test"));
    let mut client = Endpoint::tls_client(here, client, &Options::default(), deadlines).unwrap();
    client.open(&request("/"), true).unwrap();
    let e = client.next(LONG).unwrap_err();
    assert_eq!((e.kind(), e.to_string()), (Kind::TimedOut, "the TLS handshake did not end within 200ms".to_owned()));
}
