//! Whose bytes are they? Until the daemon closes its two sockets, some packets belong to them.
//!
//! Bytes that our kernel has acknowledged to one side and the other side has not yet acknowledged are in custody: only
//! our socket can send them again, so only our socket may be told that they arrived. Both cuts are compared afresh for every packet. A remembered
//! "done" lost uploads when bytes arrived late.
//!
//! Where a flow began without sockets (`binding`), a stash takes their place: the packet goes on to the program that has it.

use super::Verdict;
use super::parse::Segment;
use super::sequence::Passage;
use crate::abi::flow::{FLAG_DIRECT, FLAG_STASH};
use crate::abi::reason::PacketReason;
use crate::wire::tcp::{SYN, seq_before, seq_before_eq};

/// Who answers for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// The other side; the packet is to be translated.
    OtherSide,
    /// Our socket; the packet takes this verdict.
    Ours(Verdict),
}

#[inline(always)]
pub fn keeper(passage: &Passage<'_>, segment: &Segment) -> Keeper {
    if passage.has(FLAG_DIRECT) {
        return Keeper::OtherSide;
    }
    let stashed = passage.has(FLAG_STASH);
    if stashed && segment.has(SYN) {
        // An instance that has not got the stash repeats its answer to our SYN.
        return Keeper::Ours(Verdict::Pass(PacketReason::CustodyRetransmit));
    }
    let seq_cut = passage.translation.seq_cut.get();
    let end = segment.end();
    // The head that our socket acknowledged was replaced by another one. Until the other side has all of that, the
    // original bytes must not be translated into its place.
    if end != segment.seq && seq_before(segment.seq, seq_cut) {
        let replaced_end = seq_cut.wrapping_add(passage.seq_delta);
        if seq_before(passage.receiver.max_ack.get(), replaced_end) {
            return Keeper::Ours(if stashed || seq_before_eq(end, seq_cut) {
                Verdict::Pass(PacketReason::CustodyRetransmit)
            } else {
                Verdict::Drop(PacketReason::StraddlesHead)
            });
        }
    }
    if segment.is_pure_ack() && seq_before_eq(segment.ack, passage.translation.ack_cut.get()) {
        return Keeper::Ours(Verdict::Pass(PacketReason::CustodyAck));
    }
    Keeper::OtherSide
}
