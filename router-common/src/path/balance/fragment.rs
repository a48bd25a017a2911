//! Fragments of Layer-4 flows' datagrams: `first: flow, or placement → note → rewrite` and `later: recall → rewrite`.
//!
//! Only the first fragment has ports. Where its datagram goes is noted for the others, which change in their addresses alone: what the transport's checksum covers
//! of them stays as it is. A later fragment that overtakes its first one cannot be told from any other datagram's; to a VIP it is dropped, since the stack would keep
//! it for nothing.

use super::datagram::{Datagram, join};
use super::encapsulate::{self, Outer};
use super::place::Placement;
use super::table::{self, Key};
use super::tables::Tables;
use super::{Outcome, answer, echo, lifetime, rewrite};
use crate::abi::balance::{Course, Endpoint, Flow, FlowId, Mode, TAG_LIVE, TAG_STATE, TICK_SHIFT, Target};
use crate::abi::reason::PacketReason;
use crate::path::family::{Family, split};
use crate::path::fragment::{DatagramKey, PATIENCE};
use crate::path::ports::Packet;
use crate::wire::ethernet::Ethernet;
use crate::wire::tcp::Tcp;
use crate::wire::{Net16, Net32, PROTOCOL_TCP, PROTOCOL_UDP};

/// [`PATIENCE`] in ticks.
const PATIENCE_TICKS: u32 = ((PATIENCE as u64 * 1_000_000) >> TICK_SHIFT) as u32;

/// `None` if this is no fragment of a Layer-4 flow's; it is then unchanged.
#[inline(always)]
pub fn carry<I: Outer, P: Packet, T: Tables>(packet: &mut P, tables: &T) -> Option<Outcome> {
    packet.make_linear(Ethernet::LEN + I::Fragment::LEN);
    let header = packet.view::<I::Fragment>(Ethernet::LEN)?;
    let name = &I::datagram(header)?;
    let available = packet.len() - Ethernet::LEN;
    let length = header.length(available);
    if length > available || length < I::Fragment::LEN || !packet.is_for_this_host() {
        return None;
    }
    if name.protocol() == I::ICMP {
        return echo::fragment::<I, T>(tables, &name.destination);
    }
    if !matches!(name.protocol(), PROTOCOL_TCP | PROTOCOL_UDP) {
        return None;
    }
    if I::is_first(header) {
        first::<I, P, T>(packet, tables, name, length as u32)
    } else {
        later::<I, P, T>(packet, tables, name, length as u32)
    }
}

#[inline(always)]
fn first<I: Outer, P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    name: &DatagramKey,
    length: u32,
) -> Option<Outcome> {
    let transport = Ethernet::LEN + I::Fragment::LEN;
    let is_tcp = name.protocol() == PROTOCOL_TCP;
    packet.make_linear(transport + 8);
    packet.make_linear(transport + Tcp::LEN);
    let (source_port, destination_port) = split(*packet.view::<Net32>(transport)?);
    // A first fragment without a whole header is nobody's (RFC 1858).
    let least = if is_tcp { Tcp::LEN } else { 8 };
    if length < (I::Fragment::LEN + least) as u32 {
        return None;
    }
    let (flags, seq) = match is_tcp {
        true => (packet.view::<Net16>(transport + 12)?.0[1], packet.view::<Net32>(transport + 4)?.get()),
        false => (0, 0),
    };
    let datagram = &Datagram {
        source: name.source,
        destination: name.destination,
        source_port,
        destination_port,
        protocol: name.protocol(),
        flags,
        header: least as u8,
        length,
        next: seq.wrapping_add(length - (I::Fragment::LEN + least) as u32),
    };
    let Known { what, mut course } = known::<I, T>(tables, datagram);
    let reason = match what {
        What::Nothing => return None,
        What::GivenUp => return Some(Outcome::pass(PacketReason::L4InstanceDown)),
        What::Answers => PacketReason::L4Answered,
        What::GoesOn => PacketReason::L4Forwarded,
        What::Begins => match tables.begin(datagram, course.service) {
            Ok(Placement { instance, flow, reason }) => {
                course.instance = instance;
                course.flow = flow.map_or(0, FlowId::pack);
                reason
            }
            Err(outcome) => return Some(outcome),
        },
    };
    if let Some(flow) = flow_of(tables, &course)
        && course.to_client == 0
    {
        rewrite::learn_way_back(packet, tables, flow);
    }
    tables.note(name, course);
    Some(send::<I, P, T>(packet, tables, datagram, &Step { course, reason, transport }))
}

