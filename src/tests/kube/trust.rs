//! Tokens, certificates and kubeconfigs.

use super::{ENOUGH, at_once, setup, web};
use crate::apiserver::ApiServer;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrule::error::{Error, Kind as ErrorKind};
use ferrule::kube::client::{Client, Patience};
use ferrule::kube::config::{Config, Options, Proxies, Source};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

const ONCE: Patience = Patience::once(Duration::from_secs(10));

#[test]
fn a_rotated_token_is_picked_up() {
    let s = setup();
    s.put_pod(0);
    s.client.get_pod(&web(0), ONCE).unwrap();
    // The file changes first, as it does in a cluster.
    s.server.write_token("token-2");
    s.server.accept_token("token-2");
    s.client.get_pod(&web(0), ONCE).unwrap();
    assert_eq!(s.server.count("GET"), 2, "no request with the old token");
    // A file that cannot be read for a moment, then one that looks the same from outside.
    let token = s.dir.path().join("token");
    std::fs::remove_file(&token).unwrap();
    s.client.get_pod(&web(0), ONCE).unwrap();
    s.server.accept_token("token-3");
    let e = s.client.get_pod(&web(0), ONCE).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unauthorized);
    assert_eq!(e.to_string(), "get pod team-a/web-0: 401 Unauthorized: Unauthorized");
    s.server.write_token("token-3");
    s.client.get_pod(&web(0), ONCE).unwrap();
}

#[test]
fn a_refused_token_is_read_again_even_if_the_file_looks_the_same() {
    let s = setup();
    s.put_pod(0);
    s.client.get_pod(&web(0), ONCE).unwrap();
    let token = s.dir.path().join("token");
    let before = std::fs::metadata(&token).unwrap().modified().unwrap();
    std::fs::write(&token, "token-2").unwrap();
    std::fs::File::options().write(true).open(&token).unwrap().set_modified(before).unwrap();
    s.server.accept_token("token-2");
    s.client.get_pod(&web(0), ONCE).unwrap();
    assert_eq!(s.server.count("GET"), 3, "refused once, then accepted");
}

#[test]
fn bad_tokens_are_named_by_their_file_and_never_shown() {
    let s = setup();
    for bad in ["", "two words", "line\nbreak"] {
        s.server.write_token(bad);
        let e = s.client.get_pod(&web(0), ONCE).unwrap_err().to_string();
        assert!(e.contains("/token: not a bearer token") && (bad.is_empty() || !e.contains(bad)), "{e}");
    }
    assert!(s.server.requests().is_empty());
}

#[test]
fn a_changed_certificate_is_refused_until_the_authority_is_known() {
    let mut s = setup();
    s.put_pod(0);
    s.client.get_pod(&web(0), ONCE).unwrap();
    s.server.change_certificate();
    s.client.get_pod(&web(0), ONCE).expect("the open connection is still good");
    s.server.cut();
    let e = s.client.get_pod(&web(0), ONCE).unwrap_err();
    assert!(e.to_string().contains("certificate"), "{e}");
    s.server.write_ca();
    s.client.get_pod(&web(0), ONCE).unwrap();
    std::fs::write(s.dir.path().join("ca.crt"), "garbage").unwrap();
    s.server.cut();
    s.client.get_pod(&web(0), ONCE).expect("a bundle that cannot be read does not replace one that works");
}

#[test]
fn a_service_account_without_certificates_says_so() {
    let s = setup();
    std::fs::write(s.dir.path().join("ca.crt"), "garbage").unwrap();
    let e = s.client.get_pod(&web(0), ONCE).unwrap_err().to_string();
    assert!(e.contains("/ca.crt: no usable certificate in it"), "{e}");
    std::fs::remove_file(s.dir.path().join("ca.crt")).unwrap();
    let e = super::setup_client(&s.server).get_pod(&web(0), ONCE).unwrap_err().to_string();
    assert!(e.contains("certificate authorities: ") && e.contains("/ca.crt: No such file"), "{e}");
}

fn through(kubeconfig: &Path) -> Result<Client, Error> {
    let source = Source::Kubeconfig(kubeconfig.to_str().unwrap().into());
    Ok(Client::new(Config::load(&Options { source, proxies: Proxies::default() })?))
}

