//! The client's SYN, answered without anything being remembered: our sequence number is a SYN cookie of the kernel's, and what else the SYN agreed lies in
//! the low bits of our timestamp, as Linux does it (`tcp_syncookies.c`), which the client echoes.

use super::super::Verdict;
use super::super::options::locate;
use super::super::parse::{Headers, Segment};
use super::super::ports::Packet;
use super::back;
use super::own::{Content, Own, Sending, ports_back};
use super::ports::{Bindings, Socket};
use crate::abi::binding::{
    AGREED_SACK, AGREED_SCALING, AGREED_TIMESTAMPS, BindingSettings, BoundListener, OUR_SCALE,
};
use crate::abi::reason::PacketReason;
use crate::wire::tcp::{
    ACK, MAX_WINDOW_SCALE, OPTION_MAX_SEGMENT, OPTION_NOP, OPTION_SACK_PERMITTED, OPTION_TIMESTAMPS,
    OPTION_WINDOW_SCALE, SYN, TIMESTAMPS_LEN, Tcp,
};

/// The low bits of our timestamp: a window scale, or this where there is none, then SACK.
const NO_SCALE: u32 = 0xf;
const SACK: u32 = 1 << 4;
const OPTION_BITS: u32 = 6;

/// Words of the options of a SYN-ACK.
const WORDS: usize = 5;

/// The SYN becomes the SYN-ACK.
#[inline(always)]
pub fn answer<I: Sending, P: Packet, B: Bindings<I, P>>(
    packet: &mut P,
    bindings: &B,
    segment: &Segment,
    listener: BoundListener,
) -> Option<Verdict> {
    if segment.payload != 0 {
        // TCP Fast Open (RFC 7413) is the listening socket's.
        return Some(Verdict::Pass(PacketReason::BindingSynWithData));
    }
    if bindings.socket(packet) == Socket::Live {
        // Its client knows nothing of that any more, and resets it when the stack challenges it (RFC 5961 §4).
        return None;
    }
    let (mut scale, mut sack, mut client_timestamp) = (NO_SCALE, 0, None);
    if segment.options_len != 0 {
        let scratch = packet.load_options(segment.options_at, segment.options_len)?;
        locate(scratch);
        if scratch.malformed.get() != 0 {
            return None;
        }
        let at = scratch.timestamps.get() as usize;
        if at != 0 {
            client_timestamp = Some(u32::from_be(scratch.word(at)));
            if scratch.window_scale.get() != 0 {
                scale = (scratch.window_scale.get() - 1).min(MAX_WINDOW_SCALE as u32);
            }
            if scratch.sack_permitted.get() != 0 {
                sack = SACK;
            }
        }
    }
    let seq = bindings.cookie(packet, Tcp::LEN + segment.options_len)?;
    let now = clock(bindings.settings()?, bindings.now());
    let ours = if scale == NO_SCALE { None } else { Some(OUR_SCALE) };
    let timestamps = client_timestamp.map(|echo| (stamp(now, scale | sack), echo));
    let options = options(listener.max_segment, ours, sack != 0, timestamps);
    let interface = packet.interface();
    let Headers { ip, tcp, .. } = packet.view::<Headers<I>>(0)?;
    let (source, destination) = ip.addresses();
    let content = Content {
        ethernet: back(packet)?,
        source: destination,
        destination: source,
        ports: ports_back(tcp.ports.raw()),
        seq,
        ack: segment.seq.wrapping_add(1),
        flags: SYN | ACK,
        window: listener.window,
        payload: 0,
        payload_sum: 0,
    };
    if packet.become_frame(&Own::<I, WORDS>::new(&content, options)) {
        Some(Verdict::Report { interface, reason: PacketReason::BindingSynAnswered })
    } else {
        Some(Verdict::Drop(PacketReason::WriteFailed))
    }
}

/// Our timestamp clock, in ms.
#[inline(always)]
pub fn clock(settings: &BindingSettings, now: u64) -> u32 {
    ((now / 1_000_000) as u32).wrapping_add(settings.clock_offset.get())
}

/// The latest timestamp, not after `now`, with these low bits.
#[inline(always)]
fn stamp(now: u32, low: u32) -> u32 {
    let stamp = now >> OPTION_BITS << OPTION_BITS | low;
    if stamp.wrapping_sub(now) as i32 > 0 { stamp.wrapping_sub(1 << OPTION_BITS) } else { stamp }
}

/// The options of a SYN or SYN-ACK, with TSval and TSecr: always as many words, whatever is agreed. Without timestamps there is no place to remember
/// other options, so none is agreed.
#[inline(always)]
pub fn options(
    max_segment: u16,
    scale: Option<u8>,
    sack: bool,
    timestamps: Option<(u32, u32)>,
) -> [u32; WORDS] {
    let word = u32::from_ne_bytes;
    let [high, low] = max_segment.to_be_bytes();
    let max_segment = word([OPTION_MAX_SEGMENT, 4, high, low]);
    let nops = word([OPTION_NOP; 4]);
    let Some((stamp, echo)) = timestamps else { return [max_segment, nops, nops, nops, nops] };
    let kind = if sack {
        word([OPTION_SACK_PERMITTED, 2, OPTION_TIMESTAMPS, TIMESTAMPS_LEN])
    } else {
        word([OPTION_NOP, OPTION_NOP, OPTION_TIMESTAMPS, TIMESTAMPS_LEN])
    };
    let scale = match scale {
        Some(scale) => word([OPTION_NOP, OPTION_WINDOW_SCALE, 3, scale]),
        None => nops,
    };
    [max_segment, kind, stamp.to_be(), echo.to_be(), scale]
}

/// What was agreed with a client that has echoed this timestamp: `AGREED_*` and its window scale.
#[inline(always)]
pub fn agreed(echo: u32) -> (u8, u8) {
    if echo == 0 {
        return (0, 0);
    }
    let sack = if echo & SACK != 0 { AGREED_SACK } else { 0 };
    match echo & NO_SCALE {
        NO_SCALE => (AGREED_TIMESTAMPS | sack, 0),
        scale => (AGREED_TIMESTAMPS | AGREED_SCALING | sack, scale as u8),
    }
}
