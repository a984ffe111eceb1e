//! Keys, requests, pairs and answers, judged by openssl and by keys that openssl made.

use super::der::{self, Reader};
use super::issued::Issued;
use super::key::{Algorithm, Form, PrivateKey};
use super::pair::{self, Match};
use super::roots::Roots;
use super::{csr, pem};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use ring::rand::SystemRandom;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::SystemTime;

/// One key of each kind; that of RSA takes seconds in a debug build.
static KEYS: LazyLock<[PrivateKey; 3]> =
    LazyLock::new(|| [key(Algorithm::Rsa(2048)), key(Algorithm::P256), key(Algorithm::P384)]);

const URI: &str = "spiffe://cluster.local/ns/shop/sa/web";

/// What openssl prints; it must end well.
#[expect(clippy::disallowed_methods, reason = "a test runs a program that judges what we wrote")]
fn openssl(arguments: &[&str], input: &[u8]) -> String {
    let mut command = Command::new("openssl");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("openssl is installed");
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {arguments:?}: {text}");
    text
}

fn key(algorithm: Algorithm) -> PrivateKey {
    PrivateKey::generate(algorithm, &SystemRandom::new()).unwrap()
}

#[test]
fn keys_are_those_that_openssl_writes() {
    for key in &*KEYS {
        let algorithm = key.algorithm();
        let (traditional, pkcs8) = (key.to_pem(Form::Traditional), key.to_pem(Form::Pkcs8));
        let rsa = matches!(algorithm, Algorithm::Rsa(_));
        let form = if rsa { ["rsa", "-traditional"].as_slice() } else { &["ec"] };
        let again = openssl(&[form, &["-check"]].concat(), pkcs8.as_bytes());
        assert!(again.contains(traditional.as_str()), "{algorithm:?}");
        // openssl writes the curve inside once more, and the point where it is; both forms are the same key.
        let public = openssl(&["pkey", "-pubout"], pkcs8.as_bytes());
        assert_eq!(public, openssl(&["pkey", "-pubout"], traditional.as_bytes()));
        assert_eq!(public, *pem::encode("PUBLIC KEY", key.public_key()));
        assert_eq!(pkcs8.as_str(), openssl(&["pkey"], pkcs8.as_bytes()), "{algorithm:?}");
        assert!(!format!("{key:?}").contains("BEGIN"));
    }
}

#[test]
fn requests_are_as_authorities_want_them() {
    for key in &*KEYS {
        let request = csr::request(key, URI, &SystemRandom::new()).unwrap();
        let text = openssl(&["req", "-verify", "-noout", "-text"], request.as_bytes());
        let signature = match key.algorithm() {
            Algorithm::Rsa(_) => "sha256WithRSAEncryption",
            Algorithm::P256 => "ecdsa-with-SHA256",
            Algorithm::P384 => "ecdsa-with-SHA384",
        };
        for expected in [
            "self-signature verify OK",
            "Version: 1 (0x0)",
            "Subject: O = \n",
            "X509v3 Subject Alternative Name: critical\n",
            &format!("URI:{URI}\n"),
            &format!("Signature Algorithm: {signature}"),
        ] {
            assert!(text.contains(expected), "{expected:?} in {text}");
        }
        assert_eq!(text.matches("X509v3 ").count(), 1, "one extension: {text}");
    }
    assert_eq!(csr::spiffe_id("", "a b", ""), "spiffe:///ns/a b/sa/");
}

