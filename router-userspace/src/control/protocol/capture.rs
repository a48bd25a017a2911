//! Samples of packets that are not carried on.

use serde::{Deserialize, Serialize};

use super::PacketSummary;

/// Longest that the daemon waits for a packet before it answers, in milliseconds.
pub const MAX_CAPTURE_WAIT_MS: u64 = 2_000;

/// Body of `POST /v1/capture`. The first request begins a capture and gets its number; who names the number gets what has come since, within three
/// seconds, or else the capture ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// The capture's number; without it another one begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capture: Option<u64>,
    /// When one begins: packets of these reasons, dropped or passed up. Without any, all that are dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// How long to wait for a packet, at most [`MAX_CAPTURE_WAIT_MS`].
    #[serde(default)]
    pub wait_ms: u64,
    /// This is the last visit: the capture ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub end: bool,
}

/// Answer to `POST /v1/capture`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaptureAnswer {
    pub capture: u64,
    pub packets: Vec<CapturedPacket>,
    /// Packets since the request before that were wanted and not kept: more came than are kept.
    pub missed: u64,
}

/// A packet that was not carried on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CapturedPacket {
    /// Nanoseconds since 1970.
    pub time_unix_ns: u64,
    /// See `GET /v1/reasons`.
    pub reason: String,
    /// Else the stack got it.
    pub dropped: bool,
    pub interface: String,
    pub packet: PacketSummary,
    /// Its beginning, from the Ethernet header on, in base64; its length is in `packet`.
    pub frame: String,
}
