//! Where certificates come from and who gets them, with an authority in this process.

use super::certificates::{Certificates, Options, Socket, WorkloadFiles};
use super::secrets::{Secrets, Settings};
use crate::ca::client::{self, Trust};
use crate::ca::output::{CHAIN, KEY, Output, ROOTS};
use crate::ca::renewer::{self, Notice};
use crate::ca::tests::authority::{IDENTITY, Issuer, serve};
use crate::ca::wire::CertificateRequest;
use crate::certificate::issued::Issued;
use crate::certificate::key::{Algorithm, Form, PrivateKey};
use crate::certificate::renewal::Grace;
use crate::certificate::roots::Roots;
use crate::certificate::tls::Compliance;
use crate::certificate::{csr, pair};
use crate::error::Error;
use crate::h2::Headers;
use crate::sds::files::{self, Content};
use crate::sds::server::{self, Server};
use crate::sds::store::{Inbox, Store};
use crate::sds::wire::{Data, Kind, Secret};
use crate::sys::clock;
use crate::sys::sync::lock;
use prost::Message;
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zeroize::Zeroizing;

const SOON: Duration = Duration::from_secs(20);

fn issued(issuer: &Issuer) -> Notice {
    let random = ring::rand::SystemRandom::new();
    let key = PrivateKey::generate(Algorithm::P256, &random).unwrap();
    let elements = issuer.sign(&csr::request(&key, IDENTITY, &random).unwrap(), Duration::from_secs(3600));
    Notice::Issued(Arc::new(Issued::take(&elements, &key, Form::Traditional, clock::wall()).unwrap()))
}

fn roots_of(issuer: &Issuer) -> Roots {
    Roots::read(issuer.0.pem().as_bytes()).roots
}

struct Bed {
    store: Arc<Store>,
    secrets: Secrets,
    inbox: Inbox,
}

fn bed(settings: Settings) -> Bed {
    let store = Store::new();
    let inbox = store.connection().unwrap();
    Bed { secrets: Secrets::new(store.clone(), settings), store, inbox }
}

impl Bed {
    /// The text that a secret carries: its chain, or its roots.
    fn text(&self, name: &str) -> String {
        let secret = Secret::decode(self.store.look(name).secret.unwrap().as_slice()).unwrap();
        assert_eq!(secret.name, name);
        let source = match secret.kind.unwrap() {
            Kind::TlsCertificate(certificate) => certificate.certificate_chain,
            Kind::ValidationContext(context) => context.trusted_ca,
        };
        let Some(Data::Inline(bytes)) = source.unwrap().data else { panic!("{name} is elsewhere") };
        String::from_utf8(bytes).unwrap()
    }

    #[track_caller]
    fn told(&self, names: &[&str]) {
        assert_eq!(self.inbox.take(), names);
    }
}

#[test]
fn what_changes_is_told_once_and_roots_first() {
    let bed = bed(Settings::default());
    let (first, second) = (Issuer::new(), Issuer::new());
    bed.secrets.renewed(issued(&first));
    bed.told(&["ROOTCA", "default"]);
    assert!(Roots::read(bed.text("ROOTCA").as_bytes()).roots.same_members(&roots_of(&first)));
    bed.secrets.renewed(issued(&first));
    bed.told(&["default"]);

    // A bundle that brings nothing new is no change, as at every start.
    assert!(!bed.secrets.trust(roots_of(&first)));
    bed.told(&[]);
    let both = Roots::read([first.0.pem(), second.0.pem()].concat().as_bytes()).roots;
    assert!(bed.secrets.trust(both.clone()));
    bed.told(&["ROOTCA"]);
    assert!(!bed.secrets.trust(both.clone()));
    // The signer moves to the second root: what is trusted stays.
    bed.secrets.renewed(issued(&second));
    bed.told(&["default"]);
    assert!(Roots::read(bed.text("ROOTCA").as_bytes()).roots.same_members(&both));
    // A bundle that becomes empty is a change.
    assert!(bed.secrets.trust(Roots::default()));
    bed.told(&["ROOTCA"]);
}

#[test]
fn a_failure_keeps_what_there_is() {
    let bed = bed(Settings::default());
    let failed = || Notice::Failed { error: Error::new("create certificate: no"), left: None };
    bed.secrets.renewed(failed());
    bed.told(&["default", "ROOTCA"]);
    let text = "failed to generate workload certificate: create certificate: no";
    assert_eq!(bed.store.look("default").failure.as_deref(), Some(text));
    bed.secrets.renewed(issued(&Issuer::new()));
    bed.told(&["default", "ROOTCA"].iter().rev().copied().collect::<Vec<_>>());
    let before = bed.text("default");
    bed.secrets.renewed(failed());
    bed.told(&[]);
    assert_eq!(bed.text("default"), before);
    assert!(bed.store.look("default").failure.is_none());
}

