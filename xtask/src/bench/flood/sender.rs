//! Forged segments, as fast as one processor sends them.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::link::{Link, PacketSocket};
use crate::topology::{Host, Lab};

/// Which segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// That begin connections.
    Syn,
    /// That acknowledge cookies which were never made.
    Ack,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Syn => "forged SYNs",
            Self::Ack => "forged ACKs",
        }
    }

    const fn flags(self) -> u8 {
        match self {
            Self::Syn => 0x02,
            Self::Ack => 0x10,
        }
    }
}

/// How much was sent, and in which time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    pub packets: u32,
    pub seconds: f64,
}

impl Sent {
    /// Packets a second; 0 if nothing was sent.
    pub fn rate(self) -> f64 {
        if self.packets == 0 { 0.0 } else { f64::from(self.packets) / self.seconds }
    }
}

/// Sends from the client's host, in the name of hosts that nobody has.
#[derive(Debug)]
pub struct Sender {
    wire: PacketSocket,
    ethernet: [u8; 14],
    target: (u32, u16),
}

impl Sender {
    pub fn new(lab: &Lab, target: SocketAddr) -> Result<Self> {
        let IpAddr::V4(vip) = target.ip() else { unreachable!("the bench's VIP is IPv4") };
        let open = || -> Result<_> { Ok((PacketSocket::on("eth0")?, Link::address("eth0")?)) };
        let (wire, own) = lab.inside(Host::Client, open)??;
        let gateway = lab.inside(Host::Gateway, || Link::address("client"))??;
        let mut ethernet = [0; 14];
        ethernet[..6].copy_from_slice(&gateway);
        ethernet[6..12].copy_from_slice(&own);
        ethernet[12..].copy_from_slice(&0x0800_u16.to_be_bytes());
        Ok(Self { wire, ethernet, target: (vip.into(), target.port()) })
    }

    /// Sends so many, each from another address and port.
    pub fn send(&self, kind: Kind, packets: u32) -> Result<Sent> {
        self.until(kind, packets, &AtomicBool::new(true))
    }

    /// Sends so many, and on until `work` is done, which goes on meanwhile.
    pub fn beside<T: Send>(
        &self,
        kind: Kind,
        packets: u32,
        work: impl FnOnce() -> Result<T> + Send,
    ) -> Result<(T, Sent)> {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let flood = scope.spawn(|| self.until(kind, packets, &done));
            let outcome = work();
            done.store(true, Ordering::Relaxed);
            let sent = flood.join().expect("sending does not panic")?;
            ensure!(sent.packets >= packets, "only {} packets were sent", sent.packets);
            Ok((outcome?, sent))
        })
    }

    fn until(&self, kind: Kind, packets: u32, done: &AtomicBool) -> Result<Sent> {
        let began = Instant::now();
        let mut number = 0;
        while number < packets || !done.load(Ordering::Relaxed) {
            self.wire.send(&frame(self.ethernet, self.target, kind, number)).context("the flood ends")?;
            number += 1;
        }
        Ok(Sent { packets: number, seconds: began.elapsed().as_secs_f64() })
    }
}

/// A segment without options or data. Its sender is one of the 131,072 hosts of 198.18.0.0/15, which are for benchmarks (RFC 2544), at a port of 64.
fn frame(ethernet: [u8; 14], (vip, port): (u32, u16), kind: Kind, number: u32) -> [u8; 54] {
    let source = 0xc612_0000 | number & 0x1_ffff;
    let source_port = 1_024 + (number >> 17 & 63) as u16;
    let mut frame = [0; 54];
    frame[..14].copy_from_slice(&ethernet);
    let ip = &mut frame[14..34];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&40_u16.to_be_bytes());
    ip[6] = 0x40;
    ip[8..10].copy_from_slice(&[64, 6]);
    ip[12..16].copy_from_slice(&source.to_be_bytes());
    ip[16..20].copy_from_slice(&vip.to_be_bytes());
    let sum = checksum(ip, 0);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let pseudo = (source >> 16) + (source & 0xffff) + (vip >> 16) + (vip & 0xffff) + 6 + 20;
    let tcp = &mut frame[34..];
    tcp[..2].copy_from_slice(&source_port.to_be_bytes());
    tcp[2..4].copy_from_slice(&port.to_be_bytes());
    tcp[4..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9).to_be_bytes());
    if kind == Kind::Ack {
        tcp[8..12].copy_from_slice(&number.wrapping_mul(0x85eb_ca6b).to_be_bytes());
    }
    tcp[12..14].copy_from_slice(&[5 << 4, kind.flags()]);
    tcp[14..16].copy_from_slice(&1_000_u16.to_be_bytes());
    let sum = checksum(tcp, pseudo);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Of an even number of bytes (RFC 1071).
fn checksum(bytes: &[u8], more: u32) -> u16 {
    let words = bytes.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let mut sum = words.sum::<u32>() + more;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_whole_and_come_from_somebody_else_each() {
        let frames: Vec<_> =
            [0, 1, 131_072].map(|number| frame([0; 14], (0x0a4d_010a, 80), Kind::Ack, number)).into();
        for frame in &frames {
            assert_eq!(checksum(&frame[14..34], 0), 0);
            let half = |at: usize| u32::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
            let pseudo = half(26) + half(28) + half(30) + half(32) + 6 + 20;
            assert_eq!(checksum(&frame[34..], pseudo), 0);
        }
        assert_ne!(frames[0][26..36], frames[1][26..36]);
        assert_ne!(frames[0][26..36], frames[2][26..36]);
    }
}
