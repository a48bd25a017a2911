//! The TLS side of a check: what is offered, whether the certificate is looked at, and whose fault a failure is.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::core::health::{Failure, TlsCheck, TlsFailure};

/// Makes the connections of one check.
#[derive(Clone)]
pub(super) struct Handshake {
    connector: TlsConnector,
    server_name: Option<ServerName<'static>>,
}

impl Handshake {
    pub fn new(check: &TlsCheck) -> Result<Self, Error> {
        let provider = Arc::new(ring::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match &check.authorities {
            Some(authorities) => {
                let mut trusted = RootCertStore::empty();
                for authority in authorities.iter() {
                    trusted.add(CertificateDer::from(authority.as_slice()))?;
                }
                WebPkiServerVerifier::builder_with_provider(trusted.into(), Arc::clone(&provider))
                    .build()
                    .map_err(|error| Error::General(error.to_string()))?
            }
            None => Arc::new(AnyCertificate(Arc::clone(&provider))),
        };
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        config.alpn_protocols = check.alpn.iter().map(|name| name.clone().into_bytes()).collect();
        // Resuming an earlier session would not show whether a full handshake still works.
        config.resumption = rustls::client::Resumption::disabled();
        let server_name = check.server_name.clone().map(ServerName::try_from).transpose();
        Ok(Self {
            connector: TlsConnector::from(Arc::new(config)),
            server_name: server_name.map_err(|error| Error::General(error.to_string()))?,
        })
    }

    /// Speaks TLS with an instance on a fresh connection.
    pub async fn complete(
        &self,
        stream: TcpStream,
        instance: SocketAddr,
    ) -> Result<TlsStream<TcpStream>, Failure> {
        // An address is not sent, as RFC 6066 asks, but the certificate is compared with it.
        let name = self.server_name.clone().unwrap_or_else(|| ServerName::IpAddress(instance.ip().into()));
        let stream = self.connector.connect(name, stream).await.map_err(|error| judge(&error))?;
        let (_, connection) = stream.get_ref();
        let offered = !self.connector.config().alpn_protocols.is_empty();
        if offered && connection.alpn_protocol().is_none() {
            return Err(Failure::Tls(TlsFailure::NoProtocol));
        }
        Ok(stream)
    }
}

/// What went wrong in a handshake.
fn judge(error: &io::Error) -> Failure {
    let Some(error) = error.get_ref().and_then(|error| error.downcast_ref::<Error>()) else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof => Failure::Closed,
            _ => Failure::Reset,
        };
    };
    Failure::Tls(match error {
        Error::AlertReceived(alert) => match alert.as_str() {
            Some(name) => TlsFailure::Alert(name),
            None => TlsFailure::Handshake,
        },
        Error::InvalidMessage(_) => TlsFailure::NotTls,
        Error::InvalidCertificate(error) => match error {
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => TlsFailure::Expired,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                TlsFailure::WrongName
            }
            _ => TlsFailure::Untrusted,
        },
        Error::NoApplicationProtocol => TlsFailure::NoProtocol,
        _ => TlsFailure::Handshake,
    })
}

/// Takes any certificate, whosever it is: a check without authorities asks only whether TLS works. That the instance has the
/// certificate's key is still verified.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
