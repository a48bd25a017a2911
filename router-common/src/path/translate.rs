//! The packet becomes a packet of the other leg.
//!
//! Options come first, since only they can still be refused; the checksum comes last, because the kernel's helper for it
//! invalidates everything known about the packet.

use super::Verdict;
use super::family::Family;
use super::options;
use super::parse::{Headers, Segment};
use super::ports::{Clock, Packet};
use super::sequence::Passage;
use crate::abi::next_hop::NextHop;
use crate::abi::reason::PacketReason;
use crate::wire::checksum::Diff;
use crate::wire::tcp::ACK;

/// Rewrites all headers. An error is the verdict on a packet that could not be rewritten.
#[inline(always)]
pub fn translate<I: Family, P: Packet, C: Clock>(
    packet: &mut P,
    passage: &Passage<'_>,
    segment: &Segment,
    next_hop: &NextHop,
    clock: &C,
) -> Result<(), Verdict> {
    let mut rest = Diff::default();
    options::translate(packet, passage, segment, clock, &mut rest)?;

    let translation = passage.translation;
    let addresses = Diff::from_folded(translation.address_diff.get());
    let Some(Headers { ethernet, ip, tcp }) = packet.view_mut::<Headers<I>>(0) else {
        return Err(Verdict::Drop(PacketReason::WriteFailed));
    };
    for (word, new) in ethernet.addresses.iter_mut().zip(&next_hop.ethernet) {
        word.set_raw(new.get());
    }

    let header = ip.readdress(translation, addresses);
    let ports = translation.ports.get();
    rest.replace(tcp.ports.raw(), ports);
    tcp.ports.set_raw(ports);
    let seq = passage.seq.to_be();
    rest.replace(tcp.seq.raw(), seq);
    tcp.seq.set_raw(seq);
    if segment.has(ACK) {
        let ack = passage.ack(segment.ack).to_be();
        rest.replace(tcp.ack.raw(), ack);
        tcp.ack.set_raw(ack);
    }
    let window = passage.window(segment.window).to_be();
    rest.replace16(tcp.window.raw(), window);
    tcp.window.set_raw(window);

    if packet.fix_checksum(Headers::<I>::TCP_CHECKSUM, addresses, rest, header) {
        Ok(())
    } else {
        Err(Verdict::Drop(PacketReason::WriteFailed))
    }
}
