//! The instance has answered: its SYN-ACK becomes our acknowledgement with what is stashed behind it, and the two sides become one flow.

use super::super::Verdict;
use super::super::forward;
use super::super::options::locate;
use super::super::parse::Segment;
use super::super::ports::Packet;
use super::Occasion;
use super::own::{Content, Own, Sending, ports_back};
use super::ports::Bindings;
use crate::abi::binding::{
    AGREED_SCALING, AGREED_TIMESTAMPS, ARRIVAL_BOUND, ARRIVAL_UNFIT, EMBRYO_DONE, Embryo, MAX_STASHES,
    OUR_SCALE, Stash,
};
use crate::abi::flow::{FLAG_ERASE_TIMESTAMPS, FLAG_STASH, FLAG_TIMESTAMPS, Flow, Translation};
use crate::abi::next_hop::NextHop;
use crate::abi::reason::PacketReason;
use crate::abi::shared::Shared32;
use crate::wire::Net32;
use crate::wire::tcp::{
    ACK, OPTION_MAX_SEGMENT, OPTION_NOP, OPTION_TIMESTAMPS, PSH, TIMESTAMPS_LEN, seq_before,
};

/// Bytes of a segment that timestamps take from its data.
const TIMESTAMPS_ROOM: u32 = 12;
/// What an instance takes that does not say it (RFC 9293 §3.7.1).
const USUAL_SEGMENT: u32 = 536;

/// The first stash of a flow.
#[inline(always)]
pub fn stash<'b, I: Sending, P: Packet, B: Bindings<I, P>>(
    bindings: &'b B,
    flow: &Flow,
) -> Option<&'b Stash> {
    match flow.progress[0].stash.get() {
        0 => None,
        number => bindings.stash(number - 1),
    }
}

/// Binds the two sides. Until now no other packet had a way through the flow, so there is one writer: this one. (A SYN-ACK that comes twice
/// says the same.)
#[inline(always)]
pub fn bind<I: Sending, P: Packet, B: Bindings<I, P>>(
    packet: &mut P,
    bindings: &B,
    flow: &Flow,
    slot: u32,
    stash: &Stash,
    segment: &Segment,
) -> Result<(), Verdict> {
    let (mut timestamp, mut scale, mut most) = (None, None, USUAL_SEGMENT);
    if segment.options_len != 0 {
        let Some(scratch) = packet.load_options(segment.options_at, segment.options_len) else {
            return Err(Verdict::Drop(PacketReason::Truncated));
        };
        locate(scratch);
        if scratch.malformed.get() != 0 {
            return Err(Verdict::Drop(PacketReason::BadTcpOptions));
        }
        let at = scratch.timestamps.get() as usize;
        if at != 0 {
            timestamp = Some(u32::from_be(scratch.word(at)));
        }
        if scratch.window_scale.get() != 0 {
            scale = Some((scratch.window_scale.get() - 1) as u8 & 15);
        }
        if let Some(told) = max_segment(scratch.word(0)) {
            most = told;
        }
    }
    let [from_client, from_instance] = &flow.translations;
    let [client, instance] = &flow.progress;
    let agreed = stash.agreed.get() as u8;
    let client_scale = (stash.agreed.get() >> 8) as u8;
    let next = segment.seq.wrapping_add(1);
    let timestamps = if timestamp.is_some() && agreed & AGREED_TIMESTAMPS != 0 { TIMESTAMPS_ROOM } else { 0 };
    if stash.length.get() + timestamps > most || stash.total.get() > segment.window as u32 {
        // The daemon makes a socket, which cuts what it sends as the instance wants it.
        return Err(if bindings.tell(stash.ring.get(), ARRIVAL_UNFIT, slot) {
            Verdict::Take(PacketReason::BindingUnfit)
        } else {
            Verdict::Drop(PacketReason::BindingRingFull)
        });
    }

    stash.instance_segment.set(most);
    stash.instance_seq.set(next);
    from_instance.seq_delta.set(stash.client_ack.get().wrapping_sub(next));
    from_instance.seq_cut.set(next);
    instance.max_seq.set(next);
    instance.max_ack.set(segment.ack);
    instance.window_edge.set(segment.ack.wrapping_add(segment.window as u32));
    let now = bindings.coarse_now();
    instance.last_seen.set(now);

    let with_client = agreed & AGREED_TIMESTAMPS != 0;
    let mut client_flags = I::LIVE | FLAG_STASH;
    let mut instance_flags = I::LIVE | FLAG_STASH;
    match timestamp {
        Some(timestamp) if with_client => {
            stash.instance_timestamp.set(timestamp);
            let delta = stash.client_echo.get().wrapping_sub(timestamp);
            // 0 stands for a delta that is not known.
            instance.timestamp_delta.set(if delta == 0 { 1 } else { delta });
            client_flags |= FLAG_TIMESTAMPS;
            instance_flags |= FLAG_TIMESTAMPS;
        }
        _ if with_client => client_flags |= FLAG_ERASE_TIMESTAMPS,
        _ => {}
    }
    // Scales hold only where both ends of a connection have told theirs (RFC 7323 §2.2).
    let offered = agreed & AGREED_SCALING != 0;
    let (instance_scale, ours_to_instance) = match scale {
        Some(scale) if offered => (scale, client_scale),
        _ => (0, 0),
    };
    let ours_to_client = if offered { OUR_SCALE } else { 0 };
    from_instance.traits.set(Translation::pack_traits(instance_flags, instance_scale, ours_to_client));
    from_client.traits.set(Translation::pack_traits(client_flags, client_scale, ours_to_instance));
    client.last_seen.set(now);

    let key = client_key::<I>(flow);
    // Nothing of this client leads to a request again, whatever comes late.
    let embryo = Embryo {
        state: EMBRYO_DONE,
        ack: stash.client_ack.get(),
        ..bindings.embryo(&key).unwrap_or_default()
    };
    bindings.remember_embryo(&key, &embryo);
    Ok(())
}

