//! How far a flow is: the daemon removes it when it has ended or has been idle for too long.
//!
//! Sequence numbers are not followed: with direct server return half of a connection never passes here. So an ending is only
//! believed until something else comes: a forged reset is taken back by the next packet of the flow.

use super::datagram::Datagram;
use super::tables::Tables;
use crate::abi::balance::{
    CLIENT_FIN, ESTABLISHED, Flow, INSTANCE_FIN, Instance, Mode, REPLIED, RESET, TAKES_FLOWS, UNREACHABLE,
    closed,
};
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

/// Records a packet from the client.
#[inline(always)]
pub fn came_from_client<T: Tables>(tables: &T, flow: &Flow, datagram: &Datagram, now: u32) {
    flow.bytes_to_instance.set(flow.bytes_to_instance.get().wrapping_add(datagram.length as u64));
    let more = if datagram.flags & SYN == 0 { ESTABLISHED } else { 0 };
    came(tables, flow, datagram, now, more, CLIENT_FIN);
}

/// Records a packet from the instance.
#[inline(always)]
pub fn came_from_instance<T: Tables>(tables: &T, flow: &Flow, datagram: &Datagram, now: u32) {
    flow.bytes_to_client.set(flow.bytes_to_client.get().wrapping_add(datagram.length as u64));
    came(tables, flow, datagram, now, REPLIED, INSTANCE_FIN);
}

#[inline(always)]
fn came<T: Tables>(tables: &T, flow: &Flow, datagram: &Datagram, now: u32, seen: u32, fin: u32) {
    if flow.last_seen.get() != now {
        flow.last_seen.set(now);
    }
    let ending = if datagram.flags & FIN != 0 { fin } else { 0 };
    if datagram.flags & RST != 0 {
        change(tables, flow, RESET, 0);
    } else {
        change(tables, flow, seen | ending, RESET);
    }
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
