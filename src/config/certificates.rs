//! The variables of a proxy's certificates, with the meaning that they have for Istio's agent.
//!
//! A variable that is set to nothing is set, where it is a text. A value that cannot be read is told, and the default
//! counts. What contradicts itself, or asks for what is not there, ends the start.

use super::option::{Remark, Variables};
use super::value;
use crate::ca::client::{self, Trust};
use crate::ca::output::Output;
use crate::ca::renewer;
use crate::certificate::csr::spiffe_id;
use crate::certificate::key::{Algorithm, Form};
use crate::certificate::renewal::Grace;
use crate::certificate::rsa;
use crate::certificate::tls::Compliance;
use crate::error::{Error, Kind, Result};
use crate::proxy::certificates::{OWN_SOCKET, Options, Socket, WorkloadFiles};
use crate::proxy::secrets::Settings;
use crate::sds::files;
use crate::sds::secret::KeyProvider;
use log::Level;
use std::path::{Path, PathBuf};
use std::time::Duration;

const CERTS: &str = "./etc/certs";
const CREDENTIALS: &str = "./var/run/secrets/workload-spiffe-credentials";
const TOKEN: &str = "./var/run/secrets/tokens/istio-token";
const MESH_ROOTS: &str = "./var/run/secrets/istio/root-cert.pem";
/// An absolute path, as Istio has it.
const REVOKED: &str = "/var/run/secrets/istio/crl/ca-crl.pem";
const SOCKETS: &str = "./var/run/secrets/workload-spiffe-uds";
const FILES_SOCKET: &str = "./var/run/secrets/credential-uds/files-socket";

/// How long somebody else's socket is waited for.
const SOCKET_WAIT: Duration = Duration::from_secs(30);
/// How long the answer of an authority may take, which may wait for somebody to approve.
const ANSWER: Duration = Duration::from_secs(60);

/// What the proxy's own configuration adds.
#[derive(Debug, Clone, Default)]
pub struct Proxy {
    /// `discoveryAddress`.
    pub discovery_address: String,
    /// `privateKeyProvider`.
    pub provider: Option<KeyProvider>,
}

/// Reads variables, and notes what cannot be read.
struct Reader<'a> {
    variables: &'a Variables,
    remarks: Vec<Remark>,
}

impl Reader<'_> {
    fn text(&self, name: &str, default: &str) -> String {
        self.variables.get(name).map_or_else(|| default.to_owned(), Clone::clone)
    }

    /// A text; nothing when it is not set, or set to nothing.
    fn filled(&self, name: &str) -> Option<String> {
        self.variables.get(name).filter(|text| !text.is_empty()).cloned()
    }

    fn read<T>(&mut self, name: &str, default: T, parse: impl Fn(&str) -> Result<T, String>) -> T {
        let Some(text) = self.filled(name) else { return default };
        parse(&text).unwrap_or_else(|expected| {
            let text = format!("environment variable {name}={text} is ignored; expected {expected}");
            self.remarks.push((Level::Warn, text));
            default
        })
    }

    fn boolean(&mut self, name: &str, default: bool) -> bool {
        self.read(name, default, value::boolean)
    }

    fn duration(&mut self, name: &str, default: Duration) -> Duration {
        self.read(name, default, value::duration)
    }

    fn ratio(&mut self, name: &str, default: f64) -> f64 {
        let parse = |text: &str| text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
        self.read(name, default, |text| parse(text).ok_or_else(|| "a number from 0 to 1".to_owned()))
    }
}

fn usage(text: impl std::fmt::Display) -> Error {
    Error::of(Kind::Usage, text)
}

