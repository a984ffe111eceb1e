//! The messages of `envoy.service.secret.v3.SecretDiscoveryService`, as far as they are used here.
//!
//! A first request carries the whole description of an Envoy, 60 kB and more; fields that nobody asks for are passed
//! over without being kept.

use crate::error::Result;
use crate::invalid;
use prost::Message;

/// The type of a secret, in requests and answers.
pub const SECRET_TYPE: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
/// A message of Istio that Envoy never sends here; as first message of a stream it is passed over.
pub const HEALTH_TYPE: &str = "type.googleapis.com/istio.v1.HealthInformation";

/// Path of the call that is served.
pub const STREAM_SECRETS: &str = "/envoy.service.secret.v3.SecretDiscoveryService/StreamSecrets";
/// Path of the incremental call.
pub const DELTA_SECRETS: &str = "/envoy.service.secret.v3.SecretDiscoveryService/DeltaSecrets";
/// Path of the call for one answer.
pub const FETCH_SECRETS: &str = "/envoy.service.secret.v3.SecretDiscoveryService/FetchSecrets";

/// `envoy.service.discovery.v3.DiscoveryRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct DiscoveryRequest {
    /// Version of the last answer that was accepted.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// Who asks; in the first message of a stream.
    #[prost(message, optional, tag = "2")]
    pub node: Option<Node>,
    /// What is asked for.
    #[prost(string, repeated, tag = "3")]
    pub resource_names: Vec<String>,
    /// Type of what is asked for.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The answer that this acknowledges or refuses.
    #[prost(string, tag = "5")]
    pub response_nonce: String,
    /// Why the answer was refused.
    #[prost(message, optional, tag = "6")]
    pub error_detail: Option<Status>,
}

/// `envoy.config.core.v3.Node`.
#[derive(Clone, PartialEq, Message)]
pub struct Node {
    /// The node's id.
    #[prost(string, tag = "1")]
    pub id: String,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
pub struct Status {
    /// A code of gRPC.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// Text for people.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// `envoy.service.discovery.v3.DiscoveryResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct DiscoveryResponse {
    /// Version of this answer.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// The secrets.
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<Any>,
    /// [`SECRET_TYPE`].
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// What the acknowledgement names.
    #[prost(string, tag = "5")]
    pub nonce: String,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Any {
    /// The message's type.
    #[prost(string, tag = "1")]
    pub type_url: String,
    /// The message.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// `envoy.extensions.transport_sockets.tls.v3.Secret`.
#[derive(Clone, PartialEq, Message)]
pub struct Secret {
    /// The name it was asked for by.
    #[prost(string, tag = "1")]
    pub name: String,
    /// What it is.
    #[prost(oneof = "Kind", tags = "2, 4")]
    pub kind: Option<Kind>,
}

/// What a [`Secret`] is.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Kind {
    /// A certificate with its key.
    #[prost(message, tag = "2")]
    TlsCertificate(TlsCertificate),
    /// What peers are checked with.
    #[prost(message, tag = "4")]
    ValidationContext(ValidationContext),
}

/// `envoy.extensions.transport_sockets.tls.v3.TlsCertificate`.
#[derive(Clone, PartialEq, Message)]
pub struct TlsCertificate {
    /// PEM.
    #[prost(message, optional, tag = "1")]
    pub certificate_chain: Option<DataSource>,
    /// PEM.
    #[prost(message, optional, tag = "2")]
    pub private_key: Option<DataSource>,
    /// Hardware that signs in place of the key.
    #[prost(message, optional, tag = "6")]
    pub private_key_provider: Option<PrivateKeyProvider>,
}

/// `envoy.extensions.transport_sockets.tls.v3.PrivateKeyProvider`.
#[derive(Clone, PartialEq, Message)]
pub struct PrivateKeyProvider {
    /// `cryptomb` or `qat`.
    #[prost(string, tag = "1")]
    pub provider_name: String,
    /// Its configuration.
    #[prost(message, optional, tag = "3")]
    pub typed_config: Option<Any>,
    /// Whether Envoy signs itself where the hardware is missing.
    #[prost(bool, tag = "4")]
    pub fallback: bool,
}

/// `CryptoMbPrivateKeyMethodConfig` and `QatPrivateKeyMethodConfig`, which have the same fields.
#[derive(Clone, PartialEq, Message)]
pub struct PrivateKeyMethod {
    /// PEM.
    #[prost(message, optional, tag = "1")]
    pub private_key: Option<DataSource>,
    /// How long requests are gathered.
    #[prost(message, optional, tag = "2")]
    pub poll_delay: Option<Duration>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Duration {
    /// Whole seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// The rest.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// `envoy.extensions.transport_sockets.tls.v3.CertificateValidationContext`.
#[derive(Clone, PartialEq, Message)]
pub struct ValidationContext {
    /// Root certificates, PEM.
    #[prost(message, optional, tag = "1")]
    pub trusted_ca: Option<DataSource>,
    /// Revoked certificates.
    #[prost(message, optional, tag = "7")]
    pub crl: Option<DataSource>,
}

/// `envoy.config.core.v3.DataSource`.
#[derive(Clone, PartialEq, Message)]
pub struct DataSource {
    /// Where the data is.
    #[prost(oneof = "Data", tags = "1, 2")]
    pub data: Option<Data>,
}

/// Where the data of a [`DataSource`] is.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Data {
    /// In a file that Envoy reads and watches.
    #[prost(string, tag = "1")]
    Filename(String),
    /// Here.
    #[prost(bytes, tag = "2")]
    Inline(Vec<u8>),
}

/// Reads a request.
pub fn decode_request(bytes: &[u8]) -> Result<DiscoveryRequest> {
    DiscoveryRequest::decode(bytes).map_err(|e| invalid!("not a DiscoveryRequest: {e}"))
}