/// Self-signed certificates by openssl, with a key of each kind and form.
#[test]
fn keys_and_certificates_are_matched() {
    let generate = |arguments: &[&str]| openssl(arguments, b"");
    let rsa = |bits: &str| generate(&["genpkey", "-algorithm", "RSA", "-pkeyopt", &format!("rsa_keygen_bits:{bits}")]);
    let curve =
        |name: &str| generate(&["genpkey", "-algorithm", "EC", "-pkeyopt", &format!("ec_paramgen_curve:{name}")]);
    let keys = [
        ("RSA 1024", rsa("1024"), Match::Same),
        ("RSA 2048", rsa("2048"), Match::Same),
        ("P-256", curve("P-256"), Match::Same),
        ("P-384", curve("P-384"), Match::Same),
        ("P-521", curve("P-521"), Match::Same),
        ("Ed25519", generate(&["genpkey", "-algorithm", "ED25519"]), Match::Same),
        ("Ed448", generate(&["genpkey", "-algorithm", "ED448"]), Match::Unknown),
    ];
    let dir = tempfile::tempdir().unwrap();
    let mut certificates = Vec::new();
    for (name, key, _) in &keys {
        let path = dir.path().join(name);
        std::fs::File::create_new(&path).unwrap().write_all(key.as_bytes()).unwrap();
        let path = path.to_str().unwrap();
        certificates.push(openssl(&["req", "-x509", "-key", path, "-subj", "/CN=x", "-days", "1"], b""));
    }
    for (certificate, (name, key, expected)) in certificates.iter().zip(&keys) {
        let forms = match *name {
            "RSA 1024" | "RSA 2048" => vec![key.clone(), openssl(&["rsa", "-traditional"], key.as_bytes())],
            "P-256" | "P-384" | "P-521" => {
                vec![key.clone(), openssl(&["ec"], key.as_bytes()), openssl(&["ec", "-no_public"], key.as_bytes())]
            }
            _ => vec![key.clone()],
        };
        for (number, form) in forms.iter().enumerate() {
            let form =
                form.replace("read EC key\n", "").replace("writing RSA key\n", "").replace("writing EC key\n", "");
            let found = pair::check(certificate.as_bytes(), form.as_bytes()).unwrap().key;
            let expected = if *name == "P-521" && number == 2 { Match::Unknown } else { *expected };
            assert_eq!(found, expected, "{name}, form {number}");
            for (other, (other_name, _, _)) in certificates.iter().zip(&keys).filter(|(_, other)| other.0 != *name) {
                let found = pair::check(other.as_bytes(), form.as_bytes());
                let unknown = *name == "Ed448";
                assert_eq!(found.is_err(), !unknown, "{name} against {other_name}: {found:?}");
            }
        }
    }
    let (certificate, key) = (&certificates[2], &keys[2].1);
    let other = curve("P-256");
    let e = pair::check(certificate.as_bytes(), other.as_bytes()).unwrap_err();
    assert_eq!(e.to_string(), "the private key is not that of the certificate");
    let no_public = openssl(&["ec", "-no_public"], other.as_bytes());
    assert!(pair::check(certificate.as_bytes(), no_public.as_bytes()).is_err());
    for encrypted in [
        openssl(&["pkey", "-aes128", "-passout", "pass:x"], key.as_bytes()),
        openssl(&["ec", "-aes128", "-passout", "pass:x"], key.as_bytes()),
    ] {
        let e = pair::check(certificate.as_bytes(), encrypted.as_bytes()).unwrap_err();
        assert!(e.to_string().contains("without a passphrase"), "{e}");
    }
    assert!(pair::check(b"", key.as_bytes()).is_err());
    assert!(pair::check(certificate.as_bytes(), certificate.as_bytes()).is_err());
    for length in 0..key.len() - 1 {
        assert!(pair::check(certificate.as_bytes(), &key.as_bytes()[..length]).is_err());
    }
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut parameters = CertificateParams::new([]).unwrap();
    parameters.distinguished_name.push(rcgen::DnType::OrganizationName, name);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap()
}

/// The public key of a P-256 key of ours.
struct Point(Vec<u8>);

impl rcgen::PublicKeyData for Point {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }
    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

/// A leaf for our key, as an authority would issue it.
fn sign(key: &PrivateKey, issuer: &CertifiedIssuer<'static, KeyPair>) -> String {
    let mut parameters = CertificateParams::new([]).unwrap();
    parameters.subject_alt_names = vec![SanType::URI(URI.try_into().unwrap())];
    parameters.not_after = rcgen::date_time_ymd(2040, 1, 1);
    let mut info = Reader::new(key.public_key()).enter(der::SEQUENCE).unwrap();
    info.read(der::SEQUENCE).unwrap();
    let public = Point(info.bits().unwrap().to_vec());
    parameters.signed_by(&public, issuer).unwrap().pem()
}

