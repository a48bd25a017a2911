//! TCP options: timestamps (RFC 7323) and selective acknowledgements (RFC 2018).
//!
//! Nearly every segment of a modern stack carries `NOP NOP timestamps` at the front, perhaps followed by `NOP NOP SACK`: these layouts are handled
//! in place at constant offsets. Any other order is located by [`locate`], a walk over a copy of the option bytes.
//!
//! The trap in the walk: the kernel's verifier follows every combination of option lengths that it can tell apart, more than a
//! million instructions. So the walk has one step for each of the 40 positions, with constant indexes, that acts only where an
//! option begins; and it keeps its state in a [`Scratch`], which in the kernel is a map's memory: the verifier knows nothing about
//! what it reads from there, so all combinations are one.

use super::Verdict;
use super::parse::Segment;
use super::ports::{Clock, Packet};
use super::sequence::Passage;
use crate::abi::flow::{FLAG_ERASE_TIMESTAMPS, FLAG_TIMESTAMPS};
use crate::abi::reason::PacketReason;
use crate::abi::shared::Shared32;
use crate::wire::Net32;
use crate::wire::checksum::Diff;
use crate::wire::tcp::{
    ACK, OPTION_END, OPTION_NOP, OPTION_SACK, OPTION_SACK_PERMITTED, OPTION_TIMESTAMPS, OPTION_WINDOW_SCALE,
    TIMESTAMPS_LEN, Tcp,
};

const NOP_NOP_TIMESTAMPS: u32 =
    u32::from_ne_bytes([OPTION_NOP, OPTION_NOP, OPTION_TIMESTAMPS, TIMESTAMPS_LEN]);
const FOUR_NOPS: u32 = u32::from_ne_bytes([OPTION_NOP; 4]);
const TWO_NOPS: u32 = u32::from_ne_bytes([OPTION_NOP, OPTION_NOP, 0, 0]);
/// Most SACK blocks that fit into 40 bytes.
const MAX_BLOCKS: usize = 4;

/// Words of `NOP NOP timestamps`.
const TIMESTAMPS_WORDS: usize = 3;
/// Words of `NOP NOP timestamps NOP NOP SACK` before the first block.
const SACK_WORDS: usize = TIMESTAMPS_WORDS + 1;

/// Translates the options in place and adds the change to `diff`.
#[inline(always)]
pub fn translate<P: Packet, C: Clock>(
    packet: &mut P,
    passage: &Passage<'_>,
    segment: &Segment,
    clock: &C,
    diff: &mut Diff,
) -> Result<(), Verdict> {
    if segment.options_len == 0 {
        return Ok(());
    }
    let in_place = match words_at_front(packet, segment) {
        TIMESTAMPS_WORDS => at_front::<TIMESTAMPS_WORDS, P, C>(packet, passage, segment, clock, diff),
        6 => at_front::<6, P, C>(packet, passage, segment, clock, diff),
        8 => at_front::<8, P, C>(packet, passage, segment, clock, diff),
        10 => at_front::<10, P, C>(packet, passage, segment, clock, diff),
        _ => false,
    };
    if in_place { Ok(()) } else { anywhere(packet, passage, segment, clock, diff) }
}

/// How many words the options have if they are in one of the usual layouts, else 0.
#[inline(always)]
fn words_at_front<P: Packet>(packet: &P, segment: &Segment) -> usize {
    match packet.view::<Net32>(segment.options_at) {
        Some(first) if first.raw() == NOP_NOP_TIMESTAMPS => {}
        _ => return 0,
    }
    let words = segment.options_len / 4;
    if words == TIMESTAMPS_WORDS {
        return words;
    }
    // One block has two words; three fit beside timestamps.
    let sack_len = match words {
        6 => 10,
        8 => 18,
        10 => 26,
        _ => return 0,
    };
    match packet.view::<Net32>(segment.options_at + 4 * TIMESTAMPS_WORDS) {
        Some(word) if word.raw() == u32::from_ne_bytes([OPTION_NOP, OPTION_NOP, OPTION_SACK, sack_len]) => {
            words
        }
        _ => 0,
    }
}

/// Translates a usual layout of `WORDS` words. Returns false, with nothing changed, where they are not all directly accessible.
#[inline(always)]
fn at_front<const WORDS: usize, P: Packet, C: Clock>(
    packet: &mut P,
    passage: &Passage<'_>,
    segment: &Segment,
    clock: &C,
    diff: &mut Diff,
) -> bool {
    let Some(words) = packet.view_mut::<[Net32; WORDS]>(segment.options_at) else { return false };
    if passage.has(FLAG_ERASE_TIMESTAMPS) {
        for word in &mut words[..TIMESTAMPS_WORDS] {
            replace(word, FOUR_NOPS, diff);
        }
    } else if passage.has(FLAG_TIMESTAMPS) {
        let (value, echo) = timestamps(passage, segment, words[1].get(), words[2].get(), clock);
        replace(&mut words[1], value.to_be(), diff);
        replace(&mut words[2], echo.to_be(), diff);
    }
    for edge in words.iter_mut().skip(SACK_WORDS) {
        replace(edge, passage.ack(edge.get()).to_be(), diff);
    }
    true
}

