//! The access log: one line for each connection, or for each request where every one is routed, under the tracing target `access`.

use std::fmt;
use std::net::SocketAddr;
use std::time::Instant;

use tracing::Level;

use super::http::HttpHead;
use super::tls::client_hello::ClientHello;

/// The tracing target.
pub const TARGET: &str = "access";

/// What is known of a connection so far. Empty, and free of cost, unless somebody reads the log.
#[derive(Debug)]
pub struct Record {
    client: SocketAddr,
    began: Instant,
    details: Option<Box<Details>>,
}

#[derive(Debug, Default)]
struct Details {
    request: String,
    rule: String,
    instance: String,
}

/// What became of the connection.
#[derive(Clone, Copy, Debug)]
pub enum How {
    /// The packet path carries it on, and counts its bytes; the name is what made the handoff pay.
    HandedOff(&'static str),
    /// The packet path carries it on, and it never had a socket.
    Bound,
    /// Relayed to its end: why not handed off, and how it ended.
    Relayed { reason: &'static str, ending: &'static str },
    /// One of several requests of a connection, carried to the end of its response: how it ended, and the status.
    Answered { ending: &'static str, status: u16 },
    /// Refused: the reason, and the status if there was an answer.
    Refused { reason: &'static str, status: Option<u16> },
}

impl Record {
    pub fn begin(client: SocketAddr) -> Self {
        let details = tracing::enabled!(target: TARGET, Level::INFO).then(Box::default);
        Self { client, began: Instant::now(), details }
    }

    pub fn client(&self) -> SocketAddr {
        self.client
    }

    pub fn request(&mut self, head: &HttpHead<'_>) {
        if let Some(details) = &mut self.details {
            let host = head.host.unwrap_or("-");
            details.request = format!("{} {host}{}", head.method, head.raw_path);
        }
    }

    pub fn hello(&mut self, hello: &ClientHello<'_>) {
        if let Some(details) = &mut self.details {
            details.request = format!("TLS {}", hello.server_name.unwrap_or("-"));
        }
    }

    /// `rule` and `instance` are names.
    pub fn routed(&mut self, rule: impl fmt::Display, instance: impl fmt::Display) {
        if let Some(details) = &mut self.details {
            details.rule = rule.to_string();
            details.instance = instance.to_string();
        }
    }

    /// Writes the line. `bytes` from the client and from the instance.
    pub fn end(&self, listener: &str, how: How, bytes: (u64, u64)) {
        let Some(details) = &self.details else { return };
        let (how, reason, ending, status) = match how {
            How::HandedOff(trigger) => ("handed_off", trigger, None, None),
            How::Bound => ("bound", "first_packet", None, None),
            How::Relayed { reason, ending } => ("relayed", reason, Some(ending), None),
            How::Answered { ending, status } => ("answered", "per_request", Some(ending), Some(status)),
            How::Refused { reason, status } => ("refused", reason, None, status),
        };
        let Details { request, rule, instance } = &**details;
        tracing::info!(
            target: TARGET,
            client = %self.client, listener, request, rule, instance, how, reason, ending, status,
            bytes_to_instance = bytes.0,
            bytes_to_client = bytes.1,
            milliseconds = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
        );
    }
}
