//! The arithmetic between a flow's two sequence spaces, seen from one packet.

use super::family::Family;
use super::parse::Segment;
use crate::abi::flow::{FLAG_IPV6, FLAG_LIVE, Flow, Progress, Translation};
use crate::abi::key::Side;

/// One packet's way through its flow.
#[derive(Debug)]
pub struct Passage<'a> {
    pub translation: &'a Translation,
    /// The sender's own progress.
    pub sender: &'a Progress,
    /// The other side's progress.
    pub receiver: &'a Progress,
    pub traits: u32,
    /// From the sender's own space to the receiver's view of it.
    pub seq_delta: u32,
    /// The other direction's `seq_delta`: acknowledgements and SACK edges go back by it.
    pub ack_delta: u32,
    /// `segment.seq` and `segment.end()` as the receiver sees them.
    pub seq: u32,
    pub end: u32,
}

impl<'a> Passage<'a> {
    #[inline(always)]
    pub fn new(flow: &'a Flow, side: Side, segment: &Segment) -> Self {
        let (own, other) = match side {
            Side::Client => (0, 1),
            Side::Instance => (1, 0),
        };
        let translation = &flow.translations[own];
        let seq_delta = translation.seq_delta.get();
        Self {
            translation,
            sender: &flow.progress[own],
            receiver: &flow.progress[other],
            traits: translation.traits.get(),
            seq_delta,
            ack_delta: flow.translations[other].seq_delta.get(),
            seq: segment.seq.wrapping_add(seq_delta),
            end: segment.end().wrapping_add(seq_delta),
        }
    }

    /// Whether the slot holds a flow of this family.
    #[inline(always)]
    pub fn is_live_in<I: Family>(&self) -> bool {
        self.traits & (FLAG_LIVE | FLAG_IPV6) == I::LIVE
    }

    #[inline(always)]
    pub fn has(&self, flag: u32) -> bool {
        self.traits & flag != 0
    }

    #[inline(always)]
    pub fn next_hop(&self) -> u32 {
        self.translation.next_hop.get()
    }

    /// The receiver's acknowledgement number as the sender's leg knows it.
    #[inline(always)]
    pub fn ack(&self, ack: u32) -> u32 {
        ack.wrapping_sub(self.ack_delta)
    }

    /// The window field for the other leg, where another scale was announced (RFC 7323 §2.2): rounded down, clamped to
    /// the field, and never turned from open to closed, which would stall the receiver.
    #[inline(always)]
    pub fn window(&self, window: u16) -> u16 {
        let bytes = self.window_bytes(window);
        let our_scale = self.traits >> 16 & 15;
        let scaled = bytes >> our_scale;
        if scaled > u16::MAX as u32 {
            u16::MAX
        } else if scaled == 0 && window != 0 {
            1
        } else {
            scaled as u16
        }
    }

    /// The window that the sender opens, in bytes.
    #[inline(always)]
    pub fn window_bytes(&self, window: u16) -> u32 {
        (window as u32) << (self.traits >> 8 & 15)
    }
}
