//! How far each sender has come, and whether the flow has ended.
//!
//! Only packets that fit what both sides have shown move the marks: a blind sender who guesses the tuple must not be able to end a
//! flow (RFC 5961). The packet is translated all the same, and the receiver judges it.

use super::parse::Segment;
use super::sequence::Passage;
use crate::abi::flow::{FLAG_DIRECT, Progress};
use crate::wire::tcp::{ACK, FIN, RST, SYN, seq_before, seq_before_eq};

/// How far beyond a receiver's window, or beyond what this path has seen sent, a number may lie and still be believed. The marks
/// are those of the packets that passed here; the ends may be a little ahead, and a mark must not get stuck behind them.
/// A blind guess of a 32-bit number hits this much once in 4,096 attempts.
const SLACK: u32 = 1 << 20;

/// A SYN on the tuple of a flow whose both sides have finished, or that was reset.
#[inline(always)]
pub fn ended(passage: &Passage<'_>, segment: &Segment) -> bool {
    if segment.flags & (SYN | ACK) != SYN {
        return false;
    }
    let (sender, receiver) = (passage.sender, passage.receiver);
    if sender.rst_seen.get() | receiver.rst_seen.get() != 0 {
        return true;
    }
    sender.fin_seen.get() & receiver.fin_seen.get() != 0
}

/// Moves the sender's acknowledgement mark. An acknowledgement counts only if it is of something that was sent: by the
/// other side through this path, or by our socket while there is one. (A cut that was passed long ago seems to lie ahead again after 2 GiB.)
///
/// A window may be opened without anything new being acknowledged, and what then fills it is to be believed.
#[inline(always)]
pub fn acknowledged(passage: &Passage<'_>, segment: &Segment) {
    if !segment.has(ACK) {
        return;
    }
    let sent = passage.receiver.max_seq.get().wrapping_add(passage.ack_delta);
    let by_socket =
        !passage.has(FLAG_DIRECT) && seq_before_eq(segment.ack, passage.translation.ack_cut.get());
    let acceptable = by_socket || seq_before_eq(segment.ack, sent.wrapping_add(SLACK));
    if seq_before_eq(passage.sender.max_ack.get(), segment.ack) && acceptable {
        passage.sender.max_ack.set(segment.ack);
        let edge = segment.ack.wrapping_add(passage.window_bytes(segment.window));
        if seq_before(passage.sender.window_edge.get(), edge) {
            passage.sender.window_edge.set(edge);
        }
    }
}

/// Records that something was sent on; of a fragment without TCP header nothing more is to be noted.
#[inline(always)]
pub fn sent_on(sender: &Progress, length: u32, now: u64) {
    sender.last_seen.set(now);
    sender.packets.set(sender.packets.get().wrapping_add(1));
    sender.bytes.set(sender.bytes.get().wrapping_add(length as u64));
}

/// Records a packet that was translated.
#[inline(always)]
pub fn translated(passage: &Passage<'_>, segment: &Segment, now: u64) {
    let sender = passage.sender;
    sent_on(sender, segment.length, now);
    acknowledged(passage, segment);

    let end = segment.end();
    let highest = sender.max_seq.get();
    if segment.has(RST) {
        // An abort carries the sender's next sequence number, a closed port the one that was acknowledged to it. Anything else in the
        // window is challenged by the receiver (RFC 5961 §3.2), and an honest sender then repeats it exactly.
        if segment.seq == highest || passage.seq == passage.receiver.max_ack.get() {
            sender.rst_seen.set(1);
        }
        return;
    }
    // In the receiver's space: not behind the window that it has opened.
    let in_window = seq_before_eq(passage.end, passage.receiver.window_edge.get().wrapping_add(SLACK));
    if !in_window || segment.has(SYN) {
        return;
    }
    if seq_before(highest, end) {
        sender.max_seq.set(end);
        let fin_end = sender.fin_end.get();
        let believed = seq_before_eq(fin_end.wrapping_add(passage.seq_delta), passage.receiver.max_ack.get());
        if sender.fin_seen.get() != 0 && seq_before(fin_end, end) && !believed {
            // Nothing follows a FIN: that one was forged. Unless the receiver has acknowledged it; then this is.
            sender.fin_seen.set(0);
        }
    }
    if segment.has(FIN) && seq_before_eq(passage.receiver.max_ack.get(), passage.end) {
        sender.fin_end.set(end);
        sender.fin_seen.set(1);
    }
}
