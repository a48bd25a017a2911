//! Alerts: how a TLS client is told that it gets no connection (RFC 8446 §6).

use router_common::abi::reason::RefuseReason;

const ALERT: u8 = 21;
const FATAL: u8 = 2;
/// TLS 1.2, which every version since writes on its records.
const VERSION: [u8; 2] = [3, 3];

const UNEXPECTED_MESSAGE: u8 = 10;
const ILLEGAL_PARAMETER: u8 = 47;
const ACCESS_DENIED: u8 = 49;
const DECODE_ERROR: u8 = 50;
const INTERNAL_ERROR: u8 = 80;
const UNRECOGNIZED_NAME: u8 = 112;

/// The record that tells a client why it is refused; `None` if nobody is left to read it, or if there is no word for it.
pub fn record(reason: RefuseReason) -> Option<[u8; 7]> {
    let description = match reason {
        RefuseReason::BadClientHello => DECODE_ERROR,
        RefuseReason::BadServerName => UNRECOGNIZED_NAME,
        RefuseReason::HeadTooLarge => ILLEGAL_PARAMETER,
        RefuseReason::HttpOnTls | RefuseReason::ProxyHeaderUnexpected => UNEXPECTED_MESSAGE,
        RefuseReason::Denied => ACCESS_DENIED,
        RefuseReason::ClientGone | RefuseReason::HeaderTimeout => return None,
        _ => INTERNAL_ERROR,
    };
    Some([ALERT, VERSION[0], VERSION[1], 0, 2, FATAL, description])
}
