//! Where packets would go (`routerctl where`): `make or decode the frame → ask the kernel programs → name what they have said`.

mod describe;
mod summary;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::http::StatusCode;
use data_encoding::BASE64;
use nix::net::if_::if_indextoname;
use router_common::abi::trace::SaidVerdict;

use super::flows::listens_for;
use super::protocol::{
    AskedPacket, CapturedFrame, DescribedPacket, Fate, Leaving, Listener, MAX_ASKED_PACKETS, PacketSummary,
    PacketVerdict, ProgramWord, WhereAnswer, WhereRequest, Whereabouts,
};
use super::routes::Refusal;
use super::state::State;
use crate::core::table::RoutingTable;
use crate::flows::trace::{Entrance, Trace, TraceError, Traces, Word};
pub use summary::summary;

/// The longest frame that is filled up with zeros: beyond, nothing can be asked anyway.
const MAX_FRAME: u32 = 65_535 + 14;

/// Answers for every packet, or says what is wrong with the question.
pub async fn ask(state: Arc<State>, request: WhereRequest) -> Result<WhereAnswer, Refusal> {
    // The kernel programs may have to be loaded first.
    let answered = tokio::task::spawn_blocking(move || answer(&state, &request)).await;
    answered.unwrap_or_else(|error| {
        Err(Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the question could not be answered: {error}"),
            "see the daemon's log, and please report this",
        ))
    })
}

/// What becomes of a described packet, by whatever interface it comes if its own is not known.
pub fn of_new_packet(state: &State, described: &DescribedPacket) -> Result<Fate, Refusal> {
    let tracer = tracer(state)?;
    let (table, listeners) = (state.table.load(), state.listeners.load());
    let teller = Teller { tracer, table: &table, listeners: &listeners };
    let from_there = tracer.entrance_from(described.source.ip());
    let entrance = from_there.or_else(|| tracer.entrances().into_iter().next());
    let entrance = entrance.map_or_else(|| teller.entrance(None, Some(described.source.ip())), Ok)?;
    let frame = describe::frame(described, &entrance, None)?;
    let told = teller.follow(&frame, frame.len() as u32, &entrance)?;
    // The daemon's own packets are neither too short nor too long.
    told.fate.ok_or_else(|| Refusal::bad_request(told.error.unwrap_or_default(), "ask about another packet"))
}

fn tracer(state: &State) -> Result<&dyn Traces, Refusal> {
    state.tracer.as_deref().ok_or_else(|| {
        Refusal::new(
            StatusCode::CONFLICT,
            format!("there are no kernel programs to ask: {}", state.datapath),
            "every connection is relayed; `routerctl explain` says where a request would go",
        )
    })
}

fn answer(state: &State, request: &WhereRequest) -> Result<WhereAnswer, Refusal> {
    let tracer = tracer(state)?;
    if request.packets.len() > MAX_ASKED_PACKETS {
        return Err(Refusal::bad_request(
            format!("{} packets at once", request.packets.len()),
            format!("ask for at most {MAX_ASKED_PACKETS} at a time"),
        ));
    }
    let (table, listeners) = (state.table.load(), state.listeners.load());
    let teller = Teller { tracer, table: &table, listeners: &listeners };
    let packets = request.packets.iter().map(|packet| teller.tell(packet)).collect::<Result<_, _>>()?;
    Ok(WhereAnswer { packets })
}

struct Teller<'a> {
    tracer: &'a dyn Traces,
    table: &'a RoutingTable,
    listeners: &'a [Listener],
}

