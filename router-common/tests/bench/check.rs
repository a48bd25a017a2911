//! What must hold for any packet in any flow.

use router_common::abi::flow::{FLAG_DIRECT, Flow};
use router_common::abi::reason::PacketReason;
use router_common::path::memory::{Frame, MemoryFlows, StoppedClock};
use router_common::path::{self, Verdict};

use super::error::icmp_sum;
use super::ip::Ip;
use super::model::{self, Marks, SLACK, before, not_behind};
use super::{NOW, checksum_errors};

/// Carries one packet. Returns what came out.
pub fn carry(table: &MemoryFlows, frame: &[u8]) -> (Verdict, Vec<u8>) {
    let mut packet = Frame(frame.to_vec());
    let verdict = path::carry(&mut packet, table, &StoppedClock(NOW));
    (verdict, packet.0)
}

/// Carries one packet and compares everything with the model.
pub fn carry_as_the_model_says(table: &MemoryFlows, frame: &[u8]) -> (Verdict, Vec<u8>) {
    let expected = model::expect(table, frame, NOW);
    let marks_before = Marks::of(&table.flows[0]);
    let (verdict, after) = carry(table, frame);
    assert_eq!(verdict, expected.verdict);
    assert_eq!(after, expected.frame);
    assert_eq!(Marks::of(&table.flows[0]), expected.marks.unwrap_or(marks_before));
    match verdict {
        Verdict::Pass(_) | Verdict::Drop(_) | Verdict::Take(_) => {
            assert_eq!(after, frame, "what is not carried does not change")
        }
        Verdict::Redirect { .. } | Verdict::Resolve { .. } => {
            if is_whole_tcp(frame) {
                assert_eq!(checksum_errors(&after), checksum_errors(frame));
            }
        }
        Verdict::Report { reason: PacketReason::TooLong, .. } => {
            let ip = Ip::of(&after).expect("the answer is IP");
            assert_eq!((ip.header_error(&after), icmp_sum(ip, &after)), (0, 0));
        }
        Verdict::Report { .. } => {
            let ip = Ip::of(frame).expect("it was carried");
            let errors = |frame: &[u8]| (ip.header_error(frame), icmp_sum(ip, frame));
            assert_eq!(errors(&after), errors(frame));
        }
    }
    (verdict, after)
}

fn is_whole_tcp(frame: &[u8]) -> bool {
    let is_fragment = frame[12..14] == [8, 0] && frame[20] & 0x3f | frame[21] != 0;
    !is_fragment && Ip::of(frame).is_some_and(|ip| frame[ip.protocol()] == 6)
}

/// After `frame` has been carried: no mark has moved back, or to where nothing can be, or by a packet from outside of the window.
pub fn marks_moved_rightly(flow: &Flow, frame: &[u8], old: &[Marks; 2]) {
    let new = Marks::of(flow);
    for (own, other) in [(0, 1), (1, 0)] {
        let (translation, back) = (&flow.translations[own], &flow.translations[other]);
        let own_delta = translation.seq_delta.get();
        if new[own].max_ack != old[own].max_ack {
            assert!(before(old[own].max_ack, new[own].max_ack));
            let sent = old[other].max_seq.wrapping_add(back.seq_delta.get()).wrapping_add(SLACK);
            let direct = translation.traits.get() & FLAG_DIRECT != 0;
            let by_us = !direct && not_behind(new[own].max_ack, translation.ack_cut.get());
            assert!(not_behind(new[own].max_ack, sent) || by_us);
        }
        if new[own].window_edge != old[own].window_edge {
            assert!(before(old[own].window_edge, new[own].window_edge));
        }
        // What the receiver has allowed, in the sender's own space.
        let edge = old[other].window_edge.wrapping_add(SLACK).wrapping_sub(own_delta);
        if new[own].max_seq != old[own].max_seq {
            assert!(before(old[own].max_seq, new[own].max_seq));
            assert!(not_behind(new[own].max_seq, edge));
        }
        if new[own].fin_seen > old[own].fin_seen {
            assert!(not_behind(new[own].fin_end, edge));
            assert!(not_behind(old[other].max_ack.wrapping_sub(own_delta), new[own].fin_end));
        }
        if new[own].rst_seen > old[own].rst_seen {
            let ip = Ip::of(frame).expect("it was carried");
            // An IPv6 fragment has 8 bytes more.
            let at = ip.tcp() + if frame[ip.protocol()] == 44 { 12 } else { 4 };
            let seq = u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
            let wanted_by_receiver = new[other].max_ack.wrapping_sub(own_delta);
            assert!(seq == old[own].max_seq || seq == wanted_by_receiver);
        }
    }
}