#[test]
fn files_win_each_by_itself() {
    let bed = bed(Settings::default());
    let (authority, other) = (Issuer::new(), Issuer::new());
    bed.secrets.renewed(issued(&authority));
    bed.told(&["ROOTCA", "default"]);
    bed.secrets.read("ROOTCA", files::Notice::Content(Content::Roots(roots_of(&other))));
    bed.told(&["ROOTCA"]);
    bed.secrets.trust(roots_of(&authority));
    assert_eq!(Roots::read(bed.text("ROOTCA").as_bytes()).roots.len(), 2, "with the bundle of the mesh");
    bed.told(&["ROOTCA"]);
    let (chain, key) = other.pair("x", clock::wall() + SOON);
    let leaf = Box::new(pair::leaf(chain.as_bytes()).unwrap());
    let key = Zeroizing::new(key.serialize_pem().into_bytes());
    let content = Content::Certificate { chain: chain.clone().into_bytes(), key, leaf };
    bed.secrets.read("default", files::Notice::Content(content));
    bed.told(&["default"]);
    assert_eq!(bed.text("default"), chain);
    bed.secrets.renewed(issued(&authority));
    bed.told(&[]);
    // Files that go away are no reason to fail.
    bed.secrets.read("default", files::Notice::Failed(Error::new("gone")));
    assert!(bed.store.look("default").failure.is_none());
    bed.secrets.read("file-root:/x", files::Notice::Failed(Error::new("gone")));
    assert_eq!(bed.store.look("file-root:/x").failure.as_deref(), Some("gone"));
}

#[test]
fn revoked_certificates_are_named_while_there_are_some() {
    let bed = bed(Settings { revoked: Some("/crl.pem".into()), ..Settings::default() });
    bed.secrets.renewed(issued(&Issuer::new()));
    bed.told(&["ROOTCA", "default"]);
    for exists in [true, false] {
        bed.secrets.read(super::secrets::REVOKED, files::Notice::Content(Content::Exists(exists)));
        bed.told(&["ROOTCA"]);
        let secret = Secret::decode(bed.store.look("ROOTCA").secret.unwrap().as_slice()).unwrap();
        let Some(Kind::ValidationContext(context)) = secret.kind else { panic!("{secret:?}") };
        let crl = context.crl.and_then(|source| source.data);
        assert_eq!(crl, exists.then(|| Data::Filename("/crl.pem".to_owned())));
    }
}

/// An authority that counts its requests, and the options of a proxy that asks it.
struct Mesh {
    issuer: Arc<Issuer>,
    asked: Arc<Mutex<usize>>,
    dir: tempfile::TempDir,
    options: Options,
}

fn mesh(lifetime: Duration, output: &str) -> Mesh {
    let (issuer, asked) = (Arc::new(Issuer::new()), Arc::new(Mutex::new(0)));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (signing, count) = (issuer.clone(), asked.clone());
    let answer = move |_: &Headers, request: &CertificateRequest| {
        *lock(&count) += 1;
        Ok(signing.sign(&request.csr, lifetime))
    };
    serve(listener, Some(issuer.tls(false)), Arc::new(answer));
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for made in ["etc/certs", "output"] {
        std::fs::create_dir_all(at(made)).unwrap();
    }
    write(&at("root.pem"), &issuer.0.pem());
    write(&at("token"), "token");
    let client = client::Options {
        address: format!("localhost:{port}"),
        server_name: None,
        trust: Trust::File(at("root.pem")),
        client_certificate: None,
        token: at("token"),
        cluster: String::new(),
        signer: String::new(),
        headers: Vec::new(),
        compliance: Compliance::Any,
        answer: SOON,
    };
    let renewal = renewer::Options {
        identity: IDENTITY.to_owned(),
        algorithm: Algorithm::P256,
        form: Form::Traditional,
        lifetime,
        grace: Grace { ratio: 0.5, jitter: 0.0 },
    };
    let file = |name: &str| at("etc/certs").join(name);
    let options = Options {
        authority: Some((client, renewal)),
        files: WorkloadFiles { chain: file(CHAIN), key: file(KEY), roots: file(ROOTS) },
        reading: files::Options { settle: Duration::from_millis(30), ..files::Options::default() },
        provided: WorkloadFiles { chain: at("provided/c"), key: at("provided/k"), roots: at("provided/r") },
        must_be_provided: false,
        socket: Some(Socket {
            directory: at("sds"),
            name: "socket".to_owned(),
            wait: Duration::ZERO,
            files: at("files/files-socket"),
        }),
        settings: Settings { output: Some(Output::new(at(output), false)), ..Settings::default() },
    };
    Mesh { issuer, asked, dir, options }
}

fn write(path: &Path, text: &str) {
    use std::io::Write;
    let file = std::fs::File::options().write(true).create(true).truncate(true).open(path);
    file.unwrap().write_all(text.as_bytes()).unwrap();
}

/// Waits until a check holds.
#[track_caller]
fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let end = clock::now() + SOON;
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(clock::now() < end, "{what}");
        clock::sleep(Duration::from_millis(10));
    }
}

/// A pair that fits, with its roots.
fn pair_in(dir: &Path) -> Option<(String, String)> {
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
    let (chain, key, roots) = (read(CHAIN)?, read(KEY)?, read(ROOTS)?);
    pair::check(chain.as_bytes(), key.as_bytes()).is_ok().then_some((chain, roots))
}