/// The options of a proxy's certificates, and what is to be said once there is a log.
pub fn read(variables: &Variables, proxy: &Proxy) -> Result<(Options, Vec<Remark>)> {
    let mut reader = Reader { variables, remarks: Vec::new() };
    let provisioned = reader.filled("PROV_CERT").map(PathBuf::from);
    let from_files = reader.boolean("FILE_MOUNTED_CERTS", false);
    let provider = reader.text("CA_PROVIDER", "Citadel");
    let from_platform = provider == "GkeWorkloadCertificate";
    if provisioned.is_some() && (from_files || from_platform) {
        let other = if from_files { "FILE_MOUNTED_CERTS" } else { "CA_PROVIDER=GkeWorkloadCertificate" };
        return Err(usage(format_args!("PROV_CERT and {other} exclude each other: set one of them")));
    }
    let authority = if from_files || from_platform {
        None
    } else {
        let client = client(&mut reader, &provider, proxy, provisioned.as_deref())?;
        Some((client, renewal(&mut reader)?))
    };
    let names = if from_platform {
        ["certificates.pem", "private_key.pem", "ca_certificates.pem"]
    } else {
        ["cert-chain.pem", "key.pem", "root-cert.pem"]
    };
    let options = Options {
        authority,
        files: workload_files(CERTS, ["cert-chain.pem", "key.pem", "root-cert.pem"]),
        provided: workload_files(CREDENTIALS, names),
        must_be_provided: from_platform,
        reading: files::Options {
            settle: reader.duration("FILE_DEBOUNCE_DURATION", files::Options::default().settle),
            ..files::Options::default()
        },
        socket: socket(&mut reader)?,
        settings: Settings {
            output: output(&reader),
            provider: proxy.provider.clone(),
            revoked: reader.boolean("PILOT_ENABLE_CA_CRL", true).then(|| REVOKED.into()),
            files_only: false,
        },
    };
    Ok((options, reader.remarks))
}

fn workload_files(directory: &str, [chain, key, roots]: [&str; 3]) -> WorkloadFiles {
    let at = |name| Path::new(directory).join(name);
    WorkloadFiles { chain: at(chain), key: at(key), roots: at(roots) }
}

fn output(reader: &Reader<'_>) -> Option<Output> {
    let in_kubernetes = reader.filled("KUBERNETES_SERVICE_HOST").is_some();
    reader.filled("OUTPUT_CERTS").map(|directory| Output::new(directory, in_kubernetes))
}

fn socket(reader: &mut Reader<'_>) -> Result<Option<Socket>> {
    let name = reader.text("WORKLOAD_IDENTITY_SOCKET_FILE", OWN_SOCKET);
    if Path::new(&name).file_name().is_none_or(|file| file != name.as_str()) {
        let text =
            format!("WORKLOAD_IDENTITY_SOCKET_FILE={name:?} is not allowed; expected the name of a file, no path");
        return Err(usage(text));
    }
    let wait = reader.duration("WORKLOAD_IDENTITY_SOCKET_WAIT", SOCKET_WAIT);
    let socket = Socket { directory: SOCKETS.into(), name, wait, files: FILES_SOCKET.into() };
    Ok((!reader.boolean("DISABLE_ENVOY", false)).then_some(socket))
}