#[inline(always)]
fn later<I: Outer, P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    name: &DatagramKey,
    length: u32,
) -> Option<Outcome> {
    let datagram = &Datagram {
        source: name.source,
        destination: name.destination,
        source_port: 0,
        destination_port: 0,
        protocol: name.protocol(),
        flags: 0,
        header: 0,
        length,
        next: 0,
    };
    let fresh = |course: &Course| tables.ticks().wrapping_sub(course.seen) <= PATIENCE_TICKS;
    let Some(course) = tables.recall(name).filter(fresh) else {
        let port = Endpoint::pack_port(0, name.protocol(), I::IS_IPV6) | Endpoint::ANY_PORT;
        return match Target::unpack(tables.target(&name.destination, port)) {
            Some(Target::Service(_)) => Some(Outcome::drop(PacketReason::L4FragmentUnknown)),
            _ => None,
        };
    };
    let reason = match course.to_client {
        0 => PacketReason::L4Forwarded,
        _ => PacketReason::L4Answered,
    };
    Some(send::<I, P, T>(packet, tables, datagram, &Step { course, reason, transport: 0 }))
}

/// What a datagram is, by its ports.
#[derive(Clone, Copy, Debug)]
enum What {
    /// Nothing of a Layer-4 flow's.
    Nothing,
    /// It begins a flow of its course's service.
    Begins,
    GoesOn,
    /// Its instance is down.
    GivenUp,
    Answers,
}

/// As in [`Outcome`], every field always has a value.
struct Known {
    what: What,
    course: Course,
}

#[inline(never)]
fn known<I: Outer, T: Tables>(tables: &T, datagram: &Datagram) -> Known {
    let mut course = Course { service: 0, instance: 0, flow: 0, to_client: 0, seen: tables.ticks() };
    let what = match direction::<I, T>(tables, datagram) {
        Some(Target::Service(service)) => {
            course.service = service;
            follow(tables, datagram, &mut course)
        }
        Some(Target::Instance(instance)) => {
            course.instance = instance;
            answers(tables, datagram, &mut course)
        }
        Some(Target::Vip { .. }) | None => None,
    };
    Known { what: what.unwrap_or(What::Nothing), course }
}

#[inline(always)]
fn direction<I: Outer, T: Tables>(tables: &T, datagram: &Datagram) -> Option<Target> {
    let port = |port| Endpoint::pack_port(port, datagram.protocol, I::IS_IPV6);
    let to = tables.target(&datagram.destination, port(datagram.destination_port));
    if let Some(target @ Target::Service(_)) = Target::unpack(to) {
        return Some(target);
    }
    let from = tables.target(&datagram.source, port(datagram.source_port));
    Target::unpack(from).filter(|target| matches!(target, Target::Instance(_)))
}

#[inline(always)]
fn follow<T: Tables>(tables: &T, datagram: &Datagram, course: &mut Course) -> Option<What> {
    let key = Key::new(datagram.source, datagram.source_port, course.service);
    let Some(id) = tables.flow_of(&key.client, key.origin) else { return Some(What::Begins) };
    let flow = tables.flows(id.bucket)?.flows.get(id.place as usize)?;
    let instance = tables.instance(flow.instance())?;
    let mode = Mode::of(tables.service(course.service)?.mode.get())?;
    course.instance = flow.instance();
    course.flow = id.pack();
    Some(match lifetime::judge(tables, flow, instance, mode, datagram) {
        lifetime::Judgement::GoesOn => What::GoesOn,
        lifetime::Judgement::GivenUp => What::GivenUp,
        lifetime::Judgement::Over => {
            table::retire(tables, id, key.hash(tables.settings()?));
            What::Begins
        }
    })
}

#[inline(always)]
fn answers<T: Tables>(tables: &T, datagram: &Datagram, course: &mut Course) -> Option<What> {
    let (flow, id) = answer::flow_of(tables, datagram, course.instance)?;
    course.service = flow.service();
    course.flow = id.pack();
    course.to_client = 1;
    Some(What::Answers)
}