#[test]
fn one_request_at_the_start_and_files_for_others() {
    let mesh = mesh(Duration::from_secs(3600), "output");
    let output = mesh.dir.path().join("output");
    let certificates = Certificates::start(mesh.options).unwrap();
    let (chain, roots) = eventually("files are written", || pair_in(&output));
    assert!(chain.contains(&mesh.issuer.0.pem().replace("\r\n", "\n")), "the root is part of the chain");
    assert!(Roots::read(roots.as_bytes()).roots.same_members(&roots_of(&mesh.issuer)));
    assert!(mesh.dir.path().join("sds/socket").exists() && !certificates.files_only());
    // What istiod says of roots right after the start is what is known.
    certificates.trust(mesh.issuer.0.pem().as_bytes());
    clock::sleep(Duration::from_millis(300));
    assert_eq!(*lock(&mesh.asked), 1);
    let other = Issuer::new();
    certificates.trust([mesh.issuer.0.pem(), other.0.pem()].concat().as_bytes());
    let merged = eventually("roots are merged", || {
        let (_, roots) = pair_in(&output)?;
        let roots = Roots::read(roots.as_bytes()).roots;
        (roots.len() == 2).then_some(roots)
    });
    assert!(merged.iter().any(|der| *der == **other.0.der()));
}

#[test]
fn a_pair_is_renewed_without_anybody_asking_and_never_read_back() {
    // The virtual machine's way: output where files would win.
    let mesh = mesh(Duration::from_secs(4), "etc/certs");
    let output = mesh.dir.path().join("etc/certs");
    let _certificates = Certificates::start(mesh.options).unwrap();
    let (first, _) = eventually("files are written", || pair_in(&output));
    let second = eventually("files are renewed", || pair_in(&output).filter(|(chain, _)| *chain != first));
    assert_ne!(first, second.0);
    eventually("and again", || pair_in(&output).filter(|(chain, _)| *chain != second.0));
}

#[test]
fn files_that_are_there_need_no_authority() {
    let mesh = mesh(Duration::from_secs(3600), "output");
    let (chain, key) = mesh.issuer.pair("workload", clock::wall() + SOON * 100);
    write(&mesh.options.files.chain, &chain);
    write(&mesh.options.files.key, &key.serialize_pem());
    write(&mesh.options.files.roots, &mesh.issuer.0.pem());
    let (files, output) = (mesh.options.files.clone(), mesh.dir.path().join("output"));
    let _certificates = Certificates::start(mesh.options).unwrap();
    let (written, _) = eventually("files are passed on", || pair_in(&output));
    assert_eq!(written, chain);
    let (next, key) = mesh.issuer.pair("workload", clock::wall() + SOON * 100);
    write(&files.chain, &next);
    write(&files.key, &key.serialize_pem());
    eventually("a change is passed on", || pair_in(&output).filter(|(chain, _)| *chain == next));
    assert_eq!(*lock(&mesh.asked), 0);
}

#[test]
fn provided_files_take_the_place_of_the_authority() {
    let mesh = mesh(Duration::from_secs(3600), "output");
    let (chain, key) = mesh.issuer.pair("workload", clock::wall() + SOON * 100);
    let (provided, output) = (mesh.options.provided.clone(), mesh.dir.path().join("output"));
    let mut options = Options { must_be_provided: true, ..mesh.options };
    let e = Certificates::start(options.clone()).map(|_| ()).unwrap_err();
    assert!(e.to_string().contains("are not all in"), "{e}");
    std::fs::create_dir_all(provided.chain.parent().unwrap()).unwrap();
    write(&provided.chain, &chain);
    write(&provided.key, &key.serialize_pem());
    write(&provided.roots, &mesh.issuer.0.pem());
    options.must_be_provided = false;
    let _certificates = Certificates::start(options).unwrap();
    let (written, _) = eventually("files are passed on", || pair_in(&output));
    assert_eq!((written, *lock(&mesh.asked)), (chain, 0));
}

#[test]
fn somebody_elses_socket_is_left_to_them() {
    let mesh = mesh(Duration::from_secs(3600), "output");
    let (dir, mut options) = (mesh.dir.path().to_path_buf(), mesh.options.clone());
    options.socket.as_mut().unwrap().name = "spire".to_owned();
    let e = Certificates::start(options.clone()).map(|_| ()).unwrap_err();
    assert!(e.to_string().contains("nobody serves the socket"), "{e}");
    let _theirs = Server::start(server::Options::new(dir.join("sds/spire")), Store::new()).unwrap();
    let certificates = Certificates::start(options).unwrap();
    assert!(certificates.files_only() && dir.join("files/files-socket").exists());
    assert!(!dir.join("sds/socket").exists());
    drop(certificates);

    // Under our own name, too.
    let theirs = Server::start(server::Options::new(dir.join("sds/socket")), Store::new()).unwrap();
    assert!(Certificates::start(mesh.options.clone()).unwrap().files_only());
    drop(theirs);
    assert!(!Certificates::start(mesh.options).unwrap().files_only());
    clock::sleep(Duration::from_millis(300));
    assert!(*lock(&mesh.asked) <= 1, "only in the end was there something to ask for");
}