impl Teller<'_> {
    fn tell(&self, packet: &AskedPacket) -> Result<Whereabouts, Refusal> {
        match packet {
            AskedPacket::Described(described) => {
                let entrance = self.entrance(described.interface.as_deref(), Some(described.source.ip()))?;
                let expected = match described.protocol.as_str() {
                    "tcp" => {
                        self.tracer.expected(described.source, described.destination).map_err(no_answer)?
                    }
                    _ => None,
                };
                let frame = describe::frame(described, &entrance, expected)?;
                self.follow(&frame, frame.len() as u32, &entrance)
            }
            AskedPacket::Captured(captured) => {
                let (frame, length) = decode(captured)?;
                let source = summary(&frame, length).source;
                let entrance = self.entrance(captured.interface.as_deref(), source)?;
                self.follow(&frame, length, &entrance)
            }
        }
    }

    /// The interface by which a packet arrives.
    fn entrance(&self, named: Option<&str>, source: Option<IpAddr>) -> Result<Entrance, Refusal> {
        let entrances = self.tracer.entrances();
        let known = || {
            let names: Vec<_> = entrances.iter().map(|entrance| entrance.name.as_str()).collect();
            format!("name one that they are attached to: {}", names.join(", "))
        };
        if let Some(name) = named {
            return entrances.iter().find(|entrance| entrance.name == name).cloned().ok_or_else(|| {
                Refusal::bad_request(
                    format!("the kernel programs see no packet of interface {name:?}"),
                    known(),
                )
            });
        }
        source.and_then(|source| self.tracer.entrance_from(source)).ok_or_else(|| {
            let from = source.map_or("this packet".to_owned(), |source| format!("packets from {source}"));
            Refusal::bad_request(format!("it is not known by which interface {from} would arrive"), known())
        })
    }

    fn follow(&self, frame: &[u8], length: u32, entrance: &Entrance) -> Result<Whereabouts, Refusal> {
        let packet = summary(frame, length);
        match self.tracer.trace(frame, entrance.index) {
            Ok(trace) => {
                let fate = self.fate(&packet, &trace, entrance);
                Ok(Whereabouts { packet, fate: Some(fate), error: None })
            }
            // Others of the same capture may well be asked about.
            Err(error @ TraceError::Length(..)) => {
                Ok(Whereabouts { packet, fate: None, error: Some(error.to_string()) })
            }
            Err(error) => Err(no_answer(error)),
        }
    }

    fn fate(&self, packet: &PacketSummary, trace: &Trace, entrance: &Entrance) -> Fate {
        let programs = trace.steps.iter().map(|step| ProgramWord {
            program: step.program.to_owned(),
            reason: step.word.map(|word| word.reason.name().to_owned()),
            left: step.left.map(|reason| reason.name().to_owned()),
        });
        let listener = packet.destination_end().and_then(|end| self.listener(end, &packet.protocol));
        let mut fate = Fate {
            interface: entrance.name.clone(),
            hook: trace.hook.name().to_owned(),
            verdict: PacketVerdict::Stack,
            reason: String::new(),
            description: String::new(),
            programs: programs.collect(),
            listener: listener.map(|listener| listener.name.clone()),
            instance: None,
            leaves: None,
        };
        // Without a word the packet is none of the router's, and the stack's.
        let Some(word) = trace.word() else { return fate };
        fate.reason = word.reason.name().to_owned();
        fate.description = word.reason.description().trim().to_owned();
        fate.verdict = match word.verdict {
            SaidVerdict::Pass => PacketVerdict::Stack,
            SaidVerdict::Drop => PacketVerdict::Drop,
            SaidVerdict::Report => PacketVerdict::Report,
            SaidVerdict::Redirect | SaidVerdict::Resolve => PacketVerdict::Forward,
        };
        if matches!(fate.verdict, PacketVerdict::Forward | PacketVerdict::Report) {
            let leaves = leaving(packet, trace, word);
            fate.instance = self.instance(packet, &leaves, listener);
            fate.leaves = Some(leaves);
        }
        fate
    }

    fn listener(&self, end: SocketAddr, protocol: &str) -> Option<&Listener> {
        let serves = |listener: &&Listener| {
            listens_for(listener.address, end) && (listener.protocol == "udp") == (protocol == "udp")
        };
        self.listeners.iter().find(serves)
    }

    /// Which end of the packet, as it comes or as it leaves, is an instance.
    fn instance(
        &self,
        packet: &PacketSummary,
        leaves: &Leaving,
        listener: Option<&Listener>,
    ) -> Option<String> {
        // With direct return the instance has the listener's address for its own, on the same port.
        let port = packet.destination_port;
        let by_address = |address: Option<IpAddr>| Some(SocketAddr::new(address?, port?));
        let direct = listener
            .and_then(|_| by_address(leaves.packet.wrapped.map(|(_, outer)| outer)))
            .or_else(|| listener.and_then(|_| by_address(leaves.next_hop)));
        let ends = [leaves.packet.destination_end(), packet.source_end(), direct];
        ends.into_iter().flatten().find_map(|end| {
            let found = self.table.instances().find(|(_, _, instance)| instance.address == end);
            found.map(|(_, _, instance)| instance.name.clone())
        })
    }
}

fn leaving(packet: &PacketSummary, trace: &Trace, word: Word) -> Leaving {
    let after = summary(&trace.frame, trace.frame.len() as u32);
    let changed = |before: Option<u32>, after: Option<u32>| Some(after?.wrapping_sub(before?));
    let forwarded = word.verdict != SaidVerdict::Report;
    let link_address = trace.frame.get(..6).filter(|_| word.verdict != SaidVerdict::Resolve);
    Leaving {
        frame: BASE64.encode(&trace.frame),
        interface: interface_name(word.interface),
        next_hop: trace.next_hop,
        link_address: link_address.map(mac),
        sequence_change: changed(packet.sequence, after.sequence).filter(|_| forwarded),
        acknowledgement_change: changed(packet.acknowledgement, after.acknowledgement).filter(|_| forwarded),
        packet: after,
    }
}

fn interface_name(index: u32) -> String {
    // One that has gone in between.
    if_indextoname(index)
        .map_or_else(|_| format!("interface {index}"), |name| name.to_string_lossy().into_owned())
}

fn mac(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

/// The frame, and how long it was before it was captured.
fn decode(captured: &CapturedFrame) -> Result<(Vec<u8>, u32), Refusal> {
    let mut frame = BASE64.decode(captured.frame.as_bytes()).map_err(|error| {
        Refusal::bad_request(format!("the frame is no base64: {error}"), "send the whole frame in base64")
    })?;
    let length = captured.length.unwrap_or(frame.len() as u32);
    if length > MAX_FRAME || (length as usize) < frame.len() {
        return Err(Refusal::bad_request(
            format!("{} bytes of a frame of {length} bytes", frame.len()),
            format!("the length is that of the whole frame, at most {MAX_FRAME} bytes"),
        ));
    }
    frame.resize(length as usize, 0);
    Ok((frame, length))
}

fn no_answer(error: TraceError) -> Refusal {
    Refusal::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        format!("the kernel programs cannot be asked: {error}"),
        "traffic is not affected; see the daemon's log",
    )
}
