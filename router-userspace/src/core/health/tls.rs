//! A check that completes a TLS handshake: what it asks for, and how it fails.

use std::fmt;
use std::sync::Arc;

/// What a TLS check offers and asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsCheck {
    /// The name that is sent (SNI) and that the certificate must bear; without one nothing is sent, and the certificate must bear the
    /// instance's address.
    pub server_name: Option<String>,
    /// The certificates (DER) that the instance's must lead up to; `None`: its certificate is not looked at.
    pub authorities: Option<Arc<[Vec<u8>]>>,
    /// Protocols (ALPN) of which the instance must agree to one; none are offered if this is empty.
    pub alpn: Vec<String>,
}

/// Why no TLS connection came about, or not the one that was wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFailure {
    /// The answer is not TLS.
    NotTls,
    /// The instance ended the handshake with this alert (RFC 8446 §6).
    Alert(&'static str),
    /// Both sides speak TLS and found no common ground.
    Handshake,
    /// The certificate is past its end, or before its beginning.
    Expired,
    /// The certificate is for other names.
    WrongName,
    /// The certificate leads up to no authority that is trusted, or breaks the rules.
    Untrusted,
    /// The instance agreed to none of the protocols that were offered.
    NoProtocol,
}

impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotTls => f.write_str("the answer is not TLS"),
            Self::Alert(alert) => write!(f, "TLS handshake refused: {alert}"),
            Self::Handshake => f.write_str("TLS handshake failed"),
            Self::Expired => f.write_str("its certificate has expired or is not valid yet"),
            Self::WrongName => f.write_str("its certificate is for another name"),
            Self::Untrusted => f.write_str("its certificate is not trusted"),
            Self::NoProtocol => f.write_str("it agrees to none of the offered protocols"),
        }
    }
}