#[test]
fn answers_are_taken_apart() {
    let key = key(Algorithm::P256);
    let (root, second, intermediate) = (authority("root"), authority("second"), authority("intermediate"));
    let (root, second) = (root.pem(), second.pem());
    let leaf = sign(&key, &intermediate);
    let middle = intermediate.pem();
    let take = |elements: &[&str]| {
        let elements: Vec<String> = elements.iter().map(|element| (*element).to_owned()).collect();
        Issued::take(&elements, &key, Form::Traditional, SystemTime::UNIX_EPOCH)
    };
    let plain = |text: &str| text.replace("\r\n", "\n");

    let issued = take(&[&leaf, &root]).unwrap();
    assert_eq!(issued.chain(), plain(&format!("{leaf}{root}")));
    assert_eq!((issued.roots().to_pem(), issued.key()), (plain(&root), key.to_pem(Form::Traditional).as_str()));
    assert_eq!(issued.leaf().uris(), [URI]);
    assert_eq!(issued.expires(), SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(2_208_988_800));

    // A plugged-in CA: the root comes twice, and then with another one; the elements need not end with a line feed.
    let issued = take(&[leaf.trim_end(), middle.trim_end(), root.trim_end(), root.trim_end()]).unwrap();
    assert_eq!(issued.chain(), plain(&format!("{leaf}{middle}{root}")));
    let both = format!("{root}{second}");
    let issued = take(&[&leaf, &middle, &root, &both]).unwrap();
    assert_eq!(issued.chain(), plain(&format!("{leaf}{middle}{root}{second}")));
    assert_eq!(issued.roots().len(), 2);

    let check = |elements: &[&str], expected: &str| {
        let e = take(elements).map(|_| ()).unwrap_err().to_string();
        assert!(e.contains(expected), "{e}");
    };
    check(&[], "invalid empty CertChain");
    check(&[&leaf], "invalid empty CertChain");
    check(&["", &root], "the chain's first certificate: no certificate");
    check(&["-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", &root], "certificate: DER");
    check(&[&root, &root], "for another key");
    check(&[&leaf, ""], "the chain's last element: no usable root certificate");
}

#[test]
fn roots_are_read_and_merged() {
    let (a, b) = (authority("a").pem().replace("\r\n", "\n"), authority("b").pem().replace("\r\n", "\n"));
    let text = format!("# comment\n{a}{b}{a}-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let read = Roots::read(text.as_bytes());
    assert_eq!((read.roots.len(), read.refused.len()), (2, 1));
    assert_eq!(read.roots.to_pem(), format!("{a}{b}"));

    let (first, second) = (Roots::read(a.as_bytes()).roots, Roots::read(b.as_bytes()).roots);
    let merged = first.merged_pem(&second);
    assert_eq!(merged, second.merged_pem(&first));
    assert_eq!(merged, read.roots.merged_pem(&first));
    let mut sorted = [a.trim_end(), b.trim_end()];
    sorted.sort();
    assert_eq!(merged, sorted.join("\n"));
    assert_eq!(first.merged_pem(&Roots::default()), a.trim_end());
    assert!(read.roots.same_members(&Roots::read(format!("{b}{a}").as_bytes()).roots));
    assert!(!read.roots.same_members(&first));

    let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    assert!(Roots::read_some(key.as_bytes()).unwrap_err().to_string().contains("is no certificate"));
    assert!(Roots::read_some(b"").unwrap_err().to_string().contains("no PEM block"));
}

/// Everything but the key and the signature is as in a request that Istio's agent was seen to send.
#[test]
fn requests_are_those_of_istios_agent() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("test-fixtures/certificate/request.pem");
    let theirs = std::fs::read(path).unwrap();
    let ours = csr::request(&KEYS[0], "spiffe://cluster.local/ns/apps/sa/client", &SystemRandom::new()).unwrap();
    assert_eq!(theirs.len(), ours.len());
    let parts = |text: &[u8]| {
        let block = pem::blocks(text).next().unwrap();
        assert_eq!(*pem::encode(block.label, &block.der), String::from_utf8_lossy(text));
        let mut request = Reader::new(&block.der).enter(der::SEQUENCE).unwrap();
        let mut body = request.enter(der::SEQUENCE).unwrap();
        let mut parts = Vec::new();
        while !body.is_empty() {
            parts.push(body.any().unwrap().1.to_vec());
        }
        let key = parts.remove(2);
        parts.push(Reader::new(&key).enter(der::SEQUENCE).unwrap().any().unwrap().1.to_vec());
        parts.push(request.any().unwrap().1.to_vec());
        parts
    };
    assert_eq!(parts(ours.as_bytes()), parts(&theirs));
}