/// Replaces a word at an even offset by another, given as it shall lie in memory.
#[inline(always)]
fn replace(word: &mut Net32, new: u32, diff: &mut Diff) {
    diff.replace(word.raw(), new);
    word.set_raw(new);
}

/// TSval and TSecr on the other leg.
///
/// The delta of a sender is fixed by its first packet such that the other leg's clock, which our socket has shown
/// there, goes on without a step back; a step back would be discarded as an old duplicate (PAWS, RFC 7323 §5).
#[inline(always)]
fn timestamps<C: Clock>(
    passage: &Passage<'_>,
    segment: &Segment,
    value: u32,
    echo: u32,
    clock: &C,
) -> (u32, u32) {
    let mut delta = passage.sender.timestamp_delta.get();
    if delta == 0 {
        // The socket's clock was read with a resolution of 2 ms, rounded down.
        let ours = (clock.now() / 1_000_000) as u32;
        let ours = ours.wrapping_add(passage.translation.clock_offset.get()).wrapping_add(1);
        let wanted = match ours.wrapping_sub(value) {
            0 => 1,
            delta => delta,
        };
        delta = clock.fix_once(&passage.sender.timestamp_delta, wanted);
    }
    let back = passage.receiver.timestamp_delta.get();
    // While the other side's clock is unknown there is nothing true to echo; 0 gives no round-trip sample.
    let echo = if segment.has(ACK) && back != 0 && echo != 0 { echo.wrapping_sub(back) } else { 0 };
    (value.wrapping_add(delta), echo)
}

/// Options in any order and at any alignment.
#[inline(always)]
fn anywhere<P: Packet, C: Clock>(
    packet: &mut P,
    passage: &Passage<'_>,
    segment: &Segment,
    clock: &C,
    diff: &mut Diff,
) -> Result<(), Verdict> {
    const HALF_WRITTEN: Verdict = Verdict::Drop(PacketReason::WriteFailed);
    let Some(scratch) = packet.load_options(segment.options_at, segment.options_len) else {
        return Err(Verdict::Drop(PacketReason::Truncated));
    };
    locate(scratch);
    if scratch.malformed.get() != 0 {
        return Err(Verdict::Drop(PacketReason::BadTcpOptions));
    }
    if scratch.timestamps.get() != 0 {
        let at = scratch.timestamps.get() as usize;
        if passage.has(FLAG_ERASE_TIMESTAMPS) {
            if !erase_timestamps(packet, segment, scratch, diff) {
                return Err(HALF_WRITTEN);
            }
        } else if passage.has(FLAG_TIMESTAMPS) {
            let old = [scratch.word(at), scratch.word(at + 4)];
            let (value, echo) =
                timestamps(passage, segment, u32::from_be(old[0]), u32::from_be(old[1]), clock);
            if !replace_pair(packet, segment, at, old, [value.to_be(), echo.to_be()], diff) {
                return Err(HALF_WRITTEN);
            }
        }
    }
    for block in 0..MAX_BLOCKS {
        if block >= scratch.blocks.get() as usize {
            break;
        }
        let at = scratch.sack.get() as usize + block * 8;
        let old = [scratch.word(at), scratch.word(at + 4)];
        let new = [passage.ack(u32::from_be(old[0])).to_be(), passage.ack(u32::from_be(old[1])).to_be()];
        if !replace_pair(packet, segment, at, old, new, diff) {
            return Err(HALF_WRITTEN);
        }
    }
    Ok(())
}

/// Two words as they lie in the packet, at an offset from the first option byte.
#[inline(always)]
fn replace_pair<P: Packet>(
    packet: &mut P,
    segment: &Segment,
    at: usize,
    old: [u32; 2],
    new: [u32; 2],
    diff: &mut Diff,
) -> bool {
    diff.replace_at(at, old[0], new[0]);
    diff.replace_at(at, old[1], new[1]);
    let [a, b] = new.map(u32::to_ne_bytes);
    packet.store(segment.options_at + at, &[a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]])
}

/// Replaces the located timestamps option by NOPs. Returns false where the packet refused the change.
#[inline(always)]
pub fn erase_timestamps<P: Packet>(
    packet: &mut P,
    segment: &Segment,
    scratch: &Scratch,
    diff: &mut Diff,
) -> bool {
    let at = scratch.timestamps.get() as usize;
    let kind_and_len = u32::from_ne_bytes([OPTION_TIMESTAMPS, TIMESTAMPS_LEN, 0, 0]);
    diff.replace_at(at, kind_and_len, TWO_NOPS);
    diff.replace_at(at, scratch.word(at), FOUR_NOPS);
    diff.replace_at(at, scratch.word(at + 4), FOUR_NOPS);
    packet.store(segment.options_at + at - 2, &[OPTION_NOP; TIMESTAMPS_LEN as usize])
}

