//! TLS checks of real servers: with every kind of certificate, with other protocols, and with none at all.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::core::health::{TlsCheck, TlsFailure};

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn trusted(&self) -> Option<Arc<[Vec<u8>]>> {
        Some(Arc::from([self.0.der().to_vec()]))
    }

    /// A server that speaks these protocols, with a certificate for these names.
    async fn server(&self, names: &[&str], years: (i32, i32), alpn: &[&str]) -> SocketAddr {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(years.0, 1, 1), date_time_ymd(years.1, 1, 1));
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        serve_tls(certificate.der().clone(), &key, alpn).await
    }
}

const VALID: (i32, i32) = (2020, 4000);

async fn serve_tls(certificate: CertificateDer<'static>, key: &KeyPair, alpn: &[&str]) -> SocketAddr {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let _ = stream.read(&mut [0; 16]).await;
            });
        }
    });
    address
}

fn tls(change: impl FnOnce(&mut TlsCheck)) -> CheckSpec {
    let mut check = TlsCheck { server_name: None, authorities: None, alpn: Vec::new() };
    change(&mut check);
    CheckSpec { kind: CheckKind::Tls(check), timeout: Duration::from_secs(5), ..tcp() }
}

fn failed(failure: TlsFailure) -> Observation {
    CheckFailed(Failure::Tls(failure))
}

#[tokio::test]
async fn a_handshake_that_completes_passes_whatever_the_certificate_unless_it_is_to_be_verified() {
    let server = Authority::new().server(&["other.example"], (1990, 1991), &[]).await;
    assert_eq!(look(&tls(|_| ()), server).await, CheckPassed);
    assert_eq!(look(&tls(|check| check.server_name = Some("app.example".into())), server).await, CheckPassed);
    assert_eq!(look(&tls(|_| ()), nobody().await).await, CheckFailed(Failure::Refused));
}

#[tokio::test]
async fn a_certificate_is_verified_against_the_authorities_that_are_given() {
    let (ours, other) = (Authority::new(), Authority::new());
    let named = |check: &mut TlsCheck| {
        (check.server_name, check.authorities) = (Some("app.example".into()), ours.trusted());
    };
    let good = ours.server(&["app.example", "127.0.0.1"], VALID, &[]).await;
    assert_eq!(look(&tls(named), good).await, CheckPassed);
    let by_address = tls(|check| check.authorities = ours.trusted());
    assert_eq!(look(&by_address, good).await, CheckPassed, "it bears the instance's address");

    let wrong_name = ours.server(&["other.example"], VALID, &[]).await;
    assert_eq!(look(&tls(named), wrong_name).await, failed(TlsFailure::WrongName));
    assert_eq!(look(&by_address, wrong_name).await, failed(TlsFailure::WrongName));
    let expired = ours.server(&["app.example"], (1990, 1991), &[]).await;
    assert_eq!(look(&tls(named), expired).await, failed(TlsFailure::Expired));
    let not_yet = ours.server(&["app.example"], (3000, 3001), &[]).await;
    assert_eq!(look(&tls(named), not_yet).await, failed(TlsFailure::Expired));
    let untrusted = other.server(&["app.example"], VALID, &[]).await;
    assert_eq!(look(&tls(named), untrusted).await, failed(TlsFailure::Untrusted));
}

#[tokio::test]
async fn of_the_offered_protocols_the_instance_must_agree_to_one() {
    let authority = Authority::new();
    let offering =
        |alpn: &[&str]| tls(|check| check.alpn = alpn.iter().map(|name| (*name).to_owned()).collect());
    let http2 = authority.server(&["app.example"], VALID, &["h2"]).await;
    assert_eq!(look(&offering(&["http/1.1", "h2"]), http2).await, CheckPassed);
    let refused = look(&offering(&["http/1.1"]), http2).await;
    assert_eq!(refused, failed(TlsFailure::Alert("NoApplicationProtocol")));
    let none = authority.server(&["app.example"], VALID, &[]).await;
    assert_eq!(look(&offering(&["h2"]), none).await, failed(TlsFailure::NoProtocol));
}

#[tokio::test]
async fn what_is_no_tls_or_says_nothing_fails() {
    let web = server(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").await;
    assert_eq!(look(&tls(|_| ()), web).await, failed(TlsFailure::NotTls));
    assert_eq!(look(&tls(|_| ()), server(b"").await).await, CheckFailed(Failure::Closed));
    let refusing = server(b"\x15\x03\x03\x00\x02\x02\x28").await;
    assert_eq!(look(&tls(|_| ()), refusing).await, failed(TlsFailure::Alert("HandshakeFailure")));
    let (mute, _task) = serve(|stream, _| async move {
        sleep(Duration::from_secs(60)).await;
        drop(stream);
    })
    .await;
    let impatient = CheckSpec { timeout: Duration::from_millis(50), ..tls(|_| ()) };
    assert_eq!(look(&impatient, mute).await, CheckFailed(Failure::TimedOut));
}