fn write_kubeconfig(server: &ApiServer, cluster: &str, user: &str) -> std::path::PathBuf {
    let path = server.service_account_dir().join("other-kubeconfig");
    let text = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: 'https://localhost:{}', {cluster}}}}}]\n\
         users: [{{name: u, user: {{{user}}}}}]\n",
        server.port()
    );
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn kubeconfigs() {
    let s = setup();
    s.put_pod(0);
    through(&s.server.kubeconfig()).unwrap().get_pod(&web(0), ONCE).unwrap();
    let (certificate, key) = s.server.client_certificate();
    let ca = std::fs::read_to_string(s.dir.path().join("ca.crt")).unwrap();
    std::fs::write(s.dir.path().join("client.pem"), &certificate).unwrap();
    std::fs::write(s.dir.path().join("client.key"), &key).unwrap();
    let ca_file = "certificate-authority: ca.crt".to_owned();
    let ca_data = format!("certificate-authority-data: {}", STANDARD.encode(ca));
    let cert_file = "client-certificate: client.pem, client-key: client.key".to_owned();
    let cert_data = format!(
        "client-certificate-data: {}, client-key-data: {}",
        STANDARD.encode(&certificate),
        STANDARD.encode(&key)
    );
    let insecure = "insecure-skip-tls-verify: true".to_owned();
    let ok = |cluster: &str, user: &str| {
        let client = through(&write_kubeconfig(&s.server, cluster, user)).unwrap();
        client.get_pod(&web(0), ONCE).unwrap_or_else(|e| panic!("{cluster:.60} {user:.60}: {e}"));
    };
    ok(&ca_file, "token: token-1");
    ok(&ca_data, "tokenFile: token");
    ok(&ca_file, &cert_file);
    ok(&ca_data, &cert_data);
    ok(&insecure, "token: token-1");
    let fails = |cluster: &str, user: &str, expected: &str| {
        let client = through(&write_kubeconfig(&s.server, cluster, user));
        let e = client.and_then(|c| c.get_pod(&web(0), ONCE).map(drop)).unwrap_err().to_string();
        assert!(e.contains(expected), "{cluster:.60} {user:.60}: {e}");
    };
    fails(&ca_file, "token: other", "401 Unauthorized");
    fails(&ca_file, "", "403 Forbidden");
    fails(&ca_file, "client-certificate: client.pem, client-key: ca.crt", "client key");
    fails("certificate-authority: client.pem", "token: token-1", "certificate");
    fails(&ca_file, "exec: {command: aws}", "exec is not supported");
}

#[test]
fn a_proxy_carries_the_tunnel() {
    let s = setup();
    s.put_pod(0);
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = proxy.local_addr().unwrap();
    let target = format!("127.0.0.1:{}", s.server.port());
    let asked = std::thread::spawn(move || {
        let (mut inside, _) = proxy.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            inside.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let outside = TcpStream::connect(target).unwrap();
        inside.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").unwrap();
        let (mut a, mut b) = (inside.try_clone().unwrap(), outside.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut a, &mut b));
        let (mut a, mut b) = (outside, inside);
        std::thread::spawn(move || std::io::copy(&mut a, &mut b));
        String::from_utf8(head).unwrap()
    });
    let cluster = format!("certificate-authority: ca.crt, proxy-url: 'http://{address}'");
    through(&write_kubeconfig(&s.server, &cluster, "token: token-1")).unwrap().get_pod(&web(0), ONCE).unwrap();
    assert!(asked.join().unwrap().starts_with(&format!("CONNECT localhost:{} HTTP/1.1\r\n", s.server.port())));
}

#[test]
fn an_unreachable_server_is_named() {
    let mut s = setup();
    s.server.go_down();
    let e = at_once("a refused connection", || s.client.get_pod(&web(0), ONCE)).unwrap_err();
    assert!(e.to_string().starts_with("get pod team-a/web-0: "), "{e}");
    assert!(s.client.server().ends_with(&format!("127.0.0.1:{}", s.server.port())));
    s.server.come_back();
    s.put_pod(0);
    s.client.get_pod(&web(0), ENOUGH).unwrap();
}
