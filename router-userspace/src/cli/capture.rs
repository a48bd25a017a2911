//! `capture`: packets that are not carried on, as they come.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use data_encoding::BASE64;
use jiff::Timestamp;
use router_common::abi::reason::PacketReason;

use super::arguments::CaptureFilter;
use super::captures::{Captured, Writer};
use super::client::Client;
use super::table::{BAD, DIM};
use super::whereabouts::summary;
use super::{Exit, Failure};
use crate::control::protocol::{CaptureAnswer, CaptureRequest, CapturedPacket, MAX_CAPTURE_WAIT_MS};

/// How long one question waits. Shorter than the daemon's patience, so that a capture goes on from one to the next.
const WAIT_MS: u64 = 500;
const _: () = assert!(WAIT_MS <= MAX_CAPTURE_WAIT_MS);

pub(super) fn run(
    client: &Client,
    filter: &CaptureFilter,
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<Exit, Failure> {
    let mut sink = match &filter.write {
        Some(path) => Sink::File(Writer::create(path)?),
        None if json => Sink::Json(Vec::new()),
        None => Sink::Lines,
    };
    let until = Instant::now() + Duration::from_secs(filter.seconds.into());
    let (mut left, mut missed, mut captured) = (filter.count as usize, 0, 0);
    let mut is_last = false;
    let begin = CaptureRequest { reasons: filter.reasons.clone(), ..CaptureRequest::default() };
    let mut answer: CaptureAnswer = client.post("/v1/capture", &begin)?.value;
    writeln!(err, "capturing, for {} packets or {} seconds", filter.count, filter.seconds)?;
    loop {
        for packet in answer.packets.into_iter().take(left) {
            left -= 1;
            captured += 1;
            sink.take(packet, out)?;
        }
        // Of what was missed after the last packet that was wanted nobody wants to know.
        missed += if left > 0 { answer.missed } else { 0 };
        if is_last {
            break;
        }
        let remaining = until.saturating_duration_since(Instant::now());
        is_last = remaining.is_zero() || left == 0;
        let wait_ms = if is_last { 0 } else { WAIT_MS.min(remaining.as_millis() as u64) };
        let request = CaptureRequest {
            capture: Some(answer.capture),
            wait_ms,
            end: is_last,
            ..CaptureRequest::default()
        };
        answer = client.post("/v1/capture", &request)?.value;
    }
    match sink {
        Sink::Json(packets) => {
            let answer = serde_json::json!({ "packets": packets, "missed": missed });
            serde_json::to_writer(&mut *out, &answer).map_err(io::Error::from)?;
            writeln!(out)?;
            return Ok(Exit::Ok);
        }
        Sink::File(writer) => writer.finish()?,
        Sink::Lines => {}
    }
    let more = if missed > 0 { format!("; {missed} more came than are kept") } else { String::new() };
    writeln!(err, "{captured} packets{more}")?;
    Ok(Exit::Ok)
}

enum Sink {
    Lines,
    Json(Vec<CapturedPacket>),
    File(Writer),
}

impl Sink {
    fn take(&mut self, packet: CapturedPacket, out: &mut dyn Write) -> Result<(), Failure> {
        match self {
            Self::Lines => Ok(line(&packet, out)?),
            Self::Json(packets) => {
                packets.push(packet);
                Ok(())
            }
            Self::File(writer) => {
                // The daemon writes nothing else.
                let frame = BASE64.decode(packet.frame.as_bytes()).unwrap_or_default();
                let captured = Captured { frame, length: packet.packet.length };
                let time = Duration::from_nanos(packet.time_unix_ns);
                Ok(writer.write(&captured, &packet.interface, time, &comment(&packet))?)
            }
        }
    }
}

fn line(packet: &CapturedPacket, out: &mut dyn Write) -> io::Result<()> {
    let time = Timestamp::from_nanosecond(packet.time_unix_ns.into()).unwrap_or_default();
    let (what, style) = fate(packet);
    writeln!(
        out,
        "{DIM}{time:.6}{DIM:#} {} {style}{what}{style:#} {}: {}",
        packet.interface,
        packet.reason,
        summary(&packet.packet)
    )
}

fn fate(packet: &CapturedPacket) -> (&'static str, anstyle::Style) {
    if packet.dropped { ("dropped", BAD) } else { ("passed up", DIM) }
}

/// What lies beside a packet in a file.
fn comment(packet: &CapturedPacket) -> String {
    let meaning = PacketReason::ALL.iter().find(|reason| reason.name() == packet.reason);
    let meaning = meaning.map_or("", |reason| reason.description().trim());
    format!("{}, {}: {meaning}", fate(packet).0, packet.reason)
}
