//! Having requests signed by istiod, or by another authority that speaks its protocol.
//!
//! Each attempt is a connection of its own: roots, client certificate, token and addresses are then always those of the
//! moment, and nothing is held open between two requests that are half a day apart.

use super::renewer::Authority;
use super::{token, wire};
use crate::certificate::roots::{Roots, SYSTEM_FILES};
use crate::certificate::tls::{self, Compliance, Identity};
use crate::error::{Context, Error, Kind, Result};
use crate::grpc::{self, Code, Status};
use crate::h2::{self, Deadlines, Endpoint};
use crate::sys::{clock, file, lookup, random, tcp};
use crate::{invalid, metrics};
use std::path::{Path, PathBuf};
use std::time::Duration;
use zeroize::Zeroizing;

/// Attempts of one request.
const ATTEMPTS: u32 = 5;
/// The pause after the first of them; it doubles.
const PAUSE: Duration = Duration::from_millis(100);
/// Time to find the address, and to connect.
const CONNECT: Duration = Duration::from_secs(10);
/// Largest answer, bytes.
const ANSWER: usize = 4 << 20;
/// Largest file, bytes.
const LIMIT: usize = 4 << 20;
/// An address that ends so is spoken to without TLS.
const PLAIN: &str = ":15010";

/// Where the roots are that the authority's certificate must come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// The roots of the operating system.
    System,
    /// A file.
    File(PathBuf),
}

/// Which authority, and what it is shown.
#[derive(Debug, Clone)]
pub struct Options {
    /// Host and port (`CA_ADDR`).
    pub address: String,
    /// Who it has to be, when that is not the host (`ISTIOD_SAN`).
    pub server_name: Option<String>,
    /// The roots that its certificate has to come from.
    pub trust: Trust,
    /// Chain and key of a client certificate (`PROV_CERT`); shown when they are there.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
    /// The token's file.
    pub token: PathBuf,
    /// `ISTIO_META_CLUSTER_ID`.
    pub cluster: String,
    /// `ISTIO_META_CERT_SIGNER`.
    pub signer: String,
    /// Further metadata (`CA_HEADER_*`).
    pub headers: Vec<(String, String)>,
    /// `COMPLIANCE_POLICY`.
    pub compliance: Compliance,
    /// How long the answer of one attempt may take.
    pub answer: Duration,
}

/// A client of one authority.
#[derive(Debug)]
pub struct Client {
    options: Options,
    host: String,
    port: u16,
}

impl Client {
    /// Fails when the address is none.
    pub fn new(options: Options) -> Result<Self> {
        let parts = options.address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let (host, port) = parts
            .filter(|(host, _)| !host.is_empty())
            .ok_or_else(|| invalid!("the authority's address {:?} is not HOST:PORT", options.address))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if options.address.ends_with(PLAIN) {
            log::warn!(address = options.address.as_str(); "the authority is asked without TLS: tokens can be read on the way");
        }
        Ok(Client { options, host, port })
    }

    fn attempt(&self, csr: &str, lifetime: Duration) -> Result<Vec<String>, Refusal> {
        let token = token::bearer(&self.options.token).unwrap_or_else(|e| {
            log::warn!(error:% = e; "going on without a token");
            None
        });
        let mut endpoint = self.connect().map_err(|e| Refusal::of(Status::new(Code::Unavailable, e), None))?;
        let scheme = if self.options.address.ends_with(PLAIN) { "http" } else { "https" };
        let authority = tls::server(&self.host, self.options.server_name.as_deref());
        let mut request = grpc::request(scheme, authority, wire::CREATE_CERTIFICATE);
        if let Some(token) = &token {
            grpc::add(&mut request, "authorization", token.as_bytes());
        }
        grpc::add(&mut request, "clusterid", self.options.cluster.as_bytes());
        for (name, value) in &self.options.headers {
            grpc::add(&mut request, name, value.as_bytes());
        }
        let message = wire::request(csr, lifetime, &self.options.signer);
        let answer = grpc::unary(&mut endpoint, request, &message, ANSWER, self.options.answer);
        let answer = answer.map_err(|status| Refusal::of(status, token.as_ref().map(|token| token.as_str())))?;
        wire::response(&answer.to_vec()).map_err(|e| Refusal::of(Status::new(Code::Unknown, e), None))
    }

