//! A packet from a client to a VIP: it follows its flow, or begins one.

use super::Outcome;
use super::datagram::{Datagram, join};
use super::encapsulate::{self, Outer};
use super::place::Placement;
use super::table::{self, Key};
use super::tables::Tables;
use super::{lifetime, rewrite, tunnel};
use crate::abi::balance::{Flow, Instance, Mode};
use crate::abi::reason::PacketReason;
use crate::path::ports::Packet;

// In the kernel each of the larger steps is a function of its own: the stack holds 512 bytes, and steps that follow each other then share them.

#[inline(always)]
pub fn carry<I: Outer, P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    datagram: &Datagram,
    index: u32,
) -> Outcome {
    if let Some(outcome) = follow::<I, P, T>(packet, tables, datagram, index) {
        return outcome;
    }
    match tables.begin(datagram, index) {
        Ok(placement) => deliver_first::<I, P, T>(packet, tables, datagram, index, &placement),
        Err(outcome) => outcome,
    }
}

/// A packet of a flow that is stored. `None` if it begins one.
#[inline(never)]
fn follow<I: Outer, P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    datagram: &Datagram,
    index: u32,
) -> Option<Outcome> {
    let settings = tables.settings()?;
    let key = Key::new(datagram.source, datagram.source_port, index);
    let hash = key.hash(settings);
    let (flow, id) = table::find::<I, T>(tables, settings.buckets.get(), &key, hash)?;
    let instance = tables.instance(flow.instance())?;
    let mode = Mode::of(tables.service(index)?.mode.get())?;
    match lifetime::judge(tables, flow, instance, mode, datagram) {
        lifetime::Judgement::GoesOn => {}
        lifetime::Judgement::GivenUp => return Some(Outcome::pass(PacketReason::L4InstanceDown)),
        lifetime::Judgement::Over => {
            table::retire(tables, id, hash);
            return None;
        }
    }
    if mode.sees_answers() {
        rewrite::learn_way_back(packet, tables, flow);
    }
    let reason = PacketReason::L4Forwarded;
    let mut outcome = deliver::<I, P, T>(packet, tables, datagram, mode, instance, Some(flow), reason);
    if outcome.reason == reason {
        outcome.reason = lifetime::came_from_client(tables, flow, datagram, settings.now.get(), reason);
    }
    Some(outcome)
}

/// The first packet of a flow, or one of a flow that is not stored.
#[inline(never)]
fn deliver_first<I: Outer, P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    datagram: &Datagram,
    index: u32,
    placement: &Placement,
) -> Outcome {
    let Placement { instance, flow, reason } = *placement;
    let (Some(instance), Some(service)) = (tables.instance(instance), tables.service(index)) else {
        return Outcome::pass(PacketReason::L4Unavailable);
    };
    let Some(mode) = Mode::of(service.mode.get()) else { return Outcome::pass(PacketReason::L4NoService) };
    let flow = flow.and_then(|id| tables.flows(id.bucket)?.flows.get(id.place as usize));
    if mode.sees_answers()
        && let Some(flow) = flow
    {
        rewrite::learn_way_back(packet, tables, flow);
    }
    deliver::<I, P, T>(packet, tables, datagram, mode, instance, flow, reason)
}

/// Makes it a packet to the instance.
#[inline(always)]
fn deliver<I: Outer, P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    datagram: &Datagram,
    mode: Mode,
    instance: &Instance,
    flow: Option<&Flow>,
    reason: PacketReason,
) -> Outcome {
    let index = instance.next_hop.get();
    let Some(next_hop) = tables.next_hop(index).filter(|next_hop| next_hop.interface.get() != 0) else {
        return Outcome::drop(PacketReason::L4NoRoute);
    };
    let overhead = encapsulate::overhead::<I>(mode);
    let mtu = tunnel::mtu::<I, P, T>(packet, tables, mode, instance, next_hop, datagram.length + overhead);
    if !datagram.fits::<I, P>(packet, overhead, mtu) {
        return Outcome::tell(mtu.saturating_sub(overhead));
    }
    let done = match (mode, flow) {
        (Mode::Snat, Some(flow)) => {
            let ports = join(flow.source_port(), instance.port.get() as u16);
            let link = rewrite::link_to(next_hop);
            rewrite::translate::<I, P>(packet, datagram, link, &instance.source, &instance.address, ports)
        }
        (Mode::Transparent, Some(flow)) => {
            let ports = join(datagram.source_port, instance.port.get() as u16);
            let link = rewrite::link_to(next_hop);
            rewrite::translate::<I, P>(packet, datagram, link, &flow.client, &instance.address, ports)
        }
        (Mode::DsrL2, _) => rewrite::link_only(packet, next_hop),
        (Mode::DsrIpip, _) => {
            let mark = tables.settings().map_or(0, |settings| settings.tunnel_mark.get());
            encapsulate::wrap::<I, P>(packet, datagram.length, instance, next_hop, mark)
        }
        // Where answers are translated here, nothing goes without a flow.
        (Mode::Snat | Mode::Transparent, None) => false,
    };
    if done { Outcome::forward(index, next_hop, reason) } else { Outcome::drop(PacketReason::WriteFailed) }
}