fn client(
    reader: &mut Reader<'_>,
    provider: &str,
    proxy: &Proxy,
    provisioned: Option<&Path>,
) -> Result<client::Options> {
    let given = reader.filled("CA_ADDR");
    // For an authority that is istiod itself.
    let server_name = if given.is_some() { None } else { reader.filled("ISTIOD_SAN") };
    let address = given.unwrap_or_else(|| proxy.discovery_address.clone());
    let provider = if address.contains("googleapis.com") { "GoogleCA" } else { provider };
    if provider != "Citadel" {
        return Err(usage(format_args!("CA provider {provider:?} not registered")));
    }
    match reader.text("CREDENTIAL_FETCHER_TYPE", "JWT").as_str() {
        "" | "JWT" => {}
        "GoogleComputeEngine" => {
            let text = "CREDENTIAL_FETCHER_TYPE=GoogleComputeEngine is not supported; expected JWT, which reads a file";
            return Err(usage(text));
        }
        other => return Err(usage(format_args!("invalid credential fetcher type {other}"))),
    }
    if reader.text("JWT_POLICY", "third-party-jwt") == "first-party-jwt" {
        let text = "JWT_POLICY=first-party-jwt: tokens of the first party are less safe; third-party-jwt is better";
        reader.remarks.push((Level::Warn, text.to_owned()));
    }
    let trust = match (reader.filled("CA_ROOT_CA"), reader.text("PILOT_CERT_PROVIDER", "istiod").as_str(), provisioned)
    {
        (Some(system), _, _) if system == "SYSTEM" => Trust::System,
        (Some(path), _, _) => Trust::File(path.into()),
        (None, "custom", _) => Trust::File(Path::new(CERTS).join("root-cert.pem")),
        (None, _, Some(directory)) => Trust::File(directory.join("root-cert.pem")),
        (None, "none", None) => {
            let text = "PILOT_CERT_PROVIDER=none needs CA_ROOT_CA: the roots of the authority at CA_ADDR";
            return Err(usage(text));
        }
        (None, _, None) => Trust::File(MESH_ROOTS.into()),
    };
    let compliance = reader.text("COMPLIANCE_POLICY", "");
    let compliance = match compliance.as_str() {
        "pqc" => Compliance::parse("pqc").map_err(|e| usage(format_args!("COMPLIANCE_POLICY: {e}")))?,
        text => Compliance::parse(text).unwrap_or_else(|e| {
            reader.remarks.push((Level::Warn, format!("environment variable COMPLIANCE_POLICY is ignored: {e}")));
            Compliance::Any
        }),
    };
    let headers = reader.variables.iter().filter_map(|(name, text)| {
        let name = name.strip_prefix("CA_HEADER_").filter(|name| !name.is_empty())?;
        Some((name.to_lowercase(), text.clone()))
    });
    Ok(client::Options {
        address,
        server_name,
        trust,
        client_certificate: provisioned.map(|directory| (directory.join("cert-chain.pem"), directory.join("key.pem"))),
        token: TOKEN.into(),
        cluster: reader.text("ISTIO_META_CLUSTER_ID", ""),
        signer: reader.text("ISTIO_META_CERT_SIGNER", ""),
        headers: headers.collect(),
        compliance,
        answer: reader.duration("CA_ANSWER_TIMEOUT", ANSWER),
    })
}