    fn connect(&self) -> Result<Endpoint> {
        let what = || format!("connect to the authority at {}", self.options.address);
        // Before the connection: what is wrong with our own files is said without a peer.
        let tls = if self.options.address.ends_with(PLAIN) { None } else { Some(self.tls()?) };
        let addresses =
            lookup::look_up(&self.host, CONNECT, &|| false).with_context(|| format!("find {}", self.host))?;
        let socket = tcp::connect(&addresses, self.port, CONNECT).with_context(what)?;
        let deadlines = Deadlines { greeting: CONNECT, ..Deadlines::default() };
        match tls {
            None => Endpoint::client(socket, &h2::Options::default(), deadlines).with_context(what),
            Some(tls) => Endpoint::tls_client(socket, tls, &h2::Options::default(), deadlines).with_context(what),
        }
    }

    /// TLS as the files say now.
    fn tls(&self) -> Result<rustls::ClientConnection> {
        let path = match &self.options.trust {
            Trust::File(path) => path.clone(),
            Trust::System => {
                let found = SYSTEM_FILES.iter().map(PathBuf::from).find(|path| path.exists());
                found.context("the operating system's root certificates are in none of the usual files")?
            }
        };
        let roots = file::read_limited(&path, LIMIT).and_then(|bytes| Roots::read_some(&bytes));
        let roots = roots.with_context(|| format!("roots of the authority in {}", path.display()))?.roots;
        let identity = match &self.options.client_certificate {
            None => None,
            Some((chain, key)) => identity(chain, key)?,
        };
        let shown = identity.as_ref().map(|(chain, key)| Identity { chain, key });
        let config = tls::client(&roots, shown.as_ref(), self.options.compliance)?;
        let name = tls::server_name(tls::server(&self.host, self.options.server_name.as_deref()))?;
        rustls::ClientConnection::new(config, name).context("TLS")
    }
}

/// Chain and key, PEM.
type Pair = (Vec<u8>, Zeroizing<Vec<u8>>);

/// The client certificate; nothing when there is no chain that can be shown. Then a key that cannot
/// be read is an error.
fn identity(chain: &Path, key: &Path) -> Result<Option<Pair>> {
    let path = chain.display();
    let chain_bytes = file::read_limited(chain, LIMIT);
    match chain_bytes.and_then(|bytes| Ok((tls::is_current(&bytes, clock::wall())?, bytes))) {
        Ok((true, bytes)) => Ok(Some((bytes, file::read_limited(key, LIMIT).map(Zeroizing::new)?))),
        Ok((false, _)) => {
            log::warn!(file:% = path; "cert expired, using token instead");
            Ok(None)
        }
        Err(e) => {
            log::warn!(file:% = path, error:% = e; "no client certificate is shown");
            Ok(None)
        }
    }
}

/// How an attempt ended.
struct Refusal {
    status: Status,
    /// What people should know of the token.
    token: Option<String>,
}

impl Refusal {
    fn of(status: Status, token: Option<&str>) -> Self {
        let token = (status.code == Code::Unauthenticated).then(|| token::describe(token, clock::wall()));
        Refusal { status, token }
    }

    fn is_passing(&self) -> bool {
        matches!(self.status.code, Code::ResourceExhausted | Code::Aborted | Code::Internal | Code::Unavailable)
    }

    /// In the words that people search for.
    fn into_error(self) -> Error {
        let Status { code, message } = self.status;
        let token = self.token.map(|token| format!(" ({token})")).unwrap_or_default();
        let kind = match code {
            Code::DeadlineExceeded => Kind::TimedOut,
            Code::Unavailable => Kind::PeerGone,
            Code::Unauthenticated => Kind::Unauthorized,
            _ => Kind::Refused,
        };
        Error::of(kind, format_args!("rpc error: code = {code:?} desc = {message}{token}"))
    }
}

impl Authority for Client {
    fn sign(&mut self, csr: &str, lifetime: Duration) -> Result<Vec<String>> {
        let mut number = 1;
        loop {
            match self.attempt(csr, lifetime) {
                Ok(elements) => return Ok(elements),
                Err(refusal) if refusal.is_passing() && number < ATTEMPTS => {
                    let pause = PAUSE * (1 << (number - 1));
                    let pause = pause.mul_f64(0.9 + 0.2 * random::fraction());
                    number += 1;
                    metrics::CSR_RETRIES.inc(["csr"]);
                    log::warn!(error:% = refusal.into_error(); "ca request failed, starting attempt {number} in {pause:?}");
                    clock::sleep(pause);
                }
                Err(refusal) => return Err(refusal.into_error()),
            }
        }
    }
}
