//! How far a flow is: the daemon removes it when it has ended or has been idle for too long.
//!
//! With direct server return half of a connection never passes here, so an end is a guess even where its number fits ([`sequence`]): the next packet of a
//! flow takes a reset back.

use super::datagram::Datagram;
use super::sequence;
use super::tables::Tables;
use crate::abi::balance::{
    CLIENT_FIN, ESTABLISHED, Flow, INSTANCE_FIN, Instance, Mode, REPLIED, RESET, TAKES_FLOWS, UNREACHABLE,
    closed,
};
use crate::abi::reason::PacketReason;
use crate::abi::shared::Shared16;
use crate::wire::tcp::{FIN, RST, SYN};

/// What a packet from a client finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    GoesOn,
    /// Its instance is down: the client is to hear of it.
    GivenUp,
    /// This packet begins another flow on the same tuple, and not there.
    Over,
}

#[inline(always)]
pub fn judge<T: Tables>(
    tables: &T,
    flow: &Flow,
    instance: &Instance,
    mode: Mode,
    datagram: &Datagram,
) -> Judgement {
    if instance.flags.get() & UNREACHABLE != 0 {
        if !datagram.is_tcp() || datagram.opens() {
            return Judgement::Over;
        }
        change(tables, flow, RESET, 0);
        return Judgement::GivenUp;
    }
    if datagram.opens() && has_ended(flow.state.get(), mode) {
        if instance.flags.get() & TAKES_FLOWS == 0 {
            return Judgement::Over;
        }
        // The instance may still be in TIME_WAIT, where the same tuple is welcome with a later timestamp (RFC 6191).
        let state = flow.state.get();
        if tables.swap_if(&flow.state, state, 0) == state {
            let (now, before) = (tables.ticks(), flow.born.get());
            flow.born.set(if now == before { now.wrapping_add(1) } else { now });
        }
    }
    Judgement::GoesOn
}

/// Whether a connection is over as far as it can be seen here.
#[inline(always)]
pub const fn has_ended(state: u32, mode: Mode) -> bool {
    closed(state) || !mode.sees_answers() && state & CLIENT_FIN != 0
}

/// Records a packet that goes on to the instance. Returns the reason by which it is counted.
#[inline(never)]
pub fn came_from_client<T: Tables>(
    tables: &T,
    flow: &Flow,
    datagram: &Datagram,
    now: u32,
    reason: PacketReason,
) -> PacketReason {
    flow.bytes_to_instance.set(flow.bytes_to_instance.get().wrapping_add(datagram.length as u64));
    let established = if datagram.flags & SYN == 0 { ESTABLISHED } else { 0 };
    let seen = Seen { state: established, fin: CLIENT_FIN, is_first: false };
    came(tables, flow, &flow.client_next, datagram, now, seen, reason)
}

/// The same of one that goes on to the client.
#[inline(never)]
pub fn came_from_instance<T: Tables>(
    tables: &T,
    flow: &Flow,
    datagram: &Datagram,
    now: u32,
    reason: PacketReason,
) -> PacketReason {
    flow.bytes_to_client.set(flow.bytes_to_client.get().wrapping_add(datagram.length as u64));
    let seen = Seen { state: REPLIED, fin: INSTANCE_FIN, is_first: flow.state.get() & REPLIED == 0 };
    came(tables, flow, &flow.instance_next, datagram, now, seen, reason)
}

/// What a packet says of its side.
struct Seen {
    state: u32,
    /// The mark of its FIN.
    fin: u32,
    /// Nothing has come of it before.
    is_first: bool,
}

#[inline(always)]
fn came<T: Tables>(
    tables: &T,
    flow: &Flow,
    side: &Shared16,
    datagram: &Datagram,
    now: u32,
    seen: Seen,
    reason: PacketReason,
) -> PacketReason {
    // Later fragments have no header.
    if datagram.is_tcp() && datagram.header != 0 {
        if seen.is_first || datagram.flags & SYN != 0 && flow.state.get() & ESTABLISHED == 0 {
            side.set(sequence::piece(datagram.next));
        } else if datagram.flags & RST == 0 {
            sequence::advance(side, datagram.next);
        }
        if datagram.flags & (FIN | RST) != 0 && !sequence::fits(side, datagram.next) {
            return PacketReason::L4EndingOutOfWindow;
        }
    }
    if flow.last_seen.get() != now {
        flow.last_seen.set(now);
    }
    if datagram.flags & RST != 0 {
        change(tables, flow, RESET, 0);
    } else {
        let ending = if datagram.flags & FIN != 0 { seen.fin } else { 0 };
        change(tables, flow, seen.state | ending, RESET);
    }
    reason
}

/// Both sides' packets may be at it at the same moment, on different CPUs.
#[inline(always)]
fn change<T: Tables>(tables: &T, flow: &Flow, set: u32, clear: u32) {
    let mut state = flow.state.get();
    for _ in 0..2 {
        let wanted = state & !clear | set;
        if wanted == state {
            return;
        }
        let before = tables.swap_if(&flow.state, state, wanted);
        if before == state {
            return;
        }
        state = before;
    }
}