/// The stored flow of a datagram, unless another one has taken its place since the first fragment.
#[inline(always)]
fn flow_of<'a, T: Tables>(tables: &'a T, course: &Course) -> Option<&'a Flow> {
    if course.flow == 0 {
        return None;
    }
    let id = FlowId::unpack(course.flow);
    let bucket = tables.flows(id.bucket)?;
    let (tag, flow) = (bucket.tags.get(id.place as usize)?, bucket.flows.get(id.place as usize)?);
    let is_it = tag.get() & TAG_STATE == TAG_LIVE
        && flow.service() == course.service
        && flow.instance() == course.instance
        && course.seen.wrapping_sub(flow.born.get()) <= u32::MAX / 2;
    if is_it { Some(flow) } else { None }
}

/// What is to be done with a fragment.
struct Step {
    course: Course,
    reason: PacketReason,
    /// Where its transport header lies; 0 if it has none.
    transport: usize,
}

/// Makes a fragment one to the other side.
#[inline(never)]
fn send<I: Outer, P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    datagram: &Datagram,
    step: &Step,
) -> Outcome {
    const GONE: Outcome = Outcome::drop(PacketReason::L4FragmentUnknown);
    let &Step { ref course, reason, transport } = step;
    let first = |ports| if transport == 0 { None } else { Some((ports, transport, datagram.protocol)) };
    let flow = flow_of(tables, course);
    let (Some(settings), Some(service), Some(instance)) =
        (tables.settings(), tables.service(course.service), tables.instance(course.instance))
    else {
        return GONE;
    };
    if course.to_client != 0 {
        let Some(flow) = flow else { return GONE };
        let interface = flow.interface.get().into();
        let Some(link) = tables.link(interface) else { return GONE };
        if exceeds(datagram.length, link.mtu.get()) {
            return Outcome::drop(PacketReason::TooLongUnanswered);
        }
        let ports = join(service.port.get() as u16, flow.client_port());
        let way = rewrite::way_back(flow, link);
        if !rewrite::translate_fragment::<I, P>(packet, way, &service.address, &flow.client, first(ports)) {
            return Outcome::drop(PacketReason::WriteFailed);
        }
        let reason = lifetime::came_from_instance(tables, flow, datagram, settings.now.get(), reason);
        return Outcome::redirect(interface, reason);
    }
    let Some(mode) = Mode::of(service.mode.get()) else { return GONE };
    let index = instance.next_hop.get();
    let Some(hop) = tables.next_hop(index).filter(|hop| hop.interface.get() != 0) else {
        return Outcome::drop(PacketReason::L4NoRoute);
    };
    if exceeds(datagram.length + encapsulate::overhead::<I>(mode), hop.mtu.get()) {
        // Its sender would believe no MTU: it has fragmented the packet, or a router has.
        return Outcome::drop(PacketReason::TooLongUnanswered);
    }
    let done = match mode {
        Mode::DsrL2 => rewrite::link_only(packet, hop),
        Mode::DsrIpip => {
            encapsulate::wrap::<I, P>(packet, datagram.length, instance, hop, settings.tunnel_mark.get())
        }
        Mode::Snat | Mode::Transparent => {
            let Some(flow) = flow else { return GONE };
            let (seen, port) = match mode {
                Mode::Snat => (&instance.source, flow.source_port()),
                _ => (&flow.client, flow.client_port()),
            };
            let ports = join(port, instance.port.get() as u16);
            let link = rewrite::link_to(hop);
            rewrite::translate_fragment::<I, P>(packet, link, seen, &instance.address, first(ports))
        }
    };
    if !done {
        return Outcome::drop(PacketReason::WriteFailed);
    }
    let mut outcome = Outcome::forward(index, hop, reason);
    if let Some(flow) = flow
        && reason != PacketReason::L4Placed
    {
        outcome.reason = lifetime::came_from_client(tables, flow, datagram, settings.now.get(), reason);
    }
    outcome
}

/// An MTU of 0 is not known.
#[inline(always)]
const fn exceeds(length: u32, mtu: u32) -> bool {
    mtu != 0 && length > mtu
}
