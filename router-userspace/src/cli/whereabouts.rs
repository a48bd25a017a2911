//! `where`: what the kernel programs would do with a packet, or with every packet of a capture.

use std::io::{self, Write};

use data_encoding::BASE64;

use super::arguments::AskedPackets;
use super::captures;
use super::client::Client;
use super::table::{BAD, BOLD, Cell, DIM, GOOD, Table};
use super::{Exit, Failure};
use crate::control::protocol::{
    AskedPacket, CapturedFrame, DescribedPacket, Leaving, MAX_ASKED_PACKETS, MAX_BODY_BYTES, PacketSummary,
    PacketVerdict, WhereAnswer, WhereRequest, Whereabouts,
};

/// What a packet takes in a request beside its frame, at most.
const ROOM_PER_PACKET: usize = 128;

pub(super) fn run(
    client: &Client,
    asked: &AskedPackets,
    json: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    if let Some(file) = &asked.pcap {
        let (frames, more) = captures::read(file, asked.limit)?;
        let interface = &asked.interface;
        let packets = frames.into_iter().map(|captured| {
            AskedPacket::Captured(CapturedFrame {
                frame: BASE64.encode(&captured.frame),
                length: Some(captured.length),
                interface: interface.clone(),
            })
        });
        let answer = ask_in_parts(client, packets.collect())?;
        if json {
            serde_json::to_writer(&mut *out, &answer).map_err(io::Error::from)?;
            writeln!(out)?;
        } else {
            list(&answer.packets, out)?;
            if more {
                writeln!(out, "the first {} packets; --limit asks about more", asked.limit)?;
            }
        }
        return Ok(Exit::Ok);
    }
    let (Some(protocol), Some(source), Some(destination)) =
        (&asked.protocol, asked.source, asked.destination)
    else {
        unreachable!("the command line demands them");
    };
    let described = DescribedPacket {
        protocol: protocol.clone(),
        source,
        destination,
        flags: asked.flags.clone(),
        interface: asked.interface.clone(),
        vlan: asked.vlan,
        payload_bytes: asked.payload,
        sequence: asked.sequence,
        acknowledgement: asked.acknowledgement,
    };
    let request = WhereRequest { packets: vec![AskedPacket::Described(described)] };
    let answer = client.post::<WhereAnswer>("/v1/where", &request)?;
    if !answer.print_json(json, out)? {
        answer.value.packets.iter().try_for_each(|packet| tell(packet, out))?;
    }
    let is_fine =
        |packet: &Whereabouts| packet.fate.as_ref().is_some_and(|fate| fate.verdict != PacketVerdict::Drop);
    Ok(if answer.value.packets.iter().all(is_fine) { Exit::Ok } else { Exit::Negative })
}

/// Asks about any number of packets, as many at a time as one request takes.
fn ask_in_parts(client: &Client, packets: Vec<AskedPacket>) -> Result<WhereAnswer, Failure> {
    let mut answer = WhereAnswer { packets: Vec::with_capacity(packets.len()) };
    let mut part = WhereRequest { packets: Vec::new() };
    let mut size = 0;
    let mut ask = |part: &mut WhereRequest| -> Result<(), Failure> {
        if !part.packets.is_empty() {
            answer.packets.extend(client.post::<WhereAnswer>("/v1/where", part)?.value.packets);
            part.packets.clear();
        }
        Ok(())
    };
    for packet in packets {
        let needed = match &packet {
            AskedPacket::Captured(captured) => captured.frame.len() + ROOM_PER_PACKET,
            AskedPacket::Described(_) => ROOM_PER_PACKET,
        };
        if part.packets.len() == MAX_ASKED_PACKETS || size + needed > MAX_BODY_BYTES - ROOM_PER_PACKET {
            ask(&mut part)?;
            size = 0;
        }
        size += needed;
        part.packets.push(packet);
    }
    ask(&mut part)?;
    Ok(answer)
}

/// A line for each packet.
fn list(packets: &[Whereabouts], out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[">#", "PACKET", "VERDICT", "REASON", "INSTANCE", "LEAVES BY", "AS"]);
    for (number, packet) in packets.iter().enumerate() {
        let number = Cell::number(number + 1);
        let shown = Cell::new(summary(&packet.packet));
        let Some(fate) = &packet.fate else {
            let error = Cell::new(packet.error.as_deref().unwrap_or("no answer"));
            let none = || Cell::new("-");
            table.row(vec![number, shown, Cell::new("unknown").style(BAD), error, none(), none(), none()]);
            continue;
        };
        let (verdict, style) = verdict(fate.verdict);
        table.row(vec![
            number,
            shown,
            Cell::new(verdict).style(style),
            Cell::new(&fate.reason),
            Cell::optional(fate.instance.as_ref()),
            Cell::optional(fate.leaves.as_ref().map(|leaves| &leaves.interface)),
            Cell::optional(fate.leaves.as_ref().map(|leaves| summary(&leaves.packet))),
        ]);
    }
    table.print(out)
}

