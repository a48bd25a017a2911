//! A packet from an instance: it may be an answer to a client.

use super::Outcome;
use super::datagram::{Datagram, join};
use super::table::{self, ReplyKey};
use super::tables::Tables;
use super::{lifetime, rewrite};
use crate::abi::balance::{Flow, FlowId};
use crate::abi::reason::PacketReason;
use crate::path::ports::Packet;
use crate::path::reporting::Reporting;
use crate::wire::ipv6::Ipv6;

/// `None` if no flow has this tuple: then it is the stack's, or belongs to a flow that began in user space.
#[inline(never)]
pub fn carry<I: Reporting, P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    datagram: &Datagram,
    index: u32,
) -> Option<Outcome> {
    let settings = tables.settings()?;
    let (flow, _) = flow_of(tables, datagram, index)?;
    let service = tables.service(flow.service())?;
    let interface = flow.interface.get().into();
    if !tables.sends_by(interface) {
        return None;
    }
    let link = tables.link(interface)?;
    let mtu = link.mtu.get();
    if !datagram.fits::<I, P>(packet, 0, mtu) {
        return Some(Outcome::tell(mtu));
    }
    let ports = join(service.port.get() as u16, flow.client_port());
    let way = rewrite::way_back(flow, link);
    if !rewrite::translate::<I, P>(packet, datagram, way, &service.address, &flow.client, ports) {
        return Some(Outcome::drop(PacketReason::WriteFailed));
    }
    let now = settings.now.get();
    let reason = lifetime::came_from_instance(tables, flow, datagram, now, PacketReason::L4Answered);
    Some(Outcome::redirect(interface, reason))
}

/// The flow that a packet from the instance of this index belongs to.
#[inline(always)]
pub fn flow_of<'a, T: Tables>(tables: &'a T, datagram: &Datagram, index: u32) -> Option<(&'a Flow, FlowId)> {
    let id = tables.answered(datagram, index)?;
    Some((tables.flows(id.bucket)?.flows.get(id.place as usize)?, id))
}

/// Where that flow lies. Addresses are compared whole: all but the first word of those of IPv4 are 0.
#[inline(always)]
pub fn find<T: Tables>(tables: &T, datagram: &Datagram, index: u32) -> Option<FlowId> {
    let instance = tables.instance(index)?;
    let ours = table::same::<Ipv6>(&instance.source, &datagram.destination);
    let to = if ours { [0; 4] } else { datagram.destination };
    let key = ReplyKey { to, port: datagram.destination_port.into(), instance: index };
    let is = |flow: &Flow| {
        flow.instance() == index
            && match flow.source_port() {
                0 => {
                    flow.client_port() == datagram.destination_port
                        && table::same::<Ipv6>(&flow.client, &datagram.destination)
                }
                port => ours && port == datagram.destination_port,
            }
    };
    table::find_reply(tables, tables.settings()?, &key, is)
}
