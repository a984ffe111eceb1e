//! A request's way to an authority and back, and the renewer over it.

pub(crate) mod authority;

use super::client::{Client, Options, Trust};
use super::renewer::{self, Authority, Notice, Renewer};
use super::wire::CertificateRequest;
use crate::certificate::csr;
use crate::certificate::key::{Algorithm, Form, PrivateKey};
use crate::certificate::renewal::Grace;
use crate::certificate::tls::Compliance;
use crate::error::{Error, Kind, Result};
use crate::grpc::{Code, Status};
use crate::h2::Headers;
use crate::sys::clock;
use crate::sys::sync::lock;
use authority::{IDENTITY, Issuer, serve};
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

struct Bed {
    issuer: Arc<Issuer>,
    options: Options,
    dir: tempfile::TempDir,
}

fn write(path: &Path, text: impl AsRef<[u8]>) {
    let file = std::fs::File::options().write(true).create(true).truncate(true).open(path);
    file.unwrap().write_all(text.as_ref()).unwrap();
}

/// An authority that answers so, with a client for it.
fn bed(
    answer: impl Fn(&Issuer, &Headers, &CertificateRequest) -> Result<Vec<String>, Status> + Send + Sync + 'static,
) -> Bed {
    let issuer = Arc::new(Issuer::new());
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let signing = issuer.clone();
    serve(
        listener,
        Some(issuer.tls(false)),
        Arc::new(move |headers: &Headers, request: &CertificateRequest| answer(&signing, headers, request)),
    );
    write(&dir.path().join("root.pem"), issuer.0.pem());
    write(&dir.path().join("token"), "e30.eyJleHAiOjF9.x\n");
    let options = Options {
        address: format!("localhost:{}", address.port()),
        server_name: None,
        trust: Trust::File(dir.path().join("root.pem")),
        client_certificate: None,
        token: dir.path().join("token"),
        cluster: "Kubernetes".to_owned(),
        signer: String::new(),
        headers: vec![("x-extra".to_owned(), "a=b".to_owned())],
        compliance: Compliance::Any,
        answer: SOON,
    };
    Bed { issuer, options, dir }
}

impl Bed {
    fn sign(&self) -> Result<Vec<String>> {
        Client::new(self.options.clone()).unwrap().sign(&request(), Duration::from_secs(86_400))
    }
}

fn request() -> String {
    let random = ring::rand::SystemRandom::new();
    let key = PrivateKey::generate(Algorithm::P256, &random).unwrap();
    csr::request(&key, IDENTITY, &random).unwrap()
}

fn good(issuer: &Issuer, request: &CertificateRequest) -> Vec<String> {
    issuer.sign(&request.csr, Duration::from_secs(3600))
}

#[test]
fn requests_are_those_of_istios_agent() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let bed = bed(move |issuer, headers, request| {
        lock(&log).push((headers.clone(), request.clone()));
        Ok(good(issuer, request))
    });
    assert_eq!(bed.sign().unwrap().len(), 2);
    write(&bed.dir.path().join("token"), "new");
    assert_eq!(bed.sign().unwrap().len(), 2);
    let seen = lock(&seen);
    let (headers, request) = &seen[0];
    for (name, value) in [
        (":authority", "istiod.istio-system.svc"),
        (":method", "POST"),
        ("content-type", "application/grpc"),
        ("authorization", "Bearer e30.eyJleHAiOjF9.x"),
        ("clusterid", "Kubernetes"),
        ("x-extra", "a=b"),
    ] {
        assert_eq!(headers.text(name), Some(value), "{name}");
    }
    assert_eq!(request.validity_duration, 86_400);
    assert_eq!(seen[1].0.text("authorization"), Some("Bearer new"));
}

#[test]
fn passing_failures_are_tried_again_and_others_are_not() {
    for (code, attempts) in [
        (Code::Unavailable, 5),
        (Code::ResourceExhausted, 5),
        (Code::Aborted, 5),
        (Code::Internal, 5),
        (Code::Unauthenticated, 1),
        (Code::InvalidArgument, 1),
        (Code::Unknown, 1),
    ] {
        let count = Arc::new(Mutex::new(0));
        let counted = count.clone();
        let bed = bed(move |_, _, _| {
            *lock(&counted) += 1;
            Err(Status::new(code, "said no"))
        });
        let e = bed.sign().unwrap_err().to_string();
        assert_eq!(*lock(&count), attempts, "{code:?}");
        assert!(e.starts_with(&format!("rpc error: code = {code:?} desc = said no")), "{e}");
        let about_token = e.contains("the token expired") && e.contains("s ago");
        assert_eq!(about_token, code == Code::Unauthenticated, "{e}");
    }
}

