//! Kernel programs of the bench.
//!
//! Before each round of BPF_PROG_TEST_RUN, those that restore make the frame what it was, and go on with the program that is measured. Without
//! that, the second round would meet what the first has made of the frame. Going on with an empty program instead shows what this takes by itself.
//!
//! Another one takes outer headers off at the instance, as a tunnel device would.

#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]

#[cfg(target_arch = "bpf")]
mod arrivals;

#[cfg(target_arch = "bpf")]
mod programs {
    use aya_ebpf::bindings::xdp_action::{XDP_ABORTED, XDP_PASS};
    use aya_ebpf::bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC};
    use aya_ebpf::helpers::{bpf_skb_adjust_room, bpf_xdp_adjust_head, bpf_xdp_get_buff_len};
    use aya_ebpf::macros::{classifier, map, xdp};
    use aya_ebpf::maps::{Array, ProgramArray};
    use aya_ebpf::programs::{TcContext, XdpContext};

    use crate::arrivals::{Arrivals, LONGEST, SHORT};

    /// One instruction, at any alignment: BPF has it, but the language would store bytes.
    macro_rules! store {
        ($width:literal, $place:expr, $value:expr) => {
            core::arch::asm!(
                concat!("*(", $width, " *)({0} + 0) = {1}"),
                in(reg) $place as u64,
                in(reg) $value as u64,
                options(nostack)
            )
        };
    }

    #[map]
    static ARRIVALS: Array<Arrivals> = Array::with_max_entries(1, 0);

    /// The program that is measured, if it is one of TC.
    #[map]
    static MEASURED_TC: ProgramArray = ProgramArray::with_max_entries(1, 0);

    /// The same of XDP.
    #[map]
    static MEASURED_XDP: ProgramArray = ProgramArray::with_max_entries(1, 0);

    #[classifier]
    pub fn restoring_tc(ctx: TcContext) -> i32 {
        if let Some(arrivals) = ARRIVALS.get_ptr_mut(0)
            && restore(ctx.data(), ctx.data_end(), arrivals)
        {
            // SAFETY: the map holds programs of this type only. It comes back where the map is empty.
            unsafe { MEASURED_TC.tail_call(&ctx, 0) };
        }
        TC_ACT_SHOT
    }

    #[xdp]
    pub fn restoring_xdp(ctx: XdpContext) -> u32 {
        let Some(arrivals) = ARRIVALS.get_ptr_mut(0) else { return XDP_ABORTED };
        // SAFETY: the context is the program's own, and the pointer the map's only value.
        let grown = unsafe { bpf_xdp_get_buff_len(ctx.ctx) as i32 - (*arrivals).length as i32 };
        // SAFETY: the context is the program's own. A wrapped frame loses its outer header, which lies in front.
        if grown != 0 && unsafe { bpf_xdp_adjust_head(ctx.ctx, grown) } != 0 {
            return XDP_ABORTED;
        }
        if restore(ctx.data(), ctx.data_end(), arrivals) {
            // SAFETY: as above.
            unsafe { MEASURED_XDP.tail_call(&ctx, 0) };
        }
        XDP_ABORTED
    }

    #[classifier]
    pub fn empty_tc(_: TcContext) -> i32 {
        TC_ACT_UNSPEC
    }

    #[xdp]
    pub fn empty_xdp(_: XdpContext) -> u32 {
        XDP_PASS
    }

    /// Takes the outer IP header off, as an instance of `dsr-ipip` has to: on kernels without tunnel devices, and without their cost.
    #[classifier]
    pub fn unwrapping(ctx: TcContext) -> i32 {
        let wrapped = match ctx.load::<u16>(ETHERTYPE).map(u16::from_be) {
            Ok(ETHERTYPE_IPV4) if ctx.load(IPV4_PROTOCOL) == Ok(IPIP) => IPV4,
            Ok(ETHERTYPE_IPV6) if ctx.load(IPV6_NEXT_HEADER) == Ok(IPV6_IN_IP) => IPV6,
            _ => return TC_ACT_UNSPEC,
        };
        // SAFETY: the context is the program's own.
        match unsafe {
            bpf_skb_adjust_room(ctx.skb.skb, -wrapped, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO)
        } {
            0 => TC_ACT_UNSPEC,
            _ => TC_ACT_SHOT,
        }
    }

    const ETHERTYPE: usize = 12;
    const ETHERTYPE_IPV4: u16 = 0x0800;
    const ETHERTYPE_IPV6: u16 = 0x86dd;
    /// Where the headers say what they carry.
    const IPV4_PROTOCOL: usize = 14 + 9;
    const IPV6_NEXT_HEADER: usize = 14 + 6;
    const IPIP: u8 = 4;
    const IPV6_IN_IP: u8 = 41;
    /// Lengths of the headers.
    const IPV4: i32 = 20;
    const IPV6: i32 = 40;
    /// `enum bpf_adj_room_mode`
    const BPF_ADJ_ROOM_MAC: u32 = 1;
    const BPF_F_ADJ_ROOM_FIXED_GSO: u64 = 1 << 0;

    /// Writes the frame of the next source. False: there is no room for it.
    #[inline(always)]
    fn restore(start: usize, end: usize, arrivals: *mut Arrivals) -> bool {
        // SAFETY: the map's value is always there, and nothing else runs meanwhile.
        let arrivals = unsafe { &mut *arrivals };
        let source = arrivals.first_source.wrapping_add(next(arrivals)).to_be();
        if start + SHORT > end {
            return false;
        }
        write_words(start, &arrivals.frame, 0, SHORT / 8);
        if arrivals.length as usize == SHORT {
            set_source(start, source, [24, 50], 26);
            return true;
        }
        if start + LONGEST > end {
            return false;
        }
        write_words(start, &arrivals.frame, SHORT / 8, LONGEST / 8);
        set_source(start, source, [70, 70], 34);
        true
    }

    /// How far the next source is from the first.
    #[inline(always)]
    fn next(arrivals: &mut Arrivals) -> u32 {
        let turn = arrivals.turn;
        arrivals.turn = turn + 1;
        turn.wrapping_mul(arrivals.stride as u64).checked_rem(arrivals.sources as u64).unwrap_or(0) as u32
    }

    #[inline(always)]
    fn write_words(start: usize, words: &[u64; LONGEST / 8], from: usize, to: usize) {
        let mut index = from;
        while index < to {
            // SAFETY: the caller has compared with the frame's end.
            unsafe { store!("u64", start + 8 * index, words[index]) };
            index += 1;
        }
    }

    /// Writes the last four bytes of the source address, which were 0, and what they change in one checksum or in two.
    #[inline(always)]
    fn set_source(start: usize, source: u32, checksums: [usize; 2], address: usize) {
        // SAFETY: as above.
        unsafe { store!("u32", start + address, source) };
        let change = (source & 0xffff) + (source >> 16);
        let [first, second] = checksums;
        fix(start + first, change);
        if second != first {
            fix(start + second, change);
        }
    }

    #[inline(always)]
    fn fix(place: usize, change: u32) {
        // SAFETY: as above; checksums lie at even places.
        let mut sum = !unsafe { *(place as *const u16) } as u32 & 0xffff;
        sum += change;
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        // SAFETY: as above.
        unsafe { store!("u16", place, !sum) };
    }
}

#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}

/// Built for the host, this is an empty program, so that workspace-wide commands work.
#[cfg(not(target_arch = "bpf"))]
fn main() {}