/// The greatest segment by an option that comes first, as in the SYNs of all known systems.
#[inline(always)]
fn max_segment(option: u32) -> Option<u32> {
    let [kind, length, high, low] = option.to_ne_bytes();
    (kind == OPTION_MAX_SEGMENT && length == 4).then_some(u16::from_be_bytes([high, low]) as u32)
}

/// The packet becomes what the instance gets first, from the segment on that it has not acknowledged whole. All but the last one leave as copies.
#[inline(always)]
pub fn send<I: Sending, P: Packet, B: Bindings<I, P>>(
    packet: &mut P,
    bindings: &B,
    slot: u32,
    occasion: Occasion,
) -> Verdict {
    let Some(flow) = bindings.flow(slot) else {
        return Verdict::Drop(PacketReason::StaleSlot);
    };
    let Some(first) = stash::<I, P, B>(bindings, flow) else {
        return Verdict::Drop(PacketReason::StaleSlot);
    };
    let index = flow.translations[0].next_hop.get();
    let Some(next_hop) = bindings.next_hop(index) else {
        return Verdict::Drop(PacketReason::NextHopUnresolved);
    };
    let reason = match occasion {
        Occasion::Bound => PacketReason::Bound,
        Occasion::Repeated => PacketReason::BindingResent,
    };
    if matches!(occasion, Occasion::Bound) && first.early.get() != 0 {
        // Where it is full, the daemon finds out by itself.
        bindings.tell(first.ring.get(), ARRIVAL_BOUND, slot);
    }
    // Of what it has got of our SYN and behind it.
    let acknowledged = flow.progress[1].max_ack.get();
    let mut stash = first;
    for _ in 0..MAX_STASHES {
        let next = stash.next.get();
        let end = stash.seq.get().wrapping_add(stash.length.get());
        if next == 0 || seq_before(acknowledged, end) {
            if !become_segment::<I, P, B>(packet, bindings, flow, first, stash, next_hop) {
                return Verdict::Drop(PacketReason::WriteFailed);
            }
            if next == 0 {
                return forward::report(index, next_hop, reason);
            }
            if !bindings.send_copy(packet, next_hop.interface.get()) {
                return Verdict::Drop(PacketReason::WriteFailed);
            }
        }
        match bindings.stash(next.wrapping_sub(1)) {
            Some(following) => stash = following,
            None => break,
        }
    }
    Verdict::Drop(PacketReason::WriteFailed)
}

/// The packet becomes one segment.
#[inline(always)]
fn become_segment<I: Sending, P: Packet, B: Bindings<I, P>>(
    packet: &mut P,
    bindings: &B,
    flow: &Flow,
    first: &Stash,
    stash: &Stash,
    next_hop: &NextHop,
) -> bool {
    /// Words of `NOP NOP timestamps`.
    const WORDS: usize = 3;

    let to_instance = &flow.translations[0];
    let nops = u32::from_ne_bytes([OPTION_NOP; 4]);
    let options = if to_instance.traits.get() & FLAG_TIMESTAMPS != 0 {
        let kind = u32::from_ne_bytes([OPTION_NOP, OPTION_NOP, OPTION_TIMESTAMPS, TIMESTAMPS_LEN]);
        [kind, first.timestamp.get().to_be(), first.instance_timestamp.get().to_be()]
    } else {
        [nops; WORDS]
    };
    let our_scale = to_instance.traits.get() >> 16 & 15;
    let window = client_window(first) >> our_scale;
    let content = Content {
        ethernet: [next_hop.ethernet[0].get(), next_hop.ethernet[1].get(), next_hop.ethernet[2].get()],
        source: words(&to_instance.source),
        destination: words(&to_instance.destination),
        ports: to_instance.ports.get(),
        seq: stash.seq.get(),
        ack: first.instance_seq.get(),
        flags: if stash.next.get() == 0 { ACK | PSH } else { ACK },
        window: if window > u16::MAX as u32 { u16::MAX } else { window as u16 },
        payload: stash.length.get() as usize,
        payload_sum: stash.sum.get(),
    };
    packet.become_frame(&Own::<I, WORDS>::new(&content, options))
        && bindings.append(packet, Own::<I, WORDS>::LEN, stash)
}

#[inline(always)]
pub fn words(address: &[Shared32; 4]) -> [u32; 4] {
    [address[0].get(), address[1].get(), address[2].get(), address[3].get()]
}

/// The window that the client has opened, in bytes.
#[inline(always)]
fn client_window(stash: &Stash) -> u32 {
    let scale = stash.agreed.get() >> 8 & 15;
    (stash.window.get() & 0xffff) << scale
}

/// The tuple of the client's packets.
#[inline(always)]
fn client_key<I: Sending>(flow: &Flow) -> I::Key {
    let to_client = &flow.translations[1];
    let (client, vip) = (words(&to_client.destination), words(&to_client.source));
    I::leading(client, vip, 0).key(Net32(ports_back(to_client.ports.get()).to_ne_bytes()))
}
