//! What a client has sent behind its head before the instance had answered: sent on by the daemon, as the programs would have translated it.
//!
//! The client holds it until the instance has acknowledged it, so whatever is lost here comes again by itself.

use router_common::abi::binding::Stash;
use router_common::abi::flow::{FLAG_IPV6, FLAG_TIMESTAMPS, Flow};
use router_common::abi::key::Side;
use router_common::abi::next_hop::NextHop;
use router_common::path::binding::own::{Content, Own, Sending};
use router_common::wire::bytes_of;
use router_common::wire::checksum;
use router_common::wire::ipv4::Ipv4;
use router_common::wire::ipv6::Ipv6;
use router_common::wire::tcp::{ACK, OPTION_NOP, OPTION_TIMESTAMPS, PSH, TIMESTAMPS_LEN, seq_before};

use super::Segment;

/// Words of `NOP NOP timestamps`.
const WORDS: usize = 3;

/// Whole frames with at most so many bytes of data each. None of what the instance got with the head.
pub fn frames(
    flow: &Flow,
    stash: &Stash,
    next_hop: &NextHop,
    segment: &Segment,
    longest: usize,
) -> Vec<Vec<u8>> {
    let head_end = flow.translation(Side::Client).seq_cut.get();
    let known = if seq_before(segment.seq, head_end) { head_end.wrapping_sub(segment.seq) } else { 0 };
    let bytes = segment.payload.get(known as usize..).unwrap_or_default();
    let seq = segment.seq.wrapping_add(known);
    let build = if flow.translation(Side::Client).traits.get() & FLAG_IPV6 != 0 {
        build::<Ipv6>
    } else {
        build::<Ipv4>
    };
    let offsets = (0..bytes.len()).step_by(longest.max(1));
    offsets
        .zip(bytes.chunks(longest.max(1)))
        .map(|(offset, bytes)| build(flow, stash, next_hop, segment, seq.wrapping_add(offset as u32), bytes))
        .collect()
}

fn build<I: Sending>(
    flow: &Flow,
    stash: &Stash,
    next_hop: &NextHop,
    segment: &Segment,
    seq: u32,
    bytes: &[u8],
) -> Vec<u8> {
    let to_instance = flow.translation(Side::Client);
    let traits = to_instance.traits.get();
    let options = match segment.timestamp {
        Some(clock) if traits & FLAG_TIMESTAMPS != 0 => {
            let clock = clock.wrapping_add(flow.progress(Side::Client).timestamp_delta.get());
            let kind = u32::from_ne_bytes([OPTION_NOP, OPTION_NOP, OPTION_TIMESTAMPS, TIMESTAMPS_LEN]);
            [kind, clock.to_be(), stash.instance_timestamp.get().to_be()]
        }
        _ => [u32::from_ne_bytes([OPTION_NOP; 4]); WORDS],
    };
    let window = u32::from(segment.window) << (segment.embryo.scale & 15) >> (traits >> 16 & 15);
    let content = Content {
        ethernet: [0, 1, 2].map(|at: usize| next_hop.ethernet[at].get()),
        source: [0, 1, 2, 3].map(|at: usize| to_instance.source[at].get()),
        destination: [0, 1, 2, 3].map(|at: usize| to_instance.destination[at].get()),
        ports: to_instance.ports.get(),
        seq: seq.wrapping_add(to_instance.seq_delta.get()),
        ack: stash.instance_seq.get(),
        flags: ACK | PSH,
        window: window.min(u32::from(u16::MAX)) as u16,
        payload: bytes.len(),
        payload_sum: u32::from(!checksum::full(bytes, 0)),
    };
    let mut frame = bytes_of(&Own::<I, WORDS>::new(&content, options)).to_vec();
    frame.extend_from_slice(bytes);
    frame
}

#[cfg(test)]
mod tests {
    use router_common::abi::binding::Embryo;

    use super::*;

    #[test]
    fn what_follows_the_head_is_cut_into_segments_and_what_the_instance_has_is_left_out() {
        let (flow, stash, next_hop) = (Flow::default(), Stash::default(), NextHop::default());
        let [to_instance, _] = &flow.translations;
        to_instance.seq_cut.set(1_100);
        to_instance.seq_delta.set(50);
        to_instance.traits.set(FLAG_TIMESTAMPS);
        flow.progress[0].timestamp_delta.set(1_000);
        stash.instance_seq.set(77);
        stash.instance_timestamp.set(0x0102_0304);
        let segment = Segment {
            client: "10.77.1.2:40000".parse().unwrap(),
            vip: "10.77.1.10:80".parse().unwrap(),
            embryo: Embryo { seq: 1_000, ..Embryo::default() },
            seq: 1_090,
            window: 500,
            timestamp: Some(5),
            finished: false,
            payload: (0..=60).collect(),
        };
        let frames = frames(&flow, &stash, &next_hop, &segment, 20);
        const HEADERS: usize = 14 + 20 + 20 + 12;
        let lengths: Vec<_> = frames.iter().map(|frame| frame.len() - HEADERS).collect();
        assert_eq!(lengths, [20, 20, 11]);
        let word = |frame: &[u8], at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        for (number, frame) in frames.iter().enumerate() {
            assert_eq!(word(frame, 38), 1_150 + 20 * number as u32, "the sequence number");
            assert_eq!((word(frame, 42), word(frame, 58), word(frame, 62)), (77, 1_005, 0x0102_0304));
            assert_eq!(frame[HEADERS], 10 + 20 * number as u8);
        }
        let known = Segment { payload: vec![0; 10], ..segment };
        assert!(super::frames(&flow, &stash, &next_hop, &known, 20).is_empty());
    }
}
