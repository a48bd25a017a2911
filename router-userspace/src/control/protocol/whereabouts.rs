//! Where packets would go: questions and answers.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Most packets of one `POST /v1/where`.
pub const MAX_ASKED_PACKETS: usize = 256;

/// Body of `POST /v1/where`: packets that need not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WhereRequest {
    /// At most [`MAX_ASKED_PACKETS`].
    pub packets: Vec<AskedPacket>,
}

/// A packet that arrives at this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum AskedPacket {
    /// One that the daemon makes.
    Described(DescribedPacket),
    /// One that somebody has captured.
    Captured(CapturedFrame),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DescribedPacket {
    /// `tcp` or `udp`.
    pub protocol: String,
    pub source: SocketAddr,
    pub destination: SocketAddr,
    /// TCP flags such as `syn` or `fin|ack`; without any, `ack` in a handed-off flow, else `syn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flags: Option<String>,
    /// By which it arrives; without it the one that routes to its source leave by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The VLAN that it is tagged with, 1–4094.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Bytes behind its TCP or UDP header.
    #[serde(default)]
    pub payload_bytes: u16,
    /// Without it, what is next in its flow, if it is one that was handed off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledgement: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapturedFrame {
    /// From its Ethernet header on, in base64.
    pub frame: String,
    /// How long it was, if not all of it was captured; what is missing is taken to be zeros.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u32>,
    /// As for a described packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
}

/// Answer to `POST /v1/where`: one for each packet, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhereAnswer {
    pub packets: Vec<Whereabouts>,
}

/// Where one packet would go, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whereabouts {
    pub packet: PacketSummary,
    /// `None` where the packet cannot be asked about; `error` says why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fate: Option<Fate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What the kernel programs do with a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fate {
    /// By which it arrives.
    pub interface: String,
    /// Where that is decided: `tc`, `xdp-native` or `xdp-generic`.
    pub hook: String,
    pub verdict: PacketVerdict,
    /// See `GET /v1/reasons`.
    pub reason: String,
    pub description: String,
    /// What each program said, up to the one that decided.
    pub programs: Vec<ProgramWord>,
    /// The listener that it is addressed to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener: Option<String>,
    /// The instance that it goes to or comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// What leaves this host, if anything does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaves: Option<Leaving>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PacketVerdict {
    /// It leaves for an instance or a client.
    Forward,
    /// The host's stack takes it, unchanged.
    Stack,
    Drop,
    /// Its sender is told of an error.
    Report,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramWord {
    pub program: String,
    /// `None`: the packet is none of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why a program of XDP leaves the packet to those of TC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<String>,
}

/// A packet as it leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    pub packet: PacketSummary,
    /// All of it, from its Ethernet header on, in base64.
    pub frame: String,
    pub interface: String,
    /// The neighbour, where it is one that a route leads to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_hop: Option<IpAddr>,
    /// Its Ethernet address; `None` if the kernel must find it first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_address: Option<String>,
    /// Added to its sequence number, modulo 2^32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence_change: Option<u32>,
    /// Added to its acknowledgement number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledgement_change: Option<u32>,
}

/// What a packet's headers say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketSummary {
    /// `tcp`, `udp`, `icmp`, `icmpv6`, or the number of another protocol or EtherType.
    pub protocol: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_port: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination_port: Option<u16>,
    /// TCP flags such as `syn` or `fin|ack`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flags: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledgement: Option<u32>,
    /// The VLAN of its outermost tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Bytes of the frame, from its Ethernet header on.
    pub length: u32,
    /// A fragment of a larger packet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fragment: bool,
    /// Source and destination of the header that it is wrapped in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrapped: Option<(IpAddr, IpAddr)>,
}

impl PacketSummary {
    pub fn source_end(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.source?, self.source_port?))
    }

    pub fn destination_end(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.destination?, self.destination_port?))
    }
}