#[test]
fn the_token_is_read_for_every_attempt() {
    let bed_dir: Arc<Mutex<Option<std::path::PathBuf>>> = Arc::default();
    let path = bed_dir.clone();
    let bed = bed(move |issuer, headers, request| match headers.text("authorization") {
        Some("Bearer second") => Ok(good(issuer, request)),
        _ => {
            write(lock(&path).as_ref().unwrap(), "second");
            Err(Status::new(Code::Unavailable, "not yet"))
        }
    });
    *lock(&bed_dir) = Some(bed.dir.path().join("token"));
    assert_eq!(bed.sign().unwrap().len(), 2);
}

#[test]
fn without_a_token_no_header_is_sent() {
    let bed = bed(|issuer, headers, request| {
        assert_eq!(headers.text("authorization"), None);
        Ok(good(issuer, request))
    });
    write(&bed.dir.path().join("token"), "\n");
    assert_eq!(bed.sign().unwrap().len(), 2);
    std::fs::remove_dir_all(bed.dir.path().join("nothing")).unwrap_err();
    let options = Options { token: bed.dir.path().join("nothing"), ..bed.options.clone() };
    assert!(Client::new(options).unwrap().sign(&request(), SOON).is_ok());
}

#[test]
fn new_roots_are_used_at_once() {
    let bed = bed(|issuer, _, request| Ok(good(issuer, request)));
    let path = bed.dir.path().join("root.pem");
    write(&path, Issuer::new().0.pem());
    let e = bed.sign().unwrap_err().to_string();
    assert!(e.contains("code = Unavailable"), "{e}");
    write(&path, [Issuer::new().0.pem(), bed.issuer.0.pem()].concat());
    assert!(bed.sign().is_ok());
    write(&path, "");
    assert!(bed.sign().unwrap_err().to_string().contains("no usable root certificate"));
    // Somebody else's name.
    write(&path, bed.issuer.0.pem());
    let options = Options { server_name: Some("other.svc".to_owned()), ..bed.options.clone() };
    assert!(Client::new(options).unwrap().sign(&request(), SOON).is_err());
}

#[test]
fn a_silent_authority_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = bed(|_, _, _| {
        clock::sleep(Duration::from_secs(3));
        Err(Status::new(Code::Unknown, "too late"))
    });
    let options = Options { answer: Duration::from_millis(200), ..silent.options.clone() };
    let begin = clock::now();
    let e = Client::new(options).unwrap().sign(&request(), SOON).unwrap_err();
    assert_eq!(e.kind(), Kind::TimedOut, "{e}");
    assert!(e.to_string().contains("DeadlineExceeded"), "{e}");
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    drop(listener);
    for address in ["nowhere", ":1", "host:", "host:x", ""] {
        assert!(Client::new(Options { address: address.to_owned(), ..silent.options.clone() }).is_err(), "{address}");
    }
}

#[test]
fn a_client_certificate_is_shown_while_it_is_valid() {
    // What TLS showed is not in the headers: a server that demands a certificate tells.
    let issuer = Issuer::new();
    let config = issuer.tls(true);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let signing = Arc::new(issuer);
    let issuer = signing.clone();
    let answer = move |_: &Headers, request: &CertificateRequest| Ok(good(&signing, request));
    serve(listener, Some(config), Arc::new(answer));

    let bed = bed(|_, _, _| Err(Status::ok()));
    let at = |name: &str| bed.dir.path().join(name);
    write(&at("root.pem"), issuer.0.pem());
    let options = Options {
        address: format!("localhost:{port}"),
        client_certificate: Some((at("cert-chain.pem"), at("key.pem"))),
        ..bed.options.clone()
    };
    let mut client = Client::new(options).unwrap();
    let mut sign = || client.sign(&request(), SOON).map(|_| ());
    assert!(sign().is_err(), "nothing to show");
    let (certificate, key) = issuer.pair("client", clock::wall() + SOON * 100);
    write(&at("cert-chain.pem"), certificate);
    assert!(sign().unwrap_err().to_string().contains("key.pem"), "a chain without a key");
    write(&at("key.pem"), key.serialize_pem());
    sign().unwrap();
    let (certificate, key) = issuer.pair("client", clock::wall() - SOON);
    write(&at("cert-chain.pem"), certificate);
    write(&at("key.pem"), key.serialize_pem());
    assert!(sign().is_err(), "expired, so not shown");
}