/// Everything about one packet.
fn tell(asked: &Whereabouts, out: &mut dyn Write) -> io::Result<()> {
    let Whereabouts { packet, fate, error } = asked;
    let Some(fate) = fate else {
        writeln!(out, "{}", summary(packet))?;
        return writeln!(out, "{BAD}{}{BAD:#}", error.as_deref().unwrap_or("no answer"));
    };
    let listener = fate.listener.as_ref().map(|name| format!(", to listener {name}")).unwrap_or_default();
    writeln!(out, "{}, arriving by {}{listener}", summary(packet), fate.interface)?;
    for word in &fate.programs {
        let said = match (&word.reason, &word.left) {
            (Some(reason), _) => reason.clone(),
            (None, Some(left)) => format!("left to TC, {left}"),
            (None, None) => "not one of its packets".to_owned(),
        };
        writeln!(out, "  {DIM}{}: {said}{DIM:#}", word.program)?;
    }
    let (verdict, style) = verdict(fate.verdict);
    // TC is what there is without further ado.
    let by = if fate.hook == "tc" { String::new() } else { format!(" by {}", fate.hook) };
    writeln!(out, "{style}{verdict}{style:#}{by}: {}: {}", fate.reason, fate.description)?;
    let Some(leaves) = &fate.leaves else {
        if fate.verdict == PacketVerdict::Stack && packet.protocol == "tcp" && fate.listener.is_some() {
            writeln!(
                out,
                "  the stack gives it to whoever listens there; `routerctl explain` follows a request"
            )?;
        }
        return Ok(());
    };
    if let Some(instance) = &fate.instance {
        writeln!(out, "  instance {BOLD}{instance}{BOLD:#}")?;
    }
    leaving(packet, leaves, out)
}

fn leaving(packet: &PacketSummary, leaves: &Leaving, out: &mut dyn Write) -> io::Result<()> {
    let to = match (&leaves.next_hop, &leaves.link_address) {
        (Some(hop), Some(address)) => format!(" to {hop} ({address})"),
        (Some(hop), None) => format!(" to {hop}, whose link-layer address the kernel finds first"),
        (None, Some(address)) => format!(" to {address}"),
        (None, None) => String::new(),
    };
    writeln!(out, "  leaves by {}{to}", leaves.interface)?;
    let after = &leaves.packet;
    if let Some((source, destination)) = after.wrapped {
        writeln!(out, "  wrapped: {source} → {destination}")?;
    }
    if (after.source_end(), after.destination_end()) != (packet.source_end(), packet.destination_end()) {
        writeln!(out, "  as {}", summary(after))?;
    }
    let changes = [("sequence", leaves.sequence_change), ("acknowledgement", leaves.acknowledgement_change)];
    for (what, change) in changes {
        if let Some(change) = change.filter(|change| *change != 0) {
            writeln!(out, "  {what} {:+}", change.cast_signed())?;
        }
    }
    Ok(())
}

fn verdict(verdict: PacketVerdict) -> (&'static str, anstyle::Style) {
    match verdict {
        PacketVerdict::Forward => ("forwarded", GOOD),
        PacketVerdict::Stack => ("the stack's", BOLD),
        PacketVerdict::Drop => ("dropped", BAD),
        PacketVerdict::Report => ("sender told", BAD),
    }
}

/// One line: protocol, ends, flags.
pub(super) fn summary(packet: &PacketSummary) -> String {
    let PacketSummary { protocol, length, .. } = packet;
    let end = |address: Option<std::net::IpAddr>, port: Option<u16>| match (address, port) {
        (Some(address), Some(port)) => Some(std::net::SocketAddr::new(address, port).to_string()),
        (Some(address), None) => Some(address.to_string()),
        (None, _) => None,
    };
    let ends = end(packet.source, packet.source_port)
        .zip(end(packet.destination, packet.destination_port))
        .map(|(source, destination)| format!(" {source} → {destination}"))
        .unwrap_or_default();
    let flags = packet.flags.as_ref().map(|flags| format!(" {flags}")).unwrap_or_default();
    let fragment = if packet.fragment { " fragment" } else { "" };
    let vlan = packet.vlan.map(|number| format!(", VLAN {number}")).unwrap_or_default();
    format!("{protocol}{ends}{flags}{fragment}{vlan}, {length} bytes")
}
