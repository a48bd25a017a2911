//! From a first packet to the constants of a flow that waits for its instance. Pure arithmetic.
//!
//! As in a handoff (`splice`), the client's bytes are replaced by others, and behind them its numbers differ by a constant. The instance's own numbers are not known
//! yet: the kernel fills in what depends on them.

use router_common::abi::binding::Stash;
use router_common::abi::flow::{FLAG_BINDING, Flow, Progress, Translation};
use router_common::wire::checksum;

use super::First;
use crate::flows::splice::{Ends, NextHops, address};

/// Fills a chain of free stashes, one for each of these segments. Their first byte gets this sequence number.
pub fn stashes(chain: &[&Stash], first: &First, segments: &[&[u8]], seq: u32, timestamp: u32) {
    let mut next = seq;
    for (stash, bytes) in chain.iter().zip(segments) {
        segment(stash, bytes, next);
        next = next.wrapping_add(bytes.len() as u32);
    }
    let Some(stash) = chain.first() else { return };
    stash.total.set(next.wrapping_sub(seq));
    stash.timestamp.set(timestamp);
    stash.client_ack.set(first.embryo.ack);
    stash.client_echo.set(first.embryo.echo);
    stash.window.set(u32::from(first.window));
    stash.agreed.set(u32::from(first.embryo.agreed) | u32::from(first.embryo.scale) << 8);
    stash.segment.set(u32::from(first.embryo.segment));
    stash.ring.set(first.embryo.ring.into());
    stash.early.set(0);
    stash.instance_seq.set(0);
    stash.instance_timestamp.set(0);
    stash.instance_segment.set(0);
}

fn segment(stash: &Stash, bytes: &[u8], seq: u32) {
    for (word, eight) in stash.bytes.iter().zip(bytes.chunks(8)) {
        let mut padded = [0; 8];
        padded[..eight.len()].copy_from_slice(eight);
        word.set(u64::from_ne_bytes(padded));
    }
    stash.length.set(bytes.len() as u32);
    stash.sum.set(u32::from(!checksum::full(bytes, 0)));
    stash.seq.set(seq);
}

/// Fills a free slot.
pub fn flow(
    flow: &Flow,
    ends: &Ends,
    first: &First,
    stash: &Stash,
    index: u32,
    next_hops: NextHops,
    now: u64,
) {
    // Where the client's own bytes go on, in its sequence space and in ours towards the instance.
    let end = first.embryo.seq.wrapping_add(first.payload.len() as u32);
    let our_end = stash.seq.get().wrapping_add(stash.total.get());

    let [from_client, from_instance] = &flow.translations;
    address(from_client, (ends.client, ends.vip), (ends.source, ends.instance));
    from_client.seq_delta.set(our_end.wrapping_sub(end));
    // Nothing but our SYN-ACK, of which every acknowledgement is one.
    from_client.ack_cut.set(first.embryo.ack.wrapping_sub(1));
    from_client.seq_cut.set(end);
    from_client.clock_offset.set(0);
    from_client.next_hop.set(next_hops.to_instance);

    address(from_instance, (ends.instance, ends.source), (ends.vip, ends.client));
    from_instance.seq_delta.set(0);
    // Less than all of the stash means nothing to the client.
    from_instance.ack_cut.set(our_end.wrapping_sub(1));
    from_instance.seq_cut.set(0);
    from_instance.clock_offset.set(0);
    from_instance.next_hop.set(next_hops.to_client);

    let [client, instance] = &flow.progress;
    begin(client, now);
    client.max_seq.set(end);
    client.max_ack.set(first.embryo.ack);
    client.window_edge.set(first.embryo.ack.wrapping_add(first.window_bytes()));
    if let Some(timestamp) = first.timestamp {
        // The clock of our SYN, and of what is stashed, goes on with the client's.
        let delta = stash.timestamp.get().wrapping_sub(timestamp);
        client.timestamp_delta.set(if delta == 0 { 1 } else { delta });
    }
    client.stash.set(index + 1);
    begin(instance, now);

    let unbound = Translation::pack_traits(FLAG_BINDING | ends.family_flag(), 0, 0);
    from_client.traits.set(unbound);
    from_instance.traits.set(unbound);
}

fn begin(progress: &Progress, now: u64) {
    progress.last_seen.set(now);
    progress.born.set(now);
    progress.packets.set(0);
    progress.bytes.set(0);
    progress.max_ack.set(0);
    progress.max_seq.set(0);
    progress.window_edge.set(0);
    progress.fin_end.set(0);
    progress.fin_seen.set(0);
    progress.rst_seen.set(0);
    progress.timestamp_delta.set(0);
    progress.stash.set(0);
}

#[cfg(test)]
mod tests {
    use router_common::abi::binding::{AGREED_SACK, AGREED_SCALING, AGREED_TIMESTAMPS, Embryo};

    use super::super::Segment;
    use super::*;

    #[test]
    fn the_byte_behind_the_clients_first_packet_follows_what_the_instance_got() {
        let ends = Ends::new(
            ["10.77.1.2:40000", "10.77.1.10:80", "10.77.2.1:20000", "10.77.2.11:8080"]
                .map(|end| end.parse().unwrap()),
        )
        .unwrap();
        let first = First::begin(Segment {
            client: ends.client,
            vip: ends.vip,
            embryo: Embryo {
                seq: 1_000,
                ack: 9_000,
                echo: 77,
                segment: 1_440,
                window: 1_460,
                scale: 7,
                agreed: AGREED_TIMESTAMPS | AGREED_SACK | AGREED_SCALING,
                ..Embryo::default()
            },
            seq: 1_000,
            window: 502,
            timestamp: Some(5_000),
            finished: false,
            payload: vec![b'x'; 100],
        });
        let (kept, last, slot) = (Stash::default(), Stash::default(), Flow::default());
        let head = [b'y'; 141];
        let (begin, end) = head.split_at(101);
        stashes(&[&kept, &last], &first, &[begin, end], u32::MAX, 6_000);
        flow(&slot, &ends, &first, &kept, 3, NextHops { to_client: 1, to_instance: 2 }, 7);
        let [from_client, from_instance] = &slot.translations;
        assert_eq!(1_100u32.wrapping_add(from_client.seq_delta.get()), u32::MAX.wrapping_add(141));
        assert_eq!(from_client.seq_cut.get(), 1_100);
        assert_eq!(from_instance.ack_cut.get(), u32::MAX.wrapping_add(140));
        assert_eq!(slot.progress[0].timestamp_delta.get(), 1_000);
        assert_eq!(slot.progress[0].window_edge.get(), 9_000 + (502 << 7));
        assert_eq!(slot.progress[0].stash.get(), 4);
        assert_eq!(Ends::of(&slot), ends);
        assert_eq!((kept.length.get(), last.length.get(), kept.total.get()), (101, 40, 141));
        assert_eq!(last.seq.get(), u32::MAX.wrapping_add(101));
        assert_eq!(last.sum.get(), u32::from(!checksum::full(end, 0)));
    }
}