/// Replaces the located SACK-permitted option by NOPs. Returns false where the packet refused the change.
#[inline(always)]
pub fn erase_sack_permitted<P: Packet>(
    packet: &mut P,
    segment: &Segment,
    scratch: &Scratch,
    diff: &mut Diff,
) -> bool {
    // One more than the offset, so that 0 can stand for "absent".
    let at = scratch.sack_permitted.get() as usize - 1;
    diff.replace_at(at, u32::from_ne_bytes([OPTION_SACK_PERMITTED, 2, 0, 0]), TWO_NOPS);
    packet.store(segment.options_at + at, &[OPTION_NOP; 2])
}

/// A copy of a packet's option bytes, and what [`locate`] found in it. Offsets count from the first option byte; 0 stands for "absent".
#[repr(C)]
#[derive(Debug)]
pub struct Scratch {
    pub bytes: [u8; Tcp::MAX_OPTIONS],
    /// How many bytes are options.
    pub len: Shared32,
    /// Where the next option begins.
    next: Shared32,
    /// First byte of TSval.
    pub timestamps: Shared32,
    /// First SACK edge.
    pub sack: Shared32,
    /// SACK blocks: 0–4.
    pub blocks: Shared32,
    /// SACK-permitted, plus 1.
    pub sack_permitted: Shared32,
    /// The window scale, plus 1.
    pub window_scale: Shared32,
    /// 1 where an option's length is impossible.
    pub malformed: Shared32,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            bytes: [0; Tcp::MAX_OPTIONS],
            len: Shared32::default(),
            next: Shared32::default(),
            timestamps: Shared32::default(),
            sack: Shared32::default(),
            blocks: Shared32::default(),
            sack_permitted: Shared32::default(),
            window_scale: Shared32::default(),
            malformed: Shared32::default(),
        }
    }
}

impl Scratch {
    /// Four bytes as they lie in the packet. An offset beyond what [`locate`] accepts is clamped into the buffer, which the
    /// verifier needs to see.
    #[inline(always)]
    pub(super) fn word(&self, at: usize) -> u32 {
        let at = at & 63;
        let at = if at > Tcp::MAX_OPTIONS - 4 { Tcp::MAX_OPTIONS - 4 } else { at };
        u32::from_ne_bytes([self.bytes[at], self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]])
    }
}

/// Finds the options of interest. Of repeated options the last counts, as in the common stacks.
#[inline(always)]
pub fn locate(scratch: &Scratch) {
    for word in [
        &scratch.next,
        &scratch.timestamps,
        &scratch.sack,
        &scratch.blocks,
        &scratch.sack_permitted,
        &scratch.window_scale,
        &scratch.malformed,
    ] {
        word.set(0);
    }
    macro_rules! steps {
        ($($at:literal)*) => { $( step::<$at>(scratch); )* };
    }
    steps!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19);
    steps!(20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39);
}

/// Behind every position: the walk is over.
const DONE: u32 = 64;

#[inline(always)]
fn step<const AT: usize>(scratch: &Scratch) {
    let at = AT as u32;
    if scratch.next.get() != at || at >= scratch.len.get() {
        return;
    }
    let kind = scratch.bytes[AT];
    if kind == OPTION_END {
        return scratch.next.set(DONE);
    }
    if kind == OPTION_NOP {
        return scratch.next.set(at + 1);
    }
    // The last byte has no successor, and 0 is an impossible length.
    let option_len =
        if AT + 1 < Tcp::MAX_OPTIONS { scratch.bytes[(AT + 1) % Tcp::MAX_OPTIONS] as u32 } else { 0 };
    if option_len < 2 || at + option_len > scratch.len.get() {
        scratch.malformed.set(1);
        return scratch.next.set(DONE);
    }
    scratch.next.set(at + option_len);
    if kind == OPTION_TIMESTAMPS && option_len == TIMESTAMPS_LEN as u32 {
        scratch.timestamps.set(at + 2);
    } else if kind == OPTION_SACK && option_len >= 10 && option_len & 7 == 2 {
        scratch.sack.set(at + 2);
        scratch.blocks.set(option_len >> 3);
    } else if kind == OPTION_SACK_PERMITTED && option_len == 2 {
        scratch.sack_permitted.set(at + 1);
    } else if AT + 2 < Tcp::MAX_OPTIONS && kind == OPTION_WINDOW_SCALE && option_len == 3 {
        scratch.window_scale.set(scratch.bytes[(AT + 2) % Tcp::MAX_OPTIONS] as u32 + 1);
    }
}
