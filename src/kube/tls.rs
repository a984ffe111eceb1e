//! TLS between TCP and HTTP, with a configuration made by us.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use std::io::{Error, ErrorKind, Read, Write};
use std::sync::Arc;
use ureq::Error as UreqError;
use ureq::unversioned::transport::time::{Duration, Instant};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, Transport, TransportAdapter,
};

/// Wraps connections to `https` servers.
#[derive(Debug)]
pub(super) struct TlsConnector(pub(super) Arc<ClientConfig>);

impl<In: Transport> Connector<In> for TlsConnector {
    type Out = Either<In, Tls>;

    fn connect(&self, details: &ConnectionDetails<'_>, chained: Option<In>) -> Result<Option<Self::Out>, UreqError> {
        let Some(plain) = chained else { return Ok(None) };
        if !details.needs_tls() || plain.is_tls() {
            return Ok(Some(Either::A(plain)));
        }
        let host = details.uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(|e| Error::new(ErrorKind::InvalidInput, e))?;
        let mut connection = ClientConnection::new(self.0.clone(), name).map_err(Error::other)?;
        let mut plain = TransportAdapter::new(Box::new(plain) as Box<dyn Transport>, details.current_time.clone());
        plain.set_timeout(left(details));
        connection.complete_io(&mut plain)?;
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Either::B(Tls { stream: StreamOwned::new(connection, plain), buffers })))
    }
}

/// What is left of the time for connecting.
fn left(details: &ConnectionDetails<'_>) -> NextTimeout {
    let mut timeout = details.timeout;
    if let (Duration::Exact(after), Instant::Exact(from), Instant::Exact(now)) =
        (timeout.after, details.now, (details.current_time)())
    {
        timeout.after = Duration::Exact(after.saturating_sub(now.saturating_duration_since(from)));
    }
    timeout
}

/// A TLS connection as ureq uses it.
pub(super) struct Tls {
    stream: StreamOwned<ClientConnection, TransportAdapter>,
    buffers: LazyBuffers,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("over", self.stream.sock.inner()).finish()
    }
}

impl Transport for Tls {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), UreqError> {
        self.stream.sock.set_timeout(timeout);
        let output = self.buffers.output().get(..amount).unwrap_or_default();
        Ok(self.stream.write_all(output)?)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, UreqError> {
        self.stream.sock.set_timeout(timeout);
        let amount = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.sock.get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}

/// Takes any server for the right one (`insecure-skip-tls-verify`), as long as it holds the key of its certificate.
#[derive(Debug)]
pub(super) struct AnyServer(pub(super) Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