#[test]
fn port_15010_is_spoken_to_without_tls() {
    let issuer = Issuer::new();
    // An address of this process alone.
    let [_, _, a, b] = std::process::id().to_be_bytes();
    let address = format!("127.77.{a}.{b}:15010");
    let listener = TcpListener::bind(&address).unwrap();
    serve(
        listener,
        None,
        Arc::new(move |headers: &Headers, request: &CertificateRequest| {
            assert_eq!(headers.text(":scheme"), Some("http"));
            assert!(headers.text("authorization").is_some());
            Ok(good(&issuer, request))
        }),
    );
    let bed = bed(|_, _, _| Err(Status::ok()));
    let options = Options { address, ..bed.options.clone() };
    assert_eq!(Client::new(options).unwrap().sign(&request(), SOON).unwrap().len(), 2);
}

/// An authority in this process.
struct Local {
    issuer: Issuer,
    lifetime: Duration,
    /// Answers that fail, before those that do not.
    failures: Arc<Mutex<usize>>,
    asked: Arc<Mutex<usize>>,
}

impl Authority for Local {
    fn sign(&mut self, csr: &str, _: Duration) -> Result<Vec<String>> {
        *lock(&self.asked) += 1;
        let mut failures = lock(&self.failures);
        if *failures > 0 {
            *failures -= 1;
            return Err(Error::new("rpc error: code = Unavailable desc = away"));
        }
        Ok(self.issuer.sign(csr, self.lifetime))
    }
}

struct Renewing {
    renewer: Renewer,
    told: Receiver<Notice>,
    failures: Arc<Mutex<usize>>,
    asked: Arc<Mutex<usize>>,
}

fn renewing(lifetime: Duration, ratio: f64, failures: usize) -> Renewing {
    let (failures, asked) = (Arc::new(Mutex::new(failures)), Arc::new(Mutex::new(0)));
    let local = Local { issuer: Issuer::new(), lifetime, failures: failures.clone(), asked: asked.clone() };
    let options = renewer::Options {
        identity: IDENTITY.to_owned(),
        algorithm: Algorithm::P256,
        form: Form::Traditional,
        lifetime,
        grace: Grace { ratio, jitter: 0.0 },
    };
    let (sender, told) = channel();
    let renewer = Renewer::start(options, local, move |notice| sender.send(notice).unwrap_or(())).unwrap();
    Renewing { renewer, told, failures, asked }
}

impl Renewing {
    #[track_caller]
    fn issued(&self) -> Arc<crate::certificate::issued::Issued> {
        match self.told.recv_timeout(SOON).unwrap() {
            Notice::Issued(issued) => issued,
            Notice::Failed { error, .. } => panic!("{error}"),
        }
    }

    #[track_caller]
    fn failed(&self) -> (String, Option<Duration>) {
        match self.told.recv_timeout(SOON).unwrap() {
            Notice::Issued(issued) => panic!("{issued:?}"),
            Notice::Failed { error, left } => (error.to_string(), left),
        }
    }
}

#[test]
fn a_certificate_is_renewed_in_time() {
    let bed = renewing(Duration::from_secs(4), 0.5, 0);
    let first = bed.issued();
    let second = bed.issued();
    assert!(second.received() < first.expires(), "while the first was valid");
    assert!(second.received() >= first.received() + Duration::from_secs(1), "not before half of its life");
    assert_ne!(first.key(), second.key(), "with a new key");
    assert_eq!(first.leaf().uris(), [IDENTITY]);
    // One request for each.
    assert_eq!(*lock(&bed.asked), 2);
}

#[test]
fn one_request_at_the_start_and_not_more_than_one_a_second() {
    // A ratio of 1 renews at once, for ever.
    let bed = renewing(Duration::from_secs(3600), 1.0, 0);
    let (first, second) = (bed.issued(), bed.issued());
    assert!(second.received().duration_since(first.received()).unwrap() >= Duration::from_millis(900));
    let bed = renewing(Duration::from_secs(3600), 0.5, 0);
    bed.issued();
    assert!(bed.told.recv_timeout(Duration::from_millis(1500)).is_err());
    assert_eq!(*lock(&bed.asked), 1);
}

#[test]
fn failures_are_told_and_tried_again() {
    let bed = renewing(Duration::from_secs(3600), 0.5, 2);
    for _ in 0..2 {
        let (error, left) = bed.failed();
        assert_eq!(error, "create certificate: rpc error: code = Unavailable desc = away");
        assert_eq!(left, None);
    }
    bed.issued();
    *lock(&bed.failures) = 1;
    bed.renewer.renew_after(Duration::ZERO);
    let (_, left) = bed.failed();
    assert!(left.is_some_and(|left| left > Duration::from_secs(3500)), "{left:?}");
    bed.issued();
}

#[test]
fn a_renewer_ends_when_it_is_dropped() {
    let bed = renewing(Duration::from_secs(3600), 0.5, 0);
    bed.issued();
    let begin = clock::now();
    drop(bed.renewer);
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert!(bed.told.recv().is_err());
}