fn renewal(reader: &mut Reader<'_>) -> Result<renewer::Options> {
    let algorithm = match reader.text("ECC_SIGNATURE_ALGORITHM", "").as_str() {
        "ECDSA" if reader.text("ECC_CURVE", "P256") == "P384" => Algorithm::P384,
        "ECDSA" => Algorithm::P256,
        "" => {
            let parse = |text: &str| text.parse().map_err(|_| "a number of bits".to_owned());
            let bits = reader.read("WORKLOAD_RSA_KEY_SIZE", 2048, parse);
            if !rsa::SIZES.contains(&bits) {
                let text = format!("WORKLOAD_RSA_KEY_SIZE={bits} is not allowed; expected one of {:?}", rsa::SIZES);
                return Err(usage(text));
            }
            Algorithm::Rsa(bits)
        }
        other => {
            return Err(usage(format_args!(
                "unsupported EC signature algorithm: ECC_SIGNATURE_ALGORITHM={other}; expected ECDSA"
            )));
        }
    };
    let domain = reader.text("TRUST_DOMAIN", "cluster.local");
    let (namespace, account) = (reader.text("POD_NAMESPACE", ""), reader.text("SERVICE_ACCOUNT", ""));
    let default = Grace::default();
    Ok(renewer::Options {
        identity: spiffe_id(&domain, &namespace, &account),
        algorithm,
        form: if reader.boolean("PKCS8_KEY", false) { Form::Pkcs8 } else { Form::Traditional },
        lifetime: reader.duration("SECRET_TTL", Duration::from_secs(24 * 3600)),
        grace: Grace {
            ratio: reader.ratio("SECRET_GRACE_PERIOD_RATIO", default.ratio),
            jitter: reader.ratio("SECRET_GRACE_PERIOD_RATIO_JITTER", default.jitter),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Variables {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    fn proxy() -> Proxy {
        Proxy { discovery_address: "istiod.istio-system.svc:15012".to_owned(), provider: None }
    }

    #[track_caller]
    fn good(pairs: &[(&str, &str)]) -> Options {
        let (options, remarks) = read(&variables(pairs), &proxy()).unwrap();
        assert!(remarks.is_empty(), "{remarks:?}");
        options
    }

    #[track_caller]
    fn refused(pairs: &[(&str, &str)], text: &str) {
        let e = read(&variables(pairs), &proxy()).map(|_| ()).unwrap_err();
        assert!(e.kind() == Kind::Usage && e.to_string().contains(text), "{e}");
    }

    #[test]
    fn nothing_set() {
        let options = good(&[]);
        let (client, renewal) = options.authority.unwrap();
        assert_eq!((client.address.as_str(), client.server_name), ("istiod.istio-system.svc:15012", None));
        assert_eq!(client.trust, Trust::File(MESH_ROOTS.into()));
        assert_eq!(renewal.identity, "spiffe://cluster.local/ns//sa/");
        assert_eq!((renewal.algorithm, renewal.form), (Algorithm::Rsa(2048), Form::Traditional));
        assert_eq!(
            (renewal.lifetime, renewal.grace),
            (Duration::from_secs(86_400), Grace { ratio: 0.5, jitter: 0.01 })
        );
        let socket = options.socket.unwrap();
        assert_eq!((socket.name.as_str(), socket.directory), ("socket", SOCKETS.into()));
        assert!(options.settings.output.is_none() && options.settings.revoked.is_some());
        assert_eq!(options.files.chain, Path::new("./etc/certs/cert-chain.pem"));
    }

    #[test]
    fn a_sidecar_as_the_injector_sets_it() {
        let options = good(&[
            ("CA_ADDR", "istiod-a.istio-system.svc:15012"),
            ("ISTIOD_SAN", "other"),
            ("PILOT_CERT_PROVIDER", "istiod"),
            ("TRUST_DOMAIN", "td"),
            ("POD_NAMESPACE", "shop"),
            ("SERVICE_ACCOUNT", "web"),
            ("ISTIO_META_CLUSTER_ID", "Kubernetes"),
            ("ISTIO_META_CERT_SIGNER", "signer"),
            ("CA_HEADER_FOO", "bar"),
            ("CA_HEADER_BAZ", "=baz"),
            ("ECC_SIGNATURE_ALGORITHM", "ECDSA"),
            ("ECC_CURVE", "P384"),
            ("PKCS8_KEY", "true"),
            ("SECRET_TTL", "90s"),
            ("OUTPUT_CERTS", "/out"),
            ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
            ("COMPLIANCE_POLICY", "fips-140-3"),
        ]);
        let (client, renewal) = options.authority.unwrap();
        assert_eq!((client.address.as_str(), client.server_name), ("istiod-a.istio-system.svc:15012", None));
        let expected = [("baz", "=baz"), ("foo", "bar")].map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(client.headers, expected);
        assert_eq!((client.cluster.as_str(), client.signer.as_str()), ("Kubernetes", "signer"));
        assert_eq!(client.compliance, Compliance::Fips1403);
        assert_eq!(renewal.identity, "spiffe://td/ns/shop/sa/web");
        assert_eq!((renewal.algorithm, renewal.form), (Algorithm::P384, Form::Pkcs8));
        assert_eq!(options.settings.output, Some(Output::new("/out", true)));
    }

    #[test]
    fn roots_of_the_authority() {
        let trust = |pairs: &[(&str, &str)]| good(pairs).authority.unwrap().0.trust;
        let file = |path: &str| Trust::File(path.into());
        assert_eq!(trust(&[("CA_ROOT_CA", "SYSTEM")]), Trust::System);
        assert_eq!(trust(&[("CA_ROOT_CA", "/r"), ("PROV_CERT", "/p")]), file("/r"));
        assert_eq!(trust(&[("PILOT_CERT_PROVIDER", "custom"), ("PROV_CERT", "/p")]), file("./etc/certs/root-cert.pem"));
        assert_eq!(trust(&[("PROV_CERT", "/p"), ("PILOT_CERT_PROVIDER", "none")]), file("/p/root-cert.pem"));
        assert_eq!(trust(&[("PILOT_CERT_PROVIDER", "k8s.io/x")]), file(MESH_ROOTS));
        refused(&[("PILOT_CERT_PROVIDER", "none")], "needs CA_ROOT_CA");
        let options = good(&[("PROV_CERT", "/p"), ("OUTPUT_CERTS", "/p"), ("ISTIOD_SAN", "x")]);
        let (client, _) = options.authority.unwrap();
        assert_eq!(client.client_certificate, Some(("/p/cert-chain.pem".into(), "/p/key.pem".into())));
        assert_eq!(client.server_name.as_deref(), Some("x"), "without CA_ADDR");
        assert_eq!(options.settings.output, Some(Output::new("/p", false)));
    }

    #[test]
    fn certificates_from_files() {
        assert!(good(&[("FILE_MOUNTED_CERTS", "true"), ("CA_PROVIDER", "x")]).authority.is_none());
        let options = good(&[("CA_PROVIDER", "GkeWorkloadCertificate")]);
        assert!(options.authority.is_none() && options.must_be_provided);
        assert!(options.provided.roots.ends_with("workload-spiffe-credentials/ca_certificates.pem"));
        refused(&[("FILE_MOUNTED_CERTS", "1"), ("PROV_CERT", "/p")], "exclude each other");
        refused(&[("CA_PROVIDER", "GkeWorkloadCertificate"), ("PROV_CERT", "/p")], "exclude each other");
    }

    #[test]
    fn what_ends_the_start() {
        refused(&[("CA_PROVIDER", "")], "CA provider \"\" not registered");
        refused(&[("CA_PROVIDER", "GoogleCA")], "CA provider \"GoogleCA\" not registered");
        refused(&[("CA_ADDR", "meshca.googleapis.com:443")], "CA provider \"GoogleCA\" not registered");
        refused(&[("CREDENTIAL_FETCHER_TYPE", "x")], "invalid credential fetcher type x");
        refused(&[("CREDENTIAL_FETCHER_TYPE", "GoogleComputeEngine")], "not supported");
        refused(&[("ECC_SIGNATURE_ALGORITHM", "RSA")], "unsupported EC signature algorithm");
        refused(&[("WORKLOAD_RSA_KEY_SIZE", "1024")], "expected one of [2048, 3072, 4096]");
        refused(&[("COMPLIANCE_POLICY", "pqc")], "not built in");
        for name in ["", ".", "..", "a/b", "/a", "a/"] {
            refused(&[("WORKLOAD_IDENTITY_SOCKET_FILE", name)], "the name of a file");
        }
    }

    #[test]
    fn what_cannot_be_read_is_told_and_the_default_counts() {
        let pairs = [
            ("SECRET_TTL", "24"),
            ("SECRET_GRACE_PERIOD_RATIO", "2"),
            ("PKCS8_KEY", "yes"),
            ("COMPLIANCE_POLICY", "x"),
            ("JWT_POLICY", "first-party-jwt"),
            ("WORKLOAD_RSA_KEY_SIZE", "x"),
        ];
        let (options, remarks) = read(&variables(&pairs), &proxy()).unwrap();
        let (_, renewal) = options.authority.unwrap();
        assert_eq!((renewal.lifetime, renewal.grace.ratio), (Duration::from_secs(86_400), 0.5));
        assert_eq!(remarks.len(), pairs.len(), "{remarks:?}");
        assert!(good(&[("DISABLE_ENVOY", "true")]).socket.is_none());
        assert_eq!(good(&[("WORKLOAD_IDENTITY_SOCKET_FILE", "spire")]).socket.unwrap().name, "spire");
    }
}
